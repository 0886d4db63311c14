"""The parts that sections are made of: `Section`, `Secret` and types with limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Price = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Open = Mapping[str, Any]
"""A section whose keys belong to another program."""


class Secret:
    """A string that does not print itself. `reveal()` where it is used, nowhere else."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every section; `extra` holds the keys that are not ours.

    The text below a field is its entry in the configuration reference (`core.config.reference`). A field without one
    is a section, whose docstring is the entry.
    """

    extra: Open = {}


class On(Section, frozen=True, kw_only=True):
    enabled: bool = True
    """False turns it off."""


class Off(Section, frozen=True, kw_only=True):
    enabled: bool = False
    """True turns it on."""
