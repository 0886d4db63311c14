"""Ids and times. Domain code gets both from its context; only the edges call these directly."""

from __future__ import annotations

import os
import re
import time
import uuid
from datetime import UTC, datetime

from core.errors import Invalid

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,128}")


_last = (0, 0)


def uuid7() -> str:
    """Returns a time-ordered UUID (RFC 9562 §5.7): 48 bits of Unix milliseconds, then 74 bits, of which 72 are random.

    The ids of a process are strictly increasing: within a millisecond the random part counts up (§6.2, method 2).
    """
    global _last
    milliseconds = time.time_ns() // 1_000_000
    newer = milliseconds > _last[0]
    _last = (milliseconds, int.from_bytes(os.urandom(9))) if newer else (_last[0], _last[1] + 1)
    milliseconds, random_bits = _last
    value = milliseconds << 80 | 0x7 << 76 | (random_bits >> 62 & 0xFFF) << 64 | 0x2 << 62 | random_bits & (1 << 62) - 1
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def now() -> str:
    """The current time, in the format of the log."""
    return stamp(datetime.now(UTC))


def stamp(moment: datetime) -> str:
    """Formats a time for the log: ISO 8601 with zone (always UTC), microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def safe_id(value: str, what: str) -> str:
    """Returns the id if it can be a subject token and a folder name (the contracts' `[A-Za-z0-9_-]+`). Raises
    `Invalid` otherwise.
    """
    if not _SAFE.fullmatch(value):
        raise Invalid(f"{what}: must be 1 to 128 characters of A-Z a-z 0-9 _ -, got {value[:40]!r}")
    return value


def ordinal(text: str, count: int) -> int | None:
    """Returns the number from 1 to `count` that a text is; None if it is none. Of any text: Python reads no number of
    more than 4 300 digits.
    """
    number = int(text) if len(text) < 10 and text.isdecimal() else 0
    return number if 1 <= number <= count else None


def checkpoint_id(seq: int) -> str:
    """Returns the clients' id of the checkpoint at a log sequence. Clients sort ids as text, so its width is fixed."""
    return f"{seq:016d}"


_ASSISTANTS = uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The namespace in which LangGraph's server derives an assistant's id from the name of its graph."""


def assistant_id(name: str) -> str:
    """The id of an assistant: its own, or what LangGraph's clients expect for the name of a graph."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(_ASSISTANTS, name))
