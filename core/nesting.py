"""The depth of JSON, counted before it is decoded: the decoder's own limit is another one in each Python."""

from __future__ import annotations

from itertools import accumulate

MOST_LEVELS = 500
"""Limit of the depth of a client's JSON: what reads it later is recursive in places, and Python allows that 1 000
calls.
"""
VALUE_LEVELS = 200
"""Limit of the depth of what a model or a tool gives: LangGraph copies it, with two calls for each level."""
FACT_LEVELS = MOST_LEVELS + 100
"""Limit of the depth of a fact, which puts some levels around foreign JSON."""
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def too_deep(raw: bytes, most: int = MOST_LEVELS) -> bool:
    """Returns whether JSON has more than so many levels."""
    if raw.count(b"[") + raw.count(b"{") <= most:
        return False
    outside = b"".join(raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    steps = (1 if bracket in b"[{" else -1 for bracket in outside.translate(None, _NOT_BRACKETS))
    return max(accumulate(steps), default=0) > most
