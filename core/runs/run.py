"""A run: claimed, recorded, settled, ended.

Theory of operation
-------------------
*Claim.* A worker owns a run by appending `run.started` under the log's guard. Everybody else's guard is stale from
then on, so a worker that was frozen and wakes up cannot append any more: it reads, finds another worker's
`run.started`, and stops (`OwnershipLost`). Liveness comes from the wake-up: it stays un-acked while the run is worked
on, and is delivered to another worker when its lease ends. `run.started` names the wake-up (`lease`): it distinguishes
a second wake-up of a thread that is being worked on from the redelivery of the first. It names the delivery, too
(`delivery`), so that only a later one takes the run over: a frozen process that wakes up finds deliveries in its
socket that others have superseded. The owner looks for further requested runs before it acks; as its last append was
guarded, a request it did not see must have come after, with a wake-up of its own.

*Prepare.* How a run is done is decided once per attempt (`Prepared`): what `run.started` says of it is what is done.

*Wake up.* A process that was held up for longer than a lease may have lost its runs without knowing. Appends find out
by their guard; before something that no guard covers (asking a model, repeating a call) the owner looks at the log
(`confirm`).

*Record.* What the model said, what a tool is about to do, and what came of it are appended as they happen. Nothing
else is kept.

*Settle.* Resuming is starting from the folded state. Outcomes that are recorded are not asked for again. An intent
without an outcome is treated by its effect: `pure` and `idempotent` run again (the sandbox keeps a record per call
id, so a command that ran answers with what it did), `once` is answered to the model as unknown.

*Versions.* A process that meets a fact of the run whose type it does not know gives the run back, uncounted: it would
go on without what the fact says. A process that knows it goes on. If there is none for an hour, the run fails.

*Fail.* What goes wrong in preparing or doing a run fails that run (`run.failed`). `Unavailable` does not: the run is
given back (`run.suspended`) and taken up again after a pause, and such an attempt is not counted.

*Count.* What other aggregates have to know of a run (what it used) is written before its last event (`before_end`): a
worker that dies between the two leaves an open run, which somebody takes up, and does it again.

*Interrupt.* A request with the strategy `interrupt` cancels all open runs. One of them that had not begun is claimed
before it ends, as its claim writes its input: what people have said stays in the conversation.

*End.* Cancelling first closes what is open: a cut-off answer is kept as far as it was said, open tool calls get an
answer that says so.

Rejected: re-executing the run's code against a journal on resume (Temporal, Restate): it diverges after every upgrade
and change of configuration. Here that is a debugging tool (`core.runs.replay`), where a divergence is news and not an
outage.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, TypeVar

import anyio
import msgspec
import structlog
from structlog.contextvars import bind_contextvars

from core.actor import Actor
from core.bus.queue import Wakeup
from core.config.redaction import redactor
from core.control import sendable
from core.errors import Conflict, OwnershipLost, SikaError, Unavailable, sentence_of
from core.events import (
    Event,
    Json,
    Message,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunRolledBack,
    RunStarted,
    RunSuspended,
    ToolCompleted,
)
from core.ids import uuid7
from core.log.feed import Listener
from core.log.kinds import KIND
from core.log.repository import DECIDE_TRIES, back_off
from core.runs.journal import CallRef, Failed, Paused, tool_message
from core.runs.owned import OwnedRun, Suspended, Unread, Worker
from core.thread.state import Run, ThreadState
from core.thread.usage import APOLOGY
from core.thread.values import unanswered

log = structlog.get_logger("sika.run")

S = TypeVar("S")
SUSPENDED_SECONDS = (1.0, 5.0, 15.0)
"""Pauses of a run that was given back, by how often in a row."""
STALLED_ATTEMPTS = 6
"""A run that was started so often without getting anything done kills its workers: it is failed instead. One that
waits for a subagent is not: the subagent has a limit of its own.
"""
UNREAD_LIMIT = 3600.0
"""Seconds for which a run with a fact of a newer version is left to processes of that version. Then it fails."""
STALLED_SECONDS = (0.0, 0.0, 0.0, 2.0, 5.0, 15.0)
"""Pauses after the last start, by the number of such starts: runs that died with another one get away from it."""


class TooLong(SikaError):
    """The run did not come to an end in time."""

    code = "too_long"


@dataclass(frozen=True, slots=True)
class Prepared(Generic[S]):
    """The preparation of one attempt at a run."""

    setup: S
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `run.started`: `model`, `prompt`, `config`, `agent`, `skills`; at the first attempt also `prepared`."""


