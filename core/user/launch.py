"""Firing of schedules: the decision, taken once for every due time, and the request of its run.

The decision and the request are two events in two aggregates. A reader of the first without the second appends the
second, with the same ids: neither a crash in between nor concurrent processes can make two runs, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from core.errors import Invalid, NotFound, Refused, Unavailable
from core.events import Aggregate, Event, RunOrigin, RunRequested
from core.identity.errors import Inactive
from core.ids import assistant_id, stamp, uuid7
from core.log.store import EventLog
from core.runs.intake import Intake
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
"""Time for which the run of a firing counts as about to be requested."""
BATCH = 200
"""Schedules that are fired in one append."""
AT_ONCE = 32
"""Threads that are read concurrently."""
BUSY = "the run before was not over"
ACTOR = "scheduler"


class Launch:
    """The users' schedules: changed by their users, fired by the scheduler or by a trigger."""

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
        """Changes the plan of a schedule, pauses it, resumes it.

        Raises `NotFound`, or `Refused` if its plan was changed meanwhile.
        """
        identity = before.id

        def decide(state: Schedules) -> Sequence[Event]:
            schedule = _existing(state, identity)
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
        """Removes a schedule, if it exists. Its runs go on."""

        def decide(state: Schedules) -> Sequence[Event]:
            return [ScheduleRemoved(schedule=identity)] if identity in state else []

        await self.schedules.decide(user, decide, actor=actor)

    async def fire(self, user: str, now: datetime) -> Schedules:
        """Fires or skips each of the user's schedules that is due by now; after an outage, once. Resumes those that
        wait for a time which only a wrong clock has seen. Returns the schedules after that.
        """
        state = await self.schedules.load(user)
        ahead = [schedule.id for schedule in state.values() if schedule.is_ahead(now)]
        for start in range(0, len(ahead), BATCH):
            batch = ahead[start : start + BATCH]
            state, _ = await self.schedules.decide(user, partial(_resumed, batch=batch, now=now), actor=ACTOR)
        due_schedules = [schedule for schedule in state.values() if (at := schedule.next) is not None and at <= now]
        for start in range(0, len(due_schedules), BATCH):
            state = await self._fire(user, due_schedules[start : start + BATCH], now)
        return state

    async def _fire(self, user: str, batch: Sequence[Schedule], now: datetime) -> Schedules:
        """Fires these in one event, as far as they are still due: its readers read it once."""
        skipping = [schedule for schedule in batch if schedule.plan.overlap == "skip"]
        over = {firing.id for firing in await concurrently(self._finished_firing, skipping) if firing is not None}

        def decide(state: Schedules) -> Sequence[Event]:
            decisions = [event for old in batch if (event := _firing(state.get(old.id), over, now)) is not None]
            return [SchedulesFired(decisions=decisions)] if len(decisions) > 1 else decisions

        return (await self.schedules.decide(user, decide, actor=ACTOR))[0]

    async def cut(self, user: str, state: Schedules) -> None:
        """Erases obsolete events of a user's schedules, if there are many. The events after the last but one
        `SchedulesKept` stay: the runs of their firings may not have been requested yet.
        """
        if not state.wants_cut():
            return
        before, old = state.kept_seq, state.kept_at

        def decide(state: Schedules) -> Sequence[Event]:
            return [state.snapshot()] if state.kept_seq == before else []

        await self.schedules.decide(user, decide, actor=ACTOR)
        if before and datetime.now(UTC) - datetime.fromisoformat(old) > PATIENCE:
            await self.schedules.log.erase(Aggregate(schedules.KIND, user), before=before)

    async def trigger(self, user: str, identity: str, run: str, *, actor: str) -> Firing:
        """Fires a schedule now, whether or not it is due or paused, and requests the run. It fires once for a `run`.

        The returned firing says if there could be no run. Raises `NotFound`, or `Refused` while a run of it is open.
        """
        schedule = (await self.schedules.load(user)).get(identity)
        ended = await self._finished_firing(schedule) if schedule is not None else None
        over = {ended.id} if ended is not None else set()
        due = stamp(datetime.now(UTC))

        def decide(state: Schedules) -> Sequence[Event]:
            schedule = _existing(state, identity)
            if schedule.firing(run) is not None:
                return []
            if _overlaps(schedule, over):
                raise Refused(f"Schedule {identity} has an active run")
            return [schedule.trigger(due, run)]

        state, _ = await self.schedules.decide(user, decide, actor=actor)
        with suppress(Unavailable):  # then the scheduler requests it
            await self.launch(user, identity, run)
        now = (await self.schedules.load(user)).get(identity, state[identity])
        firing = now.firing(run) or state[identity].firing(run)
        assert firing is not None
        return firing

    async def launch_all(self, user: str, fired: Sequence[ScheduleFired]) -> None:
        """Requests the runs of these firings, as `launch` does."""
        await concurrently(lambda event: self.launch(user, event.schedule, event.run_id), fired)

    async def launch(self, user: str, identity: str, run: str) -> None:
        """Requests the run of a firing, unless it exists or has failed. May be repeated. A schedule that was removed
        meanwhile has no run.
        """
        schedule = (await self.schedules.load(user)).get(identity)
        firing = schedule.firing(run) if schedule is not None else None
        if schedule is None or firing is None or firing.thread is None or firing.failed is not None:
            return
        try:
            request = await self._request(user, schedule, firing)
            request = msgspec.structs.replace(request, wanted=RunOrigin(schedules.KIND, user, run))
            if not schedule.is_own(firing) and (await self._threads.load(firing.thread)).created_at > firing.at:
                raise NotFound(f"Thread {firing.thread} was deleted")  # this one has its id
            if schedule.is_own(firing):
                metadata = {"graph_id": assistants.DEFAULT, "assistant_id": assistant_id(request.assistant)}
                metadata["schedule_id"] = identity
                await self._intake.create_thread(firing.thread, user=user, metadata=metadata, actor=ACTOR)
            await self._intake.request_run(firing.thread, run, request, user=user, actor=ACTOR)
        except (Invalid, NotFound, Refused) as error:
            thread = await self._threads.load(firing.thread)
            if run in thread.runs or (schedule.is_own(firing) and thread.erased):
                return
            log.info("no run of a schedule", schedule=identity, reason=str(error))
            await self._fail(user, identity, run, str(error), for_ever=isinstance(error, NotFound | Inactive))

    async def outcome(self, firing: Firing) -> tuple[str, Run | None]:
        """Returns the outcome of a firing: `skipped`, `failed` (the run could not be requested), `queued` (it is about
        to be), `gone` (with its thread), or `run`, with the run.
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

    async def _finished_firing(self, schedule: Schedule) -> Firing | None:
        """Returns the last firing of a schedule, if it has no open run."""
        last = schedule.last
        if last is None:
            return None
        kind, run = await self.outcome(last)
        return last if kind in ("failed", "gone") or (run is not None and not run.open) else None

    async def _request(self, user: str, schedule: Schedule, firing: Firing) -> RunRequested:
        request = schedules.request(schedule, firing)
        if schedule.plan.assistant is None:
            return request
        assistant = (await self._assistants.load(user)).get(schedule.plan.assistant)
        if assistant is None:
            raise NotFound(f"Assistant {schedule.plan.assistant} not found")
        return assistants.applied(assistant, request)

    async def _fail(self, user: str, identity: str, run: str, reason: str, *, for_ever: bool) -> None:
        """Records that there is no run; pauses the schedule if there can be none later, either."""

        def decide(state: Schedules) -> Sequence[Event]:
            schedule = state.get(identity)
            firing = schedule.firing(run) if schedule is not None else None
            if schedule is None or firing is None or firing.failed is not None:
                return []
            pause = [SchedulePaused(schedule=identity, reason=reason)] if for_ever and schedule.enabled else []
            return [ScheduleFailed(schedule=identity, run_id=run, reason=reason), *pause]

        await self.schedules.decide(user, decide, actor=ACTOR)


async def concurrently(work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Returns the results of some work on each item, in their order; `AT_ONCE` at a time."""
    results: list[R] = []
    for start in range(0, len(items), AT_ONCE):
        results += await asyncio.gather(*map(work, items[start : start + AT_ONCE]))
    return results


def _existing(state: Schedules, identity: str) -> Schedule:
    if identity not in state:
        raise NotFound(f"Schedule {identity} not found")
    return state[identity]


def _firing(schedule: Schedule | None, over: Collection[str], now: datetime) -> ScheduleFired | ScheduleSkipped | None:
    """Returns the decision about a schedule, if it is due."""
    due = schedule.next if schedule is not None else None
    if schedule is None or due is None or due > now:
        return None
    if _overlaps(schedule, over):
        return ScheduleSkipped(schedule=schedule.id, due=stamp(due), reason=BUSY)
    return schedule.fire(stamp(due))


def _resumed(state: Schedules, batch: Sequence[str], now: datetime) -> list[Event]:
    """Returns the events that have schedules due from now on, as far as they still wait for a time ahead."""
    return [ScheduleResumed(schedule=name) for name in batch if name in state and state[name].is_ahead(now)]


def _overlaps(schedule: Schedule, over: Collection[str]) -> bool:
    """True if its last run may be open. `over`: ids of finished firings."""
    last = schedule.last
    return schedule.plan.overlap == "skip" and last is not None and last.failed is None and last.id not in over
