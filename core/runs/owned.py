"""A run that a process owns: every append is guarded by the ownership (`core.runs.run`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import anyio
import structlog

from core import traces
from core.bus.queue import Wakeup, WorkQueue
from core.bus.rpc import PROGRESS_CHARACTERS
from core.config.redaction import redactor
from core.control import sendable
from core.errors import OwnershipLost, Unavailable
from core.events import (
    Event,
    Json,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    RunRequested,
    RunStarted,
    ToolCompleted,
    ToolRequested,
)
from core.log.feed import Listener
from core.runs.finish import finished
from core.runs.journal import CallRef, Complete, outcome_of, tool_message
from core.runs.previews import Previewer, Progress, Pump
from core.thread.state import Run, ThreadState
from core.thread.threads import Threads, folded
from core.thread.values import unanswered
from core.tools import Effect

log = structlog.get_logger("sika.run")

E = TypeVar("E", bound=Event)
OUTCOME_SECONDS = 2.0
"""Timeout of an append after its run was cancelled."""
UNREAD_SECONDS = 5.0
"""Pause after which a run that a newer version has written to is offered to a process again."""


class Suspended(Unavailable):
    """The run was given back; somebody takes it up again after so many seconds."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


class Unread(Suspended):
    """The run has a fact of a newer version, of this type: only a process of that version goes on with it."""

    def __init__(self, run: str, event_type: str) -> None:
        super().__init__(f"run {run}: its {event_type} is not known to this version", UNREAD_SECONDS)
        self.type = event_type


class Worker:
    """The process of a run actor, as far as runs need it."""

    def __init__(self, threads: Threads, queue: WorkQueue, pump: Pump, name: str) -> None:
        self.threads = threads
        self.queue = queue
        self.pump = pump
        self.name = name
        self.owned: set[str] = set()
        """Ids of the runs that are being worked on here."""

    async def tip(self, wakeup: Wakeup) -> int:
        """Returns the last sequence of a wake-up's thread."""
        return await self.threads.log.tip(wakeup.aggregate)


