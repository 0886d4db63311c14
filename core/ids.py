"""Ids and times. Domain code gets both from its context; only the edges call these directly."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime

from core.errors import Invalid

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,128}")


def uuid7() -> str:
    """A time-ordered UUID (RFC 9562 §5.7): 48 bits of Unix milliseconds, then random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def now() -> str:
    """The current time, ISO 8601 with zone, microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def safe_id(value: str, what: str) -> str:
    """The id itself, if it can be a subject token and a folder name (the contracts' `[A-Za-z0-9_-]+`). Raises
    `Invalid`.
    """
    if not _SAFE.fullmatch(value):
        raise Invalid(f"{what}: must be 1 to 128 characters of A-Z a-z 0-9 _ -, got {value[:40]!r}")
    return value