class RunActor(Actor[RunRequested]):
    """An actor that works through the runs of a thread, one at a time. Subclasses implement `perform`."""

    kind = KIND
    proof = RunStarted
    run_seconds: ClassVar[float] = 86_400.0
    """Deadline of one attempt: what hangs for ever must not keep its place for ever."""

    async def prepare(self, run: OwnedRun) -> Prepared[Any]:
        """Decides how the run is done, before it is claimed. An error fails the run; `Unavailable` does not."""
        return Prepared(None)

    @abstractmethod
    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        """Does the run: returns when it is complete, raises if it failed. Called again, with the same preparation, if
        somebody steered the run at its end. Cancelled when the run is to stop or the process drains.
        """

    def deadline(self, run: OwnedRun) -> tuple[float, float]:
        """Returns the most seconds that a run may take, and how many an attempt that begins now has of them."""
        return self.run_seconds, self.run_seconds

    async def before_end(self, run: OwnedRun) -> None:
        """Called before the run's last event, however it ends; again if that event is not appended. `Unavailable`
        gives the run back.
        """

    async def stopped(self, run: OwnedRun, open_calls: list[Json]) -> None:
        """The run stops, at a person's wish or by an error, while these tool calls are open: end their effects."""

    async def work(self, wakeup: Wakeup, worker: Worker, *, deadly: bool = False) -> None:
        """Do everything there is to do on the wake-up's thread. Returns when it is done, or is somebody else's.

        `deadly`: earlier attempts ended their processes before they began with a run: the next one is failed.
        """
        thread_id = wakeup.aggregate.id
        fresh = wakeup.delivery > 1 or not wakeup.hint.seq
        state, conflicts = await worker.threads.load(thread_id, at_least=None if fresh else wakeup.hint.seq), 0
        while conflicts < DECIDE_TRIES:
            try:
                run = await self._next(state, wakeup, worker)
                if run is None:
                    return
                if deadly and run.cancel is None:
                    state, deadly = await self._stall(run, state, wakeup, worker), False
                    continue
                state, conflicts = await self._one(run, state, wakeup, worker), 0
            except Conflict:
                await back_off(conflicts)
                state, conflicts = await worker.threads.load(thread_id), conflicts + 1
        raise Unavailable(f"thread/{thread_id}: too many writers at once")

    async def _next(self, state: ThreadState, wakeup: Wakeup, worker: Worker) -> Run | None:
        """The run to work on now, if it is this wake-up's to work on."""
        active = state.active
        if active is not None:
            if active.id in worker.owned:
                return None
            if active.lease != wakeup.seq:
                return None if await worker.queue.exists(active.lease) else active
            if wakeup.order <= active.delivery:
                raise OwnershipLost(f"run {active.id}: a later delivery has it ({active.worker})")
            return active
        for run in state.queued:
            if (when := not_yet(run)) is None:
                return run
            await worker.queue.wake_at(when, self.name, wakeup.aggregate, key=run.id)
        return None

    async def _stall(self, run: Run, state: ThreadState, wakeup: Wakeup, worker: Worker) -> ThreadState:
        """Fails a run that was never begun."""
        owned = OwnedRun(self.name, worker, wakeup.aggregate.id, state, run)
        await owned.append(RunFailed(error="Stalled", text="Preparing the run stopped its worker every time."))
        return owned.state

    async def _one(self, run: Run, state: ThreadState, wakeup: Wakeup, worker: Worker) -> ThreadState:
        """Claim a run and bring it to its end. Raises `Conflict` if the claim failed, `OwnershipLost` if it was taken
        away.
        """
        bind_contextvars(run=run.id)
        owned = OwnedRun(self.name, worker, wakeup.aggregate.id, state, run)
        owned.idle = wakeup.idle
        worker.owned.add(run.id)
        try:
            with worker.threads.log.listen(wakeup.aggregate) as listener:  # before the claim: it misses nothing
                return await self._own(owned, listener, wakeup, worker)
        finally:
            worker.owned.discard(run.id)
            newest = owned.state.runs.get(run.id)
            worker.pump.end(run.id, over=newest is None or not newest.open)

    async def _own(self, owned: OwnedRun, listener: Listener, wakeup: Wakeup, worker: Worker) -> ThreadState:
        run, prepared = owned.run, None
        if run.unread and _seconds_until(run.unread_at) < -UNREAD_LIMIT:
            return await self._fail_unread(owned)
        if run.cancel is None:
            owned.adopt(owned.state)
            if run.stalled >= STALLED_ATTEMPTS and all(part.ended for part in run.subagents.values()):
                text = (
                    f"The run was started {run.stalled} times in a row and stopped its worker every time; "
                    "it is not tried again."
                )
                await owned.append(RunFailed(error="Stalled", text=text))
                return owned.state
            if (pause := _pause(run)) > 0:
                raise Suspended(f"run {run.id}: {run.stalled} starts in a row got nothing done", pause)
            prepared = await self._begin(owned, _begun(owned, wakeup, worker))
        elif run.cancel == "interrupt" and not run.attempt and run.request.input:
            await owned.claim(_begun(owned, wakeup, worker))  # interrupted before it began: its input stays
        worker.pump.begin(owned.id)
        while True:
            outcome = None if prepared is None or owned.stopping else await self._attempt(owned, prepared, listener)
            if isinstance(owned.broken, Unavailable) and not (owned.unstored or isinstance(owned.broken, Unread)):
                raise await self._suspended(owned, owned.broken)
            if owned.broken:
                raise owned.broken
            if isinstance(outcome, RunFailed):
                await self.stopped(owned, self._open_calls(owned))
                await self._close_calls(owned, "Error: the run failed before this was done.")
            end = outcome or await self._stop(owned)
            await self._before_end(owned)
            if await owned.append(end, unsteered=isinstance(end, RunCompleted)):
                return owned.state

    async def _fail_unread(self, owned: OwnedRun) -> ThreadState:
        """Ends a run that no process of its version has taken up."""
        owned.ending_unread = True
        text = f"The run was begun by a newer version of the server ({owned.run.unread}), which is gone."
        await owned.append(RunFailed(error="NewerVersion", text=text))
        return owned.state

    async def _begin(self, owned: OwnedRun, begun: RunStarted) -> Prepared[Any] | RunFailed:
        """Prepares and claims the run. One that cannot be prepared is claimed all the same, and fails."""
        try:
            prepared = await self.prepare(owned)
            await owned.claim(msgspec.structs.replace(begun, **prepared.facts))
            return prepared
        except (Conflict, OwnershipLost, Unavailable):
            raise
        except Exception as error:
            failure = _failed(owned, error)
            await owned.claim(begun)
            return failure

    async def _attempt(self, owned: OwnedRun, prepared: Prepared[Any] | RunFailed, listener: Listener) -> Event | None:
        """Does the run. Returns its last event, or None if it was stopped."""
        if isinstance(prepared, RunFailed):
            return prepared
        outcome: Event | None = None
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(owned.watch, listener, scope)
                try:
                    seconds, left = self.deadline(owned)
                    async with asyncio.timeout(left) as deadline:
                        await self.perform(owned, prepared)
                    outcome = RunCompleted()
                except (Paused, Failed) as end:
                    outcome = end.event
                except (OwnershipLost, Unavailable) as error:
                    owned.broken = error
                except TimeoutError as error:
                    late = TooLong(f"the run had not ended after {seconds:g} s")
                    outcome = _failed(owned, late if deadline.expired() else error)
                except Exception as error:  # of a model, a tool, a policy: the run failed, the worker did not
                    outcome = _failed(owned, error)
            tasks.cancel_scope.cancel()
        return outcome

    async def _before_end(self, owned: OwnedRun) -> None:
        try:
            await self.before_end(owned)
        except Unavailable as error:
            raise await self._suspended(owned, error) from error
        except Exception:  # what only counts does not keep a run from its end
            log.exception("run not counted", run=owned.id, thread=owned.thread_id)

    async def _suspended(self, owned: OwnedRun, error: Unavailable) -> Suspended:
        """Give the run back, and say why."""
        pause = SUSPENDED_SECONDS[min(owned.run.suspensions, len(SUSPENDED_SECONDS) - 1)]
        await owned.append(RunSuspended(reason=str(error)))
        return Suspended(str(error), pause)

    async def _stop(self, owned: OwnedRun) -> Event:
        """Close what is open, as a person asked the run to stop."""
        await self.stopped(owned, self._open_calls(owned))
        if owned.run.cancel == "rollback":
            return RunRolledBack()
        await self._close_calls(owned, "Error: cancelled by the user before it finished.")
        return RunCancelled()

    async def _close_calls(self, owned: OwnedRun, text: str) -> None:
        """No provider takes a conversation with calls that have no outcome."""
        for call in self._open_calls(owned):
            message = tool_message(CallRef.of(owned, call["id"]), call["name"], text, "error")
            await owned.tool_completed(ToolCompleted(call_id=call["id"], message=message))

    def _open_calls(self, owned: OwnedRun) -> list[Json]:
        return unanswered(owned.state.messages) if owned.run.attempt else []


