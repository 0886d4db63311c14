"""Breakpoints of a replay: the type of a step, and conditions on its fields."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from core.errors import Invalid

_CONDITION = re.compile(r"([A-Za-z_][\w.]*)(=|!=|~)(.*)", re.DOTALL)


class Condition(NamedTuple):
    """A condition on a field: `=` and `!=` compare with a pattern (`*`, `?`), `~` looks for a text in it."""

    path: str
    operator: str
    value: str

    def holds(self, step: Mapping[str, Any]) -> bool:
        texts = list(_values(step, self.path.split(".")))
        if self.operator == "~":
            return any(self.value in text for text in texts)
        return any(fnmatchcase(text, self.value) for text in texts) == (self.operator == "=")


class Breakpoint(NamedTuple):
    """Stops at steps of a type (`tool.*`; empty: any) for which all conditions hold."""

    type: str
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def of(cls, text: str) -> Breakpoint:
        """Reads `tool.requested name=bash args.command~rm`. Raises `Invalid` with the part that is wrong."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise Invalid(f"breakpoint {text!r}: {error}") from None
        named = bool(words) and not _CONDITION.fullmatch(words[0])
        conditions = []
        for word in words[1:] if named else words:
            match = _CONDITION.fullmatch(word)
            if match is None:
                raise Invalid(f"breakpoint {text!r}: {word!r} is no condition; write FIELD=VALUE, != or ~")
            conditions.append(Condition(*match.groups()))
        if not words:
            raise Invalid("breakpoint: empty; write a type and conditions, such as 'tool.requested name=bash'")
        return cls(words[0] if named else "*", tuple(conditions))

    def matches(self, step: Mapping[str, Any]) -> bool:
        of_type = fnmatchcase(str(step.get("type", "")), self.type)
        return of_type and all(condition.holds(step) for condition in self.conditions)


def _values(value: Any, path: list[str]) -> Iterator[str]:
    """Yields the texts at a path, what is no text as JSON; of lists, those of each item."""
    if isinstance(value, list):
        for item in value:
            yield from _values(item, path)
    elif path:
        if isinstance(value, Mapping) and path[0] in value:
            yield from _values(value[path[0]], path[1:])
    else:
        yield value if isinstance(value, str) else msgspec.json.encode(value).decode()
