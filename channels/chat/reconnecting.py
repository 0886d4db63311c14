"""Connections to a platform, one after the other, with growing pauses."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import NamedTuple

import anyio
import structlog

from core.chat.port import RateLimited, Report
from core.errors import Unavailable

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 60.0
LONGEST_BREAK = 4.0
"""Longest pause after a connection that worked: long ones are for what refuses connections, and platforms deliver a
message again only a few times."""
STABLE_SECONDS = 20.0
"""A connection that worked for as long resets the pauses."""

log = structlog.get_logger("sika.channels.chat")


class Ended(NamedTuple):
    """The end of a connection. `worked`: the platform had greeted it."""

    reason: str
    worked: bool


def pause_after(failures: int, first: float, longest: float) -> float:
    """Returns the seconds to wait after so many failures in a row: doubled with each, and never quite the same."""
    return min(longest, first * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0) if failures else 0.0


async def stay_connected(
    platform: str, connection: Callable[[], Awaitable[Ended]], report: Report, *, first_pause: float = FIRST_PAUSE
) -> None:
    """Connects again and again, until cancelled. `connection` returns when one has ended. Raises what it raises, except
    `Unavailable`: then nothing was connected."""
    failures = 0
    while True:
        began, least = monotonic(), 0.0
        try:
            ended = await connection()
        except Unavailable as error:
            ended = Ended(str(error), worked=False)
            least = error.seconds if isinstance(error, RateLimited) else 0.0
        failures = 0 if ended.worked and monotonic() - began > STABLE_SECONDS else failures + 1
        report.disconnected(ended.reason)
        log.info("disconnected", platform=platform, reason=ended.reason)
        longest = LONGEST_BREAK if ended.worked else LONGEST_PAUSE
        await anyio.sleep(max(least, pause_after(failures, first_pause, longest)))
