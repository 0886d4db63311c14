"""What happens when a schedule is due: the decision to fire, once for every moment, and the run that follows from it.

Deciding and asking are two facts in two aggregates. Whoever finds the first without the second makes the second, with
the same ids, so that neither a crash in between nor two who do it at once can make two runs, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import structlog

from core.errors import Invalid, NotFound, Refused, Unavailable
from core.events import Aggregate, Event, RunRequested
from core.ids import assistant_id, stamp, uuid7
from core.log.store import EventLog
from core.thread.intake import Intake
from core.thread.state import Run
from core.thread.threads import Threads
from core.user import assistants, schedules
from core.user.schedules import (
    Firing,
    Plan,
    Schedule,
    ScheduleCreated,
    ScheduleFailed,
    ScheduleFired,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleRevised,
    Schedules,
    SchedulesFired,
    ScheduleSkipped,
)

log = structlog.get_logger("sika.schedules")

T = TypeVar("T")
R = TypeVar("R")

PATIENCE = timedelta(minutes=10)
"""How long a firing without a run counts as one whose run is about to be asked for."""
BATCH = 200
"""Schedules that are fired in one append."""
AT_ONCE = 32
"""Threads that are looked at together."""
BUSY = "the run before was not over"
ACTOR = "scheduler"


class Launch:
    """The users' schedules: changed by their users, fired and their runs asked for by the scheduler or a trigger."""

    def __init__(self, log: EventLog, threads: Threads, intake: Intake) -> None:
        self.schedules = schedules.aggregates(log)
        self._assistants = assistants.aggregates(log)
        self._threads = threads
        self._intake = intake

    async def all_of(self, user: str) -> Schedules:
        return await self.schedules.load(user)

    async def add(self, user: str, plan: Plan, *, enabled: bool = True, actor: str) -> Schedule:
        """Adds a schedule. Raises `Refused` if there are too many."""
        identity = uuid7()

        def decide(state: Schedules) -> Sequence[Event]:
            if len(state) >= schedules.MOST_SCHEDULES:
                raise Refused(f"at most {schedules.MOST_SCHEDULES} schedules")
            return [ScheduleCreated(schedule=identity, plan=plan, enabled=enabled)]

        return (await self.schedules.decide(user, decide, actor=actor))[0][identity]

    async def change(
        self, user: str, before: Schedule, plan: Plan | None = None, *, enabled: bool | None = None, actor: str
    ) -> Schedule:
        """Gives it another plan than before, pauses it, resumes it.

        Raises `NotFound`, or `Refused` if it was given another plan meanwhile.
        """
        identity = before.id

        def decide(state: Schedules) -> Sequence[Event]:
            schedule = _known(state, identity)
            if plan is not None and schedule.plan != before.plan:
                raise Refused(f"Schedule {identity} was changed by another request; try again")
            events: list[Event] = []
            if plan is not None and plan != schedule.plan:
                events.append(ScheduleRevised(schedule=identity, plan=plan))
            if enabled is not None and enabled != schedule.enabled:
                events.append((ScheduleResumed if enabled else SchedulePaused)(schedule=identity))
            return events

        return (await self.schedules.decide(user, decide, actor=actor))[0][identity]

    async def remove(self, user: str, identity: str, *, actor: str) -> None:
        """Removes a schedule; one that is not there is fine too. Its runs go on."""

        def decide(state: Schedules) -> Sequence[Event]:
            return [ScheduleRemoved(schedule=identity)] if identity in state else []

        await self.schedules.decide(user, decide, actor=actor)

    async def fire(self, user: str, now: datetime) -> Schedules:
        """Decide for each of the user's schedules that is due by now: that it fires, or is skipped. After an outage,
        once. Returns the schedules as they are then.
        """
        state = await self.schedules.load(user)
        due = [one for one in state.values() if (at := one.next) is not None and at <= now]
        for start in range(0, len(due), BATCH):
            state = await self._fire(user, due[start : start + BATCH], now)
        return state

    async def _fire(self, user: str, due: Sequence[Schedule], now: datetime) -> Schedules:
        """Fire these in one fact, as far as they are due still: everybody who hears of it reads it once."""
        ended = await concurrently(self._over, [one for one in due if one.plan.overlap == "skip"])
        over = {one.id for one in ended if one is not None}

        def decide(state: Schedules) -> Sequence[Event]:
            decisions = [event for one in due if (event := _firing(state.get(one.id), over, now)) is not None]
            return [SchedulesFired(decisions=decisions)] if len(decisions) > 1 else decisions

        return (await self.schedules.decide(user, decide, actor=ACTOR))[0]

    async def cut(self, user: str, state: Schedules) -> None:
        """Forget what the log of a user's schedules does not need any more, if that is much. What is after the last but
        one `SchedulesKept` stays: the runs of its firings may not have been asked for.
        """
        if not state.wants_cut():
            return
        before, old = state.kept_seq, state.kept_at

        def decide(state: Schedules) -> Sequence[Event]:
            return [state.kept()] if state.kept_seq == before else []

        await self.schedules.decide(user, decide, actor=ACTOR)
        if before and datetime.now(UTC) - datetime.fromisoformat(old) > PATIENCE:
            await self.schedules.log.purge(Aggregate(schedules.KIND, user), before=before)

    async def trigger(self, user: str, identity: str, *, actor: str) -> Firing:
        """Fire it now, whether or not it is due or paused, and ask for the run.

        The firing says if there could be no run. Raises `NotFound`, or `Refused` while a run of it is going on.
        """
        known = (await self.schedules.load(user)).get(identity)
        ended = await self._over(known) if known is not None else None
        over = {ended.id} if ended is not None else set()
        due = stamp(datetime.now(UTC))

        def decide(state: Schedules) -> Sequence[Event]:
            one = _known(state, identity)
            if _overlaps(one, over):
                raise Refused(f"Schedule {identity} has an active run")
            return [one.fire(due, manual=True)]

        state, _ = await self.schedules.decide(user, decide, actor=actor)
        fired = state[identity].fire(due, manual=True)
        with suppress(Unavailable):  # then the scheduler asks for it
            await self.launch(user, identity, fired.run_id)
        now = (await self.schedules.load(user)).get(identity, state[identity])
        firing = now.firing(fired.run_id) or state[identity].firing(fired.run_id)
        assert firing is not None
        return firing

    async def launch_all(self, user: str, fired: Sequence[ScheduleFired]) -> None:
        """Ask for the runs of these firings, as `launch` does."""
        await concurrently(lambda one: self.launch(user, one.schedule, one.run_id), fired)

    async def launch(self, user: str, identity: str, run: str) -> None:
        """Ask for the run of a firing, unless it is there, or cannot be. Repeating this is fine. If the schedule was
        removed meanwhile there is no run.
        """
        one = (await self.schedules.load(user)).get(identity)
        firing = one.firing(run) if one is not None else None
        if one is None or firing is None or firing.thread is None or firing.failed is not None:
            return
        try:
            asked = await self._request(user, one, firing)
            if one.is_own(firing):
                about = {"graph_id": assistants.DEFAULT, "assistant_id": assistant_id(asked.assistant)}
                about["schedule_id"] = identity
                await self._intake.create_thread(firing.thread, user=user, metadata=about, actor=ACTOR)
            await self._intake.request_run(firing.thread, run, asked, user=user, actor=ACTOR)
        except (Invalid, NotFound, Refused) as error:
            thread = await self._threads.load(firing.thread)
            if run in thread.runs or (one.is_own(firing) and thread.erased):
                return
            log.info("no run of a schedule", schedule=identity, reason=str(error))
            await self._fail(user, identity, run, str(error), for_ever=isinstance(error, NotFound))

    async def outcome(self, firing: Firing) -> tuple[str, Run | None]:
        """What became of a firing: `skipped`, `failed` (no run could be asked for), `queued` (it is about to be),
        `gone` (with its thread), or `run`, and the run.
        """
        if firing.run is None or firing.thread is None:
            return "skipped", None
        thread = await self._threads.load(firing.thread)
        if run := thread.runs.get(firing.run):
            return "run", run
        if firing.failed is not None:
            return "failed", None
        at = datetime.fromisoformat(firing.at)
        return ("gone" if thread.erased or datetime.now(UTC) - at > PATIENCE else "queued"), None

    async def _over(self, one: Schedule) -> Firing | None:
        """The last firing of a schedule, if nothing of it is going on any more."""
        last = one.last
        if last is None:
            return None
        kind, run = await self.outcome(last)
        return last if kind in ("failed", "gone") or (run is not None and not run.open) else None

    async def _request(self, user: str, one: Schedule, firing: Firing) -> RunRequested:
        asked = schedules.request(one, firing)
        if one.plan.assistant is None:
            return asked
        found = (await self._assistants.load(user)).get(one.plan.assistant)
        if found is None:
            raise NotFound(f"Assistant {one.plan.assistant} not found")
        return assistants.applied(found, asked)

    async def _fail(self, user: str, identity: str, run: str, reason: str, *, for_ever: bool) -> None:
        """Say that there is no run; and if there cannot be another either, that the schedule pauses."""

        def decide(state: Schedules) -> Sequence[Event]:
            one = state.get(identity)
            firing = one.firing(run) if one is not None else None
            if one is None or firing is None or firing.failed is not None:
                return []
            failed = ScheduleFailed(schedule=identity, run_id=run, reason=reason)
            return [failed, SchedulePaused(schedule=identity, reason=reason)] if for_ever and one.enabled else [failed]

        await self.schedules.decide(user, decide, actor=ACTOR)


async def concurrently(work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """The results of some work on each item, in their order; `AT_ONCE` at a time."""
    results: list[R] = []
    for start in range(0, len(items), AT_ONCE):
        results += await asyncio.gather(*map(work, items[start : start + AT_ONCE]))
    return results


def _known(state: Schedules, identity: str) -> Schedule:
    if identity not in state:
        raise NotFound(f"Schedule {identity} not found")
    return state[identity]


def _firing(one: Schedule | None, over: Collection[str], now: datetime) -> ScheduleFired | ScheduleSkipped | None:
    """What is decided about a schedule, if it is due."""
    due = one.next if one is not None else None
    if one is None or due is None or due > now:
        return None
    if _overlaps(one, over):
        return ScheduleSkipped(schedule=one.id, due=stamp(due), reason=BUSY)
    return one.fire(stamp(due))


def _overlaps(one: Schedule, over: Collection[str]) -> bool:
    """Whether its last run may be going on. `over`: ids of firings that are known to be over."""
    last = one.last
    return one.plan.overlap == "skip" and last is not None and last.failed is None and last.id not in over
