"""The context of a handler: the event, and the services of the runtime. See `core.actor.Context`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from core import traces
from core.actor import Actor
from core.bus.queue import WorkQueue
from core.errors import Conflict, Invalid, Refused, Unavailable
from core.events import Aggregate, Event, Record
from core.ids import now, uuid7
from core.log.kinds import KIND
from core.log.repository import DECIDE_TRIES, Decision, Repository, back_off
from core.log.store import EventLog
from core.runtime.answers import Answers
from core.runtime.ordering import queue_of
from core.runtime.own_state import own_state
from core.thread.threads import Threads


class Services(Protocol):
    """The parts of a process that contexts need; `core.runtime.system.System` has them."""

    log: EventLog
    threads: Threads
    answers: Answers
    queue: WorkQueue
    states: dict[str, Repository[Any]]

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any: ...

    async def erase_state(self, actor: Actor[Any], aggregate: Aggregate) -> None: ...


class HandlerContext:
    """The handler's context: see `core.actor.Context`."""

    def __init__(self, system: Services, actor: Actor[Any], aggregate: Aggregate, record: Record | None = None) -> None:
        self._system = system
        self._handler = actor
        self._actor = actor.name
        self._own = aggregate
        self._record = record
        self._answers: set[tuple[str, Aggregate]] = set()
        """The aggregates in which the event was answered in this handling, and how."""

    @property
    def record(self) -> Record:
        if self._record is None:
            raise Refused("a timer has no event")
        return self._record

    async def read(
        self, aggregate: Aggregate | None = None, *, after: int = 0, upto: int | None = None
    ) -> Sequence[Record]:
        return [record async for record in self._system.log.read(aggregate or self._own, after=after, upto=upto)]

    async def load(self, repository: Repository[Any] | None = None) -> Any:
        states = repository or self._threads()
        own = self._record if states.kind == self._own.kind else None
        return await states.load(self._own.id, at_least=own.seq if own else None)

    async def decide(
        self,
        decision: Decision[Any],
        repository: Repository[Any] | None = None,
        *,
        run: str | None = None,
        cause: str | None = None,
    ) -> tuple[Any, list[Record]]:
        cause = cause or self._cause
        states = repository or self._threads()
        return await states.decide(self._own.id, decision, actor=self._actor, run=run, cause=cause)

    def _threads(self) -> Threads:
        if self._own.kind != KIND:
            raise Invalid(f"{self._own} is not a thread: name its repository")
        return self._system.threads

    async def state(self) -> Any:
        return await self._own_states().load(own_state(self._actor, self._own).id)

    async def update(self, decision: Decision[Any]) -> Any:
        states, target = self._own_states(), own_state(self._actor, self._own)
        self._once(target, "update")
        async with self._system.log.turns.turn(target):
            return await self._update(states, target, decision)

    def _once(self, target: Aggregate, what: str) -> None:
        """Raises `Invalid` for a second answer to an event in one aggregate: after a crash between them the first would
        count as the whole.
        """
        if self._record is None:
            return
        if (what, target) in self._answers:
            raise Invalid(f"actor {self._actor}: a second `{what}` for {target}; pass all events to one call")
        self._answers.add((what, target))

    async def _update(self, states: Repository[Any], target: Aggregate, decision: Decision[Any]) -> Any:
        for attempt in range(DECIDE_TRIES):
            before = await states.folded(target.id)
            if await self._answered(target) or not (events := decision(before.state)):
                return (await states.folded(target.id)).state
            try:
                state, _ = await states.append(
                    target.id, before, events, actor=self._actor, run=self._run, cause=self._cause
                )
            except Conflict:
                if await self._erased():
                    states.forget(target.id)  # another process has erased all of it
                await back_off(attempt)
                continue
            if not await self._erased():
                return state
            await self._system.erase_state(self._handler, self._own)
            return (await states.folded(target.id)).state
        raise Unavailable(f"{target}: too many writers at once")

    async def _erased(self) -> bool:
        """Tells whether the thread being handled was erased. Its own state was then erased, too, or is about to be."""
        return self._own.kind == KIND and (await self._system.threads.load(self._own.id)).erased

    async def _answered(self, target: Aggregate) -> bool:
        """Tells whether the event being handled was answered in an aggregate by now."""
        if self._record is None:
            return False
        return (await self._system.answers.after(target, self._record.seq)).by(self._actor, self._record.id)

    @property
    def _cause(self) -> str | None:
        return self._record.id if self._record else None

    @property
    def _run(self) -> str | None:
        return self._record.run if self._record else None

    def _own_states(self) -> Repository[Any]:
        states = self._system.states.get(self._actor)
        if states is None:
            raise Invalid(f"actor {self._actor}: has no state; set `initial` and `apply`")
        return states

    async def append(self, *events: Event, aggregate: Aggregate | None = None) -> None:
        target = aggregate or self._own
        self._once(target, "append")
        async with self._system.log.turns.turn(target):
            await self._append(target, events)

    async def _append(self, target: Aggregate, events: Sequence[Event]) -> None:
        for attempt in range(DECIDE_TRIES):
            expected = await self._unanswered(target)
            if expected is None:
                return
            try:
                await self._system.log.append(
                    target,
                    events,
                    expected=expected,
                    actor=self._actor,
                    run=self._run,
                    cause=self._cause,
                    traceparent=self._traceparent(target, self._run),
                )
                return
            except Conflict:
                await back_off(attempt)
        raise Unavailable(f"{target}: too many writers at once")

    async def _unanswered(self, target: Aggregate) -> int | None:
        """Returns the sequence of the aggregate's last event; None if the event being handled was answered there. An
        answer comes after it in the stream, so nothing before it is read.
        """
        log, record = self._system.log, self._record
        while record is not None:
            later = await self._system.answers.after(target, record.seq)
            if later.by(self._actor, record.id):
                return None
            last = later.last or (record.seq if target == self._own else await log.tip(target))
            if later.last or last <= record.seq:
                return last
        return await log.tip(target)

    def _traceparent(self, target: Aggregate, run: str | None) -> str | None:
        """Returns that of a run, if its thread is in memory: the lead has just been at it."""
        state = self._system.threads.cached(target.id) if run and target.kind == KIND else None
        known = state.runs.get(run or "") if state else None
        return traces.header(known.request) if known else None

    async def wake_at(self, when: datetime, key: str, aggregate: Aggregate | None = None) -> None:
        target = aggregate or self._own
        await self._system.queue.wake_at(when, queue_of(self._handler, target), target, key=key)

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        return await self._system.call(actor, request)

    def now(self) -> str:
        return now()

    def new_id(self) -> str:
        return uuid7()
