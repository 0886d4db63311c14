"""Bounds of answers about logs: long values are cut, and what an answer holds is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Spend = Callable[[int], None]
"""Takes bytes of an answer. Raises an error of the caller's if it becomes too big."""
MORE = "…"
"""Ends a text that was cut."""


def cut(value: Any, longest: int | None) -> Any:
    """Returns a JSON value whose texts have `longest` characters at most; the beginning of its JSON, if it has more
    than four times as many bytes even so. None: the value itself.
    """
    if longest is None:
        return value
    short = _short(value, longest)
    if isinstance(short, str) or len(encoded := msgspec.json.encode(short)) <= 4 * longest:
        return short
    return encoded[:longest].decode(errors="ignore") + MORE


def _short(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= longest else value[:longest] + MORE
    if isinstance(value, list):
        return [_short(item, longest) for item in value]
    if isinstance(value, dict):
        return {name: _short(item, longest) for name, item in value.items()}
    return value
