"""Timers that were set while the clock was ahead, after it was set back."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from core.bus.connection import Bus
from core.bus.queue import WorkQueue
from core.bus.streams import counts
from core.events import Aggregate
from core.ids import stamp
from core.log.store import EventLog
from core.runtime import clock
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
EARLY, LATE = Aggregate("thread", "early"), Aggregate("thread", "late")


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return time.time() + self.ahead

    async def looked_at(self) -> None:
        before = self.looks

        async def probe() -> bool:
            return self.looks > before + 1

        await eventually(probe)


async def test_they_are_fired(bus: Bus, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, and no other one."""
    monkeypatch.setattr(clock, "LOOK_SECONDS", 0.01)
    queue, moment, ours = WorkQueue(bus, 2), datetime.now(UTC), Clock()
    await queue.ensure("early")
    fired = f"{bus.names.prefix}.cmd.>"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.watch, log, queue, ours)
        await queue.wake_at(moment + HOUR, "early", EARLY, key="k")
        await ours.looked_at()
        ours.ahead = 400 * 86400.0
        await ours.looked_at()
        with monkeypatch.context() as then:
            then.setattr("core.bus.queue.now", lambda: stamp(moment + timedelta(days=400)))
            await queue.wake_at(moment + timedelta(days=400) + HOUR, "late", LATE, key="k")
        assert await counts(bus, "cmd", fired) == {}
        ours.ahead = -3.0  # corrected by a little more
        await eventually(lambda: counts(bus, "cmd", fired))
        ours.ahead = -6.0
        await ours.looked_at()
        tasks.cancel_scope.cancel()
    assert await counts(bus, "cmd", fired) == {bus.names.cmd("late", LATE): 1}
    assert len(await counts(bus, "timer", bus.names.all_timers)) == 2
