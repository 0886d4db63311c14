"""Fires schedules when they are due: keeps their timers, and requests their runs."""

from __future__ import annotations

from datetime import datetime, timedelta

from core.actor import Actor, Context
from core.events import Aggregate
from core.log.store import EventLog
from core.runs.intake import Intake
from core.thread.threads import Threads
from core.user.launch import Launch
from core.user.schedules import ScheduleCreated, ScheduleFired, ScheduleResumed, ScheduleRevised, SchedulesFired

SOON = timedelta(milliseconds=250)
"""Least delay of the next timer, because the clock of the timers may be ahead."""


class Scheduler(Actor[ScheduleCreated | ScheduleRevised | ScheduleResumed | ScheduleFired | SchedulesFired]):
    """Sets the timer of a schedule after each event that changes its next time. Schedules of a user with the same time
    share a timer, and fire in one event. Each wake-up sets the user's next timer again, so that early, repeated and
    lost timers are harmless.
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
            case ScheduleFired():  # the wake-up that fired it sets its next timer
                await self._launch.launch(user, event.schedule, event.run_id)
            case SchedulesFired():
                await self._launch.launch_all(user, [d for d in event.decisions if isinstance(d, ScheduleFired)])
            case _:
                schedule = (await self._launch.schedules.load(user)).get(event.schedule)
                if schedule is not None and (moment := schedule.next) is not None:
                    await ctx.wake_at(moment, _key(moment))

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        user, now = aggregate.id, datetime.fromisoformat(ctx.now())
        state = await self._launch.fire(user, now)
        if ahead := [schedule.next for schedule in state.values() if schedule.next]:
            nearest = min(ahead)
            await ctx.wake_at(max(nearest, now + SOON), _key(nearest))
        await self._launch.cut(user, state)


def _key(moment: datetime) -> str:
    """Returns the key of the timer of a moment."""
    return moment.strftime("%Y%m%dT%H%M%S%f")
