"""Intake: creation of threads, requests for runs and for their end, from all channels. Decide, append, wake."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from core.bus.queue import Hint, WorkQueue
from core.errors import Invalid, NotFound, Refused, Unavailable
from core.events import (
    Event,
    Json,
    Message,
    Record,
    RunCancelled,
    RunCancelRequested,
    RunOrigin,
    RunRemoved,
    RunRequested,
    RunRolledBack,
    RunSteered,
    ThreadAnnotated,
    ThreadCreated,
)
from core.ids import safe_id
from core.log.kinds import KIND, SUBAGENT
from core.runs.reuse import Dispatched, Reuse
from core.runs.share import share_of
from core.thread import turns
from core.thread.ownership import owned
from core.thread.state import Run, ThreadState
from core.thread.threads import Threads

log = structlog.get_logger("sika.intake")

RUNS_BY = "lead"
"""The actor that works through the runs of a thread."""
OTHER = "Idempotency-Key: was used for another request; take a new key"
WORKERS = {KIND: RUNS_BY, SUBAGENT: "subagents"}
"""The actors that work through runs, by the kind of conversation."""


Permission = Callable[[str], Awaitable[None]]
"""Raises `Refused` if no work may be done for a user."""


async def anybody(user: str) -> None:
    """Permits work for every user."""


class Intake:
    """Decisions of people and programs about threads. Nothing here waits for a run to do anything.

    `user`: the user who asks; threads of other users do not exist for them. None: the system itself.
    """

    def __init__(
        self,
        threads: Threads,
        queue: WorkQueue,
        permitted: Permission = anybody,
        dispatched: Dispatched | None = None,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        self.threads = threads
        self.queue = queue
        self._permitted = permitted
        self._dispatched = dispatched
        self._admit = admit
        """Raises `Overloaded` if too many runs wait already."""

    async def create_thread(
        self, thread_id: str, *, user: str, metadata: Json | None = None, actor: str = "http", again: bool = False
    ) -> tuple[ThreadState, bool]:
        """Creates the thread unless it exists. Returns its state, and whether it is new. `again`: a person names the
        id, so it may be that of a deleted thread of theirs, once nothing of that is left.

        Raises `Refused` for the id of somebody else, and of a deleted thread; `Unavailable` if that is not erased yet.
        """
        safe_id(thread_id, "thread_id")
        free = ThreadState()
        while True:

            def decide(state: ThreadState, vacant: int = free.seq) -> Sequence[Event]:
                if state.exists and state.user != user:
                    raise Refused(f"Thread {thread_id}: the id is taken")
                if state.erased and state.seq != vacant:
                    self._check_own(thread_id, state, user if again else None)
                    return []
                return [] if state.exists else [ThreadCreated(user=user, metadata=metadata or {})]

            state, records = await self.threads.decide(thread_id, decide, actor=actor)
            if not state.erased:
                return state, bool(records)
            free = await self.vacant(thread_id, user=user, actor=actor)

    async def vacant(self, thread_id: str, *, user: str, actor: str = "http") -> ThreadState:
        """Returns the state to which a new thread can be appended: of an id that was never used, or of a deleted thread
        of the user's of which nothing is left. Returns that of a thread which is there already, too.

        Raises `Refused` for a deleted thread of somebody else, and `Unavailable` if it is not erased yet.
        """
        state = await self.threads.load(thread_id)
        if not state.erased:
            return state
        self._check_own(thread_id, state, user)
        assert self._dispatched is not None
        return await Reuse(self.threads, self.queue, self._dispatched, thread_id, actor).freed()

    def _check_own(self, thread_id: str, state: ThreadState, user: str | None) -> None:
        """Raises `Refused` unless the deleted thread was the user's, and is erased by actors of this process."""
        if state.user != user or self._dispatched is None:
            raise Refused(f"Thread {thread_id} was deleted; its id is not used again")

    async def annotate(
        self, thread_id: str, metadata: Json, *, user: str | None = None, actor: str = "http"
    ) -> ThreadState:
        """Merges metadata into the thread's; `None` removes a key."""
        values = {key: value for key, value in metadata.items() if value is not None}

        def decide(state: ThreadState) -> Sequence[Event]:
            _existing(thread_id, state, user)
            removed = tuple(key for key in metadata if key not in values and key in state.metadata)
            return [ThreadAnnotated(metadata=values, removed=removed)] if values or removed else []

        state, _ = await self.threads.decide(thread_id, decide, actor=actor)
        return state

    async def erase(self, thread_id: str, *, by: str, actor: str = "http") -> None:
        """Deletes the thread: it is gone for everybody, and the janitor erases its events and files. Idempotent; an
        unknown thread is no error.
        """
        await self.threads.bury(thread_id, by=by, actor=actor)

    async def request_run(
        self, thread_id: str, run_id: str, request: RunRequested, *, user: str | None = None, actor: str = "http"
    ) -> tuple[ThreadState, Record]:
        """Requests a run and wakes a worker. Returns at once; the request is durable.

        A repeated request (`fingerprint`) returns the state of now, and the record of the first one.

        Raises `NotFound` (no such thread), `Refused` (`reject` and another run is open, or no work may be done for the
        user), `Invalid` (unknown checkpoint, or another request with the same idempotency key), `Overloaded`.
        """
        safe_id(run_id, "run_id")
        if request.resume is None:  # what was begun goes on
            self._admit()
        await self._permitted(user or (await self.threads.load(thread_id)).user)

        def decide(state: ThreadState) -> Sequence[Event]:
            _existing(thread_id, state, user)
            if run_id in state.runs:
                _repeated(state.runs[run_id], request)
                return []
            _checkpoint(state, request.base)
            if request.multitask == "reject" and any(state.runs.open()):
                raise Refused(f"Thread {thread_id} already has an active run")
            if request.resume is not None and state.paused is None and not any(state.runs.open()):
                raise Refused(f"Thread {thread_id} is not interrupted: there is nothing to resume")
            if request.resume is not None:
                return [_answering(thread_id, request, state)]
            return [turns.reworded(state, request)]

        state, records = await self.threads.decide(thread_id, decide, actor=actor, run=run_id)
        record = records[0] if records else await self._requested(thread_id, state.runs[run_id])
        await self._wake(thread_id, record, state.user)
        return state, record

    async def _requested(self, thread_id: str, run: Run) -> Record:
        """Returns the record of a run's request. Raises `Refused` if it is erased."""
        seq = run.requested_seq
        async for record in self.threads.log.read(self.threads.aggregate(thread_id), after=seq - 1, upto=seq):
            return record
        raise Refused(f"Run {run.id} exists, and its beginning was pruned")

    async def cancel(
        self, thread_id: str, run_id: str, action: str = "interrupt", *, user: str | None = None, actor: str = "http"
    ) -> ThreadState:
        """Asks a run to stop. A run that was not started ends at once. Idempotent.

        Raises `NotFound`, or `Refused` if it has already ended otherwise.
        """
        if action not in ("interrupt", "rollback"):
            raise Invalid(f"action: interrupt or rollback, got {action!r}")

        def decide(state: ThreadState) -> Sequence[Event]:
            run = _run(thread_id, run_id, state, user)
            if run.cancel is not None or run.status in ("interrupted", "rolled_back"):
                return []
            if not run.open:
                raise Refused(f"Run {run_id} is not cancellable (status: {run.status})")
            if run.status == "pending":
                return [RunRolledBack() if action == "rollback" else RunCancelled()]
            return [RunCancelRequested(action=action)]  # type: ignore[arg-type]

        state, _ = await self.threads.decide(thread_id, decide, actor=actor, run=run_id)
        return state

    async def steer(
        self, thread_id: str, run_id: str, message: Message, *, user: str | None = None, actor: str = "http"
    ) -> None:
        """Adds a message that the agent sees before its next model call. A message id is accepted once.

        Raises `NotFound`, or `Refused` if the run has ended or is to stop.
        """

        def decide(state: ThreadState) -> Sequence[Event]:
            run = _run(thread_id, run_id, state, user)
            if any(steer.get("id") == message.get("id") for steer in run.steers) or message.get("id") in state.places:
                return []
            if run.batch is not None:
                raise Refused(f"Run {run_id} is a batch, which reads no messages; cancel it, or wait for its end")
            if not run.open or run.cancel is not None:
                raise Refused(f"Run {run_id} is not at work (status: {run.status}); send the message as a new run")
            return [RunSteered(message=message)]

        await self.threads.decide(thread_id, decide, actor=actor, run=run_id)

    async def remove_run(self, thread_id: str, run_id: str, *, user: str | None = None, actor: str = "http") -> None:
        """Hides a run's record. Idempotent. Raises `NotFound`, or `Refused` while it is open."""

        def decide(state: ThreadState) -> Sequence[Event]:
            run = _run(thread_id, run_id, state, user)
            if run.open:
                raise Refused(f"Run {run_id} is {run.status}; cancel it first")
            return [] if run.removed else [RunRemoved()]

        await self.threads.decide(thread_id, decide, actor=actor, run=run_id)

    async def _wake(self, thread_id: str, record: Record, user: str) -> None:
        """Wakes a worker at once. If that fails, the dispatcher does it: the decision is in the log."""
        try:
            hint = Hint(seq=record.seq, type=record.type, id=record.id, share=share_of(user))
            aggregate = self.threads.aggregate(thread_id)
            await self.queue.nudge(WORKERS[aggregate.kind], aggregate, hint, key=record.id)
        except Unavailable as error:
            log.warning("not woken at once", thread=thread_id, error=str(error))


