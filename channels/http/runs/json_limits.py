"""Limits of the JSON values of clients that a log can keep."""

from __future__ import annotations

from typing import Any

import msgspec

from core.errors import Invalid

MOST_DEPTH = 64
MOST_BYTES = 256 * 1024


def storable(value: Any, where: str, most_bytes: int = MOST_BYTES) -> None:
    """Raises `Invalid` if a JSON value is too deep or too big to be kept."""
    level, depth = [value], 0
    while level := [inner for outer in level for inner in _inside(outer)]:
        depth += 1
        if depth > MOST_DEPTH:
            raise Invalid(f"{where}: nested more than {MOST_DEPTH} deep")
    if (size := len(msgspec.json.encode(value))) > most_bytes:
        raise Invalid(f"{where}: at most {most_bytes} bytes as JSON, got {size}")


def _inside(value: Any) -> list[Any]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
    return []
