"""Decides when a schedule is due: keeps a timer for each, fires what is due, and asks for the runs."""

from __future__ import annotations

from datetime import datetime, timedelta

from core.actor import Actor, Context
from core.events import Aggregate
from core.log.store import EventLog
from core.thread.intake import Intake
from core.thread.threads import Threads
from core.user.launch import Launch
from core.user.schedules import ScheduleCreated, ScheduleFired, ScheduleResumed, ScheduleRevised, SchedulesFired

GRAIN = timedelta(milliseconds=1)
"""Timers are cut to this: a timer is set so much later that it is never early."""
SOON = timedelta(milliseconds=250)
"""How long to wait for what is nearly due, if the clock of the timers is ahead of ours."""


class Scheduler(Actor[ScheduleCreated | ScheduleRevised | ScheduleResumed | ScheduleFired | SchedulesFired]):
    """The timer of a schedule is set by the fact that changed when it is due next. A user's schedules that are due at
    the same time share a timer, so that they fire in one fact, whatever their number. At every wake-up the nearest
    timer of the user is set again, so that one that came early, or twice, costs nothing, and none is missing.
    """

    name = "scheduler"

    def __init__(self, log: EventLog, threads: Threads, intake: Intake) -> None:
        self._launch = Launch(log, threads, intake)

    async def handle(
        self,
        event: ScheduleCreated | ScheduleRevised | ScheduleResumed | ScheduleFired | SchedulesFired,
        ctx: Context,
    ) -> None:
        user = ctx.record.aggregate.id
        match event:
            case ScheduleFired():  # its next timer is set by the wake-up that it was fired at
                await self._launch.launch(user, event.schedule, event.run_id)
            case SchedulesFired():
                await self._launch.launch_all(user, [one for one in event.decisions if isinstance(one, ScheduleFired)])
            case _:
                one = (await self._launch.schedules.load(user)).get(event.schedule)
                if one is not None and (due := one.next) is not None:
                    await ctx.wake_at(due + GRAIN, _key(due))

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        user, now = aggregate.id, datetime.fromisoformat(ctx.now())
        state = await self._launch.fire(user, now)
        if ahead := [due for one in state.values() if (due := one.next)]:
            nearest = min(ahead)
            await ctx.wake_at(max(nearest, now + SOON) + GRAIN, _key(nearest))
        await self._launch.cut(user, state)


def _key(due: datetime) -> str:
    """Of the timer of all that is due then."""
    return due.strftime("%Y%m%dT%H%M%S%f")