def not_yet(run: Run) -> datetime | None:
    """Returns the time before which a requested run is not to be started; None if it has come."""
    if run.cancel is not None or not run.request.not_before or _seconds_until(run.request.not_before) <= 0:
        return None
    return datetime.fromisoformat(run.request.not_before)


def _begun(owned: OwnedRun, wakeup: Wakeup, worker: Worker) -> RunStarted:
    return RunStarted(attempt=owned.attempt, worker=worker.name, lease=wakeup.seq, delivery=wakeup.order)


def _failed(owned: OwnedRun, error: Exception) -> RunFailed:
    expected = isinstance(error, SikaError)
    log.warning("run failed", run=owned.id, thread=owned.thread_id, error=str(error), exc_info=not expected)
    apology = _apology(f"Stopped: {error}.") if isinstance(error, TooLong) else None
    return RunFailed(message=apology, error=type(error).__name__, text=failure_text(error))


def failure_text(error: Exception) -> str:
    """Returns the text for people about an error that ended a run: a sentence, without secrets and names of classes."""
    text = redactor.text(sendable(str(error))).strip()
    if isinstance(error, SikaError) and text:
        return text
    return f"An unexpected error ended the run: {redactor.text(sendable(sentence_of(error)))}"


def _apology(text: str) -> Message:
    """Returns the message that tells the person why there is no answer."""
    extra = {APOLOGY: True, "error_reason": TooLong.code}
    return {"type": "ai", "id": f"error-{uuid7()}", "content": text, "additional_kwargs": extra}


def _pause(run: Run) -> float:
    """Returns the seconds until a run may be started again whose last starts got nothing done."""
    pause = STALLED_SECONDS[min(run.stalled, len(STALLED_SECONDS) - 1)]
    return min(pause, pause + _seconds_until(run.updated_at))


def _seconds_until(moment: str) -> float:
    return (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
