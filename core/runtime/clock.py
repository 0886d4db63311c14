"""Watches the clock of the process: after it was set back, timers that it set while it was ahead would be late.

Theory of operation
-------------------
A timer names a time of day. If the clock shows next year for a minute, what is set in that minute comes in a year, with
nobody left to notice. So each timer says what its setter's clock showed (`SET_AT`). A process that sees its clock set
back fires those that were set at a time which has not come: their actors look at what is due, and set them again by the
right clock. They stay where they are: to come once more is harmless.

The clock was set back if it shows less than it did before, plus what has passed since by a clock that nobody sets. A
process that starts compares it with the time of the newest event: the one before may have died while it was ahead.

Non-guarantee: if the clock was right again before any process of that machine has started, and others have appended
meanwhile, nobody notices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import anyio
import structlog

from core.bus.queue import WorkQueue
from core.errors import Unavailable
from core.log.store import EventLog

log = structlog.get_logger("sika.clock")

LOOK_SECONDS = 15.0
"""Interval at which the clock is looked at."""
SET_BACK = timedelta(minutes=1)
"""A clock that differs by less is not set, but corrected. Clocks of processes differ by less, too."""


async def watch(event_log: EventLog, queue: WorkQueue, clock: Callable[[], float] = time.time) -> None:
    """Runs for as long as the process. Raises `Unavailable`. `clock` is for tests."""
    expected = await _newest(event_log)
    while True:
        now, steady = datetime.fromtimestamp(clock(), UTC), time.monotonic()
        if now > expected - SET_BACK or await _fired(queue, now, expected - now):
            expected = now
        await anyio.sleep(LOOK_SECONDS)
        expected += timedelta(seconds=time.monotonic() - steady)


async def _fired(queue: WorkQueue, now: datetime, by: timedelta) -> bool:
    """Fires the timers that were set while the clock was ahead. Returns False if that must be tried again."""
    log.warning("the clock was set back: timers that were set while it was ahead are fired", seconds=by.total_seconds())
    try:
        await queue.fire_set_after(now + SET_BACK)
    except Unavailable as error:
        log.warning("timers are fired later", error=str(error))
        return False
    return True


async def _newest(event_log: EventLog) -> datetime:
    """Returns the time of the newest event; if there is none, one that has passed."""
    last = await event_log.last()
    async for record in event_log.between(max(0, last - 1), last, bodies=False):
        if record.at:
            return datetime.fromisoformat(record.at).astimezone(UTC)
    return datetime.fromtimestamp(0, UTC)
