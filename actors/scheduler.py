"""Decides when a schedule is due: keeps a timer for each, fires what is due, and asks for the runs."""

from __future__ import annotations

from datetime import datetime, timedelta

from core.actor import Actor, Context
from core.events import Aggregate
from core.intake import Intake
from core.launch import Launch
from core.log import EventLog
from core.schedules import ScheduleCreated, ScheduleFired, ScheduleResumed, ScheduleRevised, ScheduleSkipped
from core.threads import Threads

GRAIN = timedelta(milliseconds=1)
"""Timers are cut to this: a timer is set so much later that it is never early."""
SOON = timedelta(milliseconds=250)
"""How long to wait for what is nearly due, if the clock of the timers is ahead of ours."""


class Scheduler(Actor[ScheduleCreated | ScheduleRevised | ScheduleResumed | ScheduleFired | ScheduleSkipped]):
    """The timer of a schedule is set by the fact that changed when it is due next. At every wake-up the nearest timer
    of its user is set again, so that one that came early, or twice, costs nothing.
    """

    name = "scheduler"

    def __init__(self, log: EventLog, threads: Threads, intake: Intake) -> None:
        self._launch = Launch(log, threads, intake)

    async def handle(
        self,
        event: ScheduleCreated | ScheduleRevised | ScheduleResumed | ScheduleFired | ScheduleSkipped,
        ctx: Context,
    ) -> None:
        user = ctx.record.head.aggregate
        if isinstance(event, ScheduleFired):
            await self._launch.launch(user, event.schedule, event.run_id)
        one = (await self._launch.schedules.load(user)).get(event.schedule)
        if one is not None and (due := one.next) is not None:
            await ctx.wake_at(due + GRAIN, event.schedule)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        user, now = aggregate.id, datetime.fromisoformat(ctx.now())
        for one in (await self._launch.schedules.load(user)).values():
            if (due := one.next) is not None and due <= now:
                await self._launch.fire(user, one.id, now)
        ahead = [(due, one.id) for one in (await self._launch.schedules.load(user)).values() if (due := one.next)]
        if ahead:
            due, nearest = min(ahead)
            await ctx.wake_at(max(due, now + SOON) + GRAIN, nearest)