class OwnedRun:
    """A run this process owns, as long as `append` does not raise `OwnershipLost`."""

    def __init__(self, actor: str, process: Worker, thread_id: str, state: ThreadState, run: Run) -> None:
        self._actor = actor
        self._threads = process.threads
        self._queue = process.queue
        self._lapses = process.queue.lapses
        self._pump = process.pump
        self._lock = asyncio.Lock()
        self.state = state
        self.id = run.id
        self.thread_id = thread_id
        self.worker = process.name
        self.attempt = run.attempt + 1
        self.claimed = False
        self.ending_unread = False
        """The run is failed as no process can read all of it."""
        self.broken: OwnershipLost | Unavailable | None = None
        """Why nothing can be decided about the run here any more."""
        self.unstored = False
        """The log did not answer: nothing can be appended."""
        self.idle: Callable[[], AbstractContextManager[None]] = nullcontext
        """Gives the run's slot to others while it waits for other runs of its actor."""

    @property
    def run(self) -> Run:
        return self.state.runs[self.id]

    @property
    def request(self) -> RunRequested:
        return self.run.request

    @property
    def stopping(self) -> bool:
        return self.run.cancel is not None

    async def claim(self, event: RunStarted) -> None:
        """Appends `run.started`. Raises `Conflict` if the thread has changed since it was folded."""
        records = await self._threads.log.append(
            self._threads.aggregate(self.thread_id),
            [event],
            expected=self.state.seq,
            actor=self._actor,
            run=self.id,
            cause=self.run.last_id,
            traceparent=traces.header(self.request),
        )
        self.state = self._threads.fold(self.thread_id, records, self.state)
        self.claimed = True

    async def append(self, event: Event, cause: str | None = None, *, unsteered: bool = False) -> bool:
        """Appends one event of the run, also if something else was written to the thread. With `unsteered`, appends
        only if no steering message is pending. Returns whether the event was appended. Raises `OwnershipLost` (also
        after the run's end), `Unavailable`.

        A cancellation waits for the outcome: what is decided next must know of an event that is in the log already.
        """
        return await finished(self._append(event, cause, unsteered), OUTCOME_SECONDS)

    async def _append(self, event: Event, cause: str | None, unsteered: bool) -> bool:
        def decide(state: ThreadState) -> Sequence[Event]:
            self.adopt(state)
            return [] if unsteered and self.run.steers else [event]

        async with self._lock:
            if not self.run.open:
                raise OwnershipLost(f"run {self.id}: has ended")
            try:
                self.state, records = await self._threads.decide(
                    self.thread_id,
                    decide,
                    actor=self._actor,
                    run=self.id,
                    cause=cause or self.run.last_id,
                    known=folded(self.state),
                )
            except Unavailable:
                self.unstored = True
                raise
            return bool(records)

    def adopt(self, state: ThreadState) -> None:
        """Continues from a newer state if the run is still ours in it. Raises `OwnershipLost`, and `Unread` if it has a
        fact of a newer version.
        """
        run = state.runs.get(self.id)
        if run is None or not run.open:
            raise OwnershipLost(f"run {self.id}: ended by somebody else")
        mine = (run.attempt, run.worker) == (self.attempt, self.worker) if self.claimed else run.attempt < self.attempt
        if not mine:
            raise OwnershipLost(f"run {self.id}: taken over by {run.worker}")
        if run.unread and run.cancel is None and not self.ending_unread:
            raise Unread(self.id, run.unread)
        if state.seq > self.state.seq:
            self.state = state

    async def watch(self, listener: Listener, scope: anyio.CancelScope) -> None:
        """Follows the thread; cancels the scope when the run is asked to stop or taken over."""
        outdated = False
        while True:
            try:
                records, lost = await (listener.drain() if outdated else listener.take())
                newest = records[-1].seq if records else 0
                outdated = outdated or lost or newest > self.state.seq
                if outdated:
                    async with self._lock:
                        self.adopt(await self._threads.load(self.thread_id, at_least=newest or None))
                    outdated = False
                if self.stopping:
                    scope.cancel()
            except (OwnershipLost, Unread) as error:
                self.broken = error
                scope.cancel()
                return
            except Unavailable as error:
                log.warning("watching again", run=self.id, error=str(error))
                await asyncio.sleep(1)

    async def confirm(self) -> None:
        lapses = self._queue.lapses
        if lapses != self._lapses:
            async with self._lock:
                self.adopt(await self._threads.load(self.thread_id))
            self._lapses = lapses

    # ── journal ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def model_recorded(self, request: str) -> ModelCompleted | None:
        """A resumed run begins with the answer whose tool calls are open."""
        if not unanswered(self.state.messages):
            return None
        answer = next(message for message in reversed(self.state.messages) if message["type"] == "ai")
        return ModelCompleted(message=answer)

    async def model_completed(self, event: ModelCompleted) -> None:
        await self.append(event)

    async def model_failed(self, event: ModelFailed) -> None:
        await self.append(event)

    async def fact(self, kind: type[E], key: str, make: Callable[[], Awaitable[E]]) -> E:
        event = redactor.struct(await make())
        await self.append(event)
        return event

    async def steered(self, complete: Complete) -> list[Message]:
        messages = [] if unanswered(self.state.messages) else list(self.run.steers)
        if messages:
            messages = await complete(messages)
            await self.append(MessageAdded(messages=messages))
        return messages

    def answers(self, call_id: str) -> Sequence[Any]:
        return self.run.answers.get(call_id, ())

    async def tool_requested(self, call_id: str, name: str, effect: Effect, args: Json) -> ToolCompleted | None:
        await self.confirm()
        if done := outcome_of(self.state, call_id):
            return done
        intent = self.run.intents.get(call_id)
        if intent is None:
            of_answer = next((c["args"] for c in unanswered(self.state.messages) if c["id"] == call_id), None)
            await self.append(
                ToolRequested(call_id=call_id, name=name, effect=effect, args=None if args == of_answer else args),
                self.run.said,
            )
            return None
        if intent.event.effect != "once":
            return None
        text = (
            f"Error: the outcome of this {name} call is unknown: the server stopped while it ran. "
            "It was not repeated. Check what it did before trying again."
        )
        outcome = ToolCompleted(
            call_id=call_id, message=tool_message(CallRef.of(self, call_id), name, text, "error"), unknown=True
        )
        await self.append(outcome, intent.id)
        return outcome

    async def tool_completed(self, event: ToolCompleted) -> None:
        intent = self.run.intents.get(event.call_id)
        await self.append(event, intent.id if intent else None)

    def preview(self, message: str) -> Previewer | None:
        return self._pump.message(self.id, message, after=self.state.seq)

    async def progress(self, call_id: str, name: str, text: str, *, stage: bool = False) -> None:
        tail = sendable(text[-PROGRESS_CHARACTERS:])
        await self._pump.progress(self.id, Progress(call_id=call_id, name=name, text=tail, stage=stage))