def _repeated(run: Run, request: RunRequested) -> None:
    """Raises `Refused` unless the request repeats that of the run, `Invalid` if it has its key and asks for more."""
    if not request.fingerprint:
        raise Refused(f"Run {run.id} exists already")
    if run.request.fingerprint != request.fingerprint:
        raise Invalid(OTHER)


def _answering(thread_id: str, request: RunRequested, state: ThreadState) -> RunRequested:
    """Returns the request with the pause that it answers."""
    ended = (run for run in reversed(state.runs.values()) if run.attempt and run.ended_seq)
    paused = next((run for run in ended if run.status != "rolled_back"), None)
    if state.paused is None or paused is None or request.wanted is not None:
        return request
    return msgspec.structs.replace(request, wanted=RunOrigin(KIND, thread_id, paused.last_id))


def _existing(thread_id: str, state: ThreadState, user: str | None) -> bool:
    return owned(state, thread_id, user).exists


def _run(thread_id: str, run_id: str, state: ThreadState, user: str | None) -> Run:
    _existing(thread_id, state, user)
    if run_id not in state.runs:
        raise NotFound(f"Run {run_id} not found")
    return state.runs[run_id]


def _checkpoint(state: ThreadState, base: int | None) -> None:
    if base is not None and not state.has_checkpoint(base):
        raise Invalid(f"checkpoint {base}: not a checkpoint of this thread")
