"""Limits of the JSON values of clients that a log can keep."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec

from core.errors import Invalid

MOST_LEVELS = 500
"""Limit of the depth of any body: what reads it later is recursive in places, and Python allows that 1 000 calls."""
MOST_DEPTH = 64
MOST_BYTES = 256 * 1024
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def too_deep(raw: bytes) -> bool:
    """Returns whether JSON is nested deeper than `MOST_LEVELS`. The decoder's limit is another one in each Python."""
    if raw.count(b"[") + raw.count(b"{") <= MOST_LEVELS:
        return False
    outside = b"".join(raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    steps = (1 if bracket in b"[{" else -1 for bracket in outside.translate(None, _NOT_BRACKETS))
    return max(accumulate(steps), default=0) > MOST_LEVELS


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
