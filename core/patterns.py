"""Untrusted regular expressions, searched in time proportional to their length times the text's.

Theory: there is no backtracking, as nothing is tried twice. Each part of an expression maps the positions where it may
begin to those where it may end. A set of positions is the bits of a number. A loop returns the positions it had not
reached before: the part that follows it has already had the others.

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
"""Limit of nested groups."""
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_PLACES = ("^", "$", r"\b", r"\B", r"\A", r"\Z")
"""Assertions: tokens that match between two characters."""
_MARKS = ("*", "+", "?", "{")


class _Text:
    """The text of a search: its positions are its characters and its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.positions = (1 << len(text) + 1) - 1
        self.reached: dict[object, int] = {}
        """Positions by loop, for this search."""


Part = Callable[[int, _Text], int]


class Pattern:
    """A compiled expression. Case is ignored, `.` is any character. Raises `Invalid` for unsupported syntax."""

    def __init__(self, source: str) -> None:
        self._part = _Parser(source).all()

    def found_in(self, text: str) -> bool:
        subject = _Text(text)
        return self._part(subject.positions, subject) != 0


class _Parser:
    def __init__(self, source: str) -> None:
        self._left: list[str] = _TOKEN.findall(source)[::-1]

    def all(self) -> Part:
        part = self._either(0)
        if self._left:
            raise Invalid("pattern: a group ends that did not begin")
        return part

    def _either(self, depth: int) -> Part:
        parts = [self._sequence(depth)]
        while self._accept("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else _either(parts)

    def _sequence(self, depth: int) -> Part:
        parts: list[Part] = []
        while self._left and self._left[-1] not in ("|", ")"):
            parts.append(self._repeated(self._atom(depth)))
        return _sequence(parts)

    def _atom(self, depth: int) -> Part:
        token = self._left.pop()
        if token == "(":
            return self._group(depth + 1)
        if token in _MARKS:
            raise Invalid(f"pattern: {token} has nothing to repeat, or is not supported")
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):  # `[[a]` is a set of `[` and `a`
                regex = re.compile(token, re.IGNORECASE | re.DOTALL)
        except re.error as error:
            raise Invalid(f"pattern: {token}: {error}") from None
        return _character(regex, 0 if token in _PLACES else 1)

    def _group(self, depth: int) -> Part:
        if depth > DEEPEST:
            raise Invalid(f"pattern: more than {DEEPEST} groups within each other")
        if self._left[-2:] == [":", "?"]:
            del self._left[-2:]
        part = self._either(depth)
        if not self._accept(")"):
            raise Invalid("pattern: a group does not end")
        return part

    def _repeated(self, part: Part) -> Part:
        for mark, factory in (("*", _loop), ("+", _once_or_more), ("?", _perhaps)):
            if self._accept(mark):
                self._accept("?")  # lazy repeats match in the same texts
                return factory(part)
        return part

    def _accept(self, token: str) -> bool:
        if self._left and self._left[-1] == token:
            self._left.pop()
            return True
        return False


def _character(regex: re.Pattern[str], width: int) -> Part:
    cached: tuple[_Text | None, int] = (None, 0)

    def ends(starts: int, text: _Text) -> int:
        nonlocal cached
        if cached[0] is not text:
            cached = (text, sum(1 << match.start() for match in regex.finditer(text.text)))
        return (starts & cached[1]) << width

    return ends


def _sequence(parts: Sequence[Part]) -> Part:
    return lambda starts, text: reduce(lambda positions, part: part(positions, text) if positions else 0, parts, starts)


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
