"""Regular expressions of strangers, searched in a time that grows with their length times the text's, and no faster.

Theory: nothing is ever tried twice, so there is nothing to go back to. Each part of an expression turns the places
where it may begin into those where it may end; places are the bits of one number. A loop answers with the places it
had not reached before: what it said earlier has already gone on to what follows it.

Not supported, because no search needs it: counted repeats, references, looking around, flags.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Sequence
from functools import reduce

from core.errors import Invalid

DEEPEST = 20
"""Groups within groups."""
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_PLACES = ("^", "$", r"\b", r"\B", r"\A", r"\Z")
"""What matches between two characters."""
_MARKS = ("*", "+", "?", "{")


class _Text:
    """One text: its places are its characters and its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.places = (1 << len(text) + 1) - 1
        self.reached: dict[object, int] = {}
        """By loop, for this search."""


Part = Callable[[int, _Text], int]


class Pattern:
    """Upper and lower case are the same, `.` is any character. Raises `Invalid` for what is not supported."""

    def __init__(self, source: str) -> None:
        self._part = _Parser(source).all()

    def found_in(self, text: str) -> bool:
        found = _Text(text)
        return self._part(found.places, found) != 0


class _Parser:
    def __init__(self, source: str) -> None:
        self._left: list[str] = _TOKEN.findall(source)[::-1]

    def all(self) -> Part:
        found = self._either(0)
        if self._left:
            raise Invalid("pattern: a group ends that did not begin")
        return found

    def _either(self, depth: int) -> Part:
        found = [self._sequence(depth)]
        while self._taken("|"):
            found.append(self._sequence(depth))
        return found[0] if len(found) == 1 else _either(found)

    def _sequence(self, depth: int) -> Part:
        found: list[Part] = []
        while self._left and self._left[-1] not in ("|", ")"):
            found.append(self._repeated(self._one(depth)))
        return _sequence(found)

    def _one(self, depth: int) -> Part:
        token = self._left.pop()
        if token == "(":
            return self._group(depth + 1)
        if token in _MARKS:
            raise Invalid(f"pattern: {token} has nothing to repeat, or is not supported")
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):  # `[[a]` is a set of `[` and `a`
                found = re.compile(token, re.IGNORECASE | re.DOTALL)
        except re.error as error:
            raise Invalid(f"pattern: {token}: {error}") from None
        return _character(found, 0 if token in _PLACES else 1)

    def _group(self, depth: int) -> Part:
        if depth > DEEPEST:
            raise Invalid(f"pattern: more than {DEEPEST} groups within each other")
        if self._left[-2:] == [":", "?"]:
            del self._left[-2:]
        found = self._either(depth)
        if not self._taken(")"):
            raise Invalid("pattern: a group does not end")
        return found

    def _repeated(self, part: Part) -> Part:
        for mark, made in (("*", _loop), ("+", _once_or_more), ("?", _perhaps)):
            if self._taken(mark):
                self._taken("?")  # as few as possible: the same question here
                return made(part)
        return part

    def _taken(self, token: str) -> bool:
        if self._left and self._left[-1] == token:
            self._left.pop()
            return True
        return False


def _character(one: re.Pattern[str], width: int) -> Part:
    known: tuple[_Text | None, int] = (None, 0)

    def ends(starts: int, text: _Text) -> int:
        nonlocal known
        if known[0] is not text:
            known = (text, sum(1 << hit.start() for hit in one.finditer(text.text)))
        return (starts & known[1]) << width

    return ends


def _sequence(parts: Sequence[Part]) -> Part:
    return lambda starts, text: reduce(lambda places, part: part(places, text) if places else 0, parts, starts)


def _either(parts: Sequence[Part]) -> Part:
    return lambda starts, text: reduce(operator.or_, [part(starts, text) for part in parts])


def _perhaps(part: Part) -> Part:
    return lambda starts, text: starts | part(starts, text)


def _loop(part: Part) -> Part:
    key = object()

    def ends(starts: int, text: _Text) -> int:
        before = reached = text.reached.get(key, 0)
        fresh = starts & ~reached
        while fresh:
            reached |= fresh
            text.reached[key] = reached
            fresh = part(fresh, text) & ~reached
        return reached & ~before

    return ends


def _once_or_more(part: Part) -> Part:
    loop = _loop(part)
    return lambda starts, text: loop(part(starts, text), text)
