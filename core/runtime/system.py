"""One process of the system: its connection, its loops, its actors; started, supervised, drained."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog
from anyio.abc import TaskStatus
from structlog.contextvars import bind_contextvars

from core.actor import Actor, Progress
from core.bus import rpc as calls
from core.bus.connection import Bus, connect
from core.bus.endpoint import Endpoint
from core.bus.pull import Room
from core.bus.queue import Hint, Wakeup, WorkQueue
from core.bus.upkeep import Upkeep
from core.chat.state import Chats
from core.errors import Invalid, OwnershipLost, Refused, SikaError, Unavailable, contained
from core.events import Aggregate, Opaque, Record, ThreadCreated, ThreadErased, thread, type_of
from core.identity.standing import Standing
from core.log.kinds import KIND, SUBAGENT
from core.log.notices import Notices
from core.log.repository import Repository
from core.log.store import EventLog
from core.runs.follow import Followers
from core.runs.intake import Intake
from core.runs.owned import Suspended, Unread, Worker
from core.runs.previews import Pump
from core.runs.run import RunActor, not_yet
from core.runs.share import ASKER, share_of
from core.runtime import clock, own_state
from core.runtime.admission import HELD, MOST_WAITING, Admission, GivenBack
from core.runtime.answers import Answers, Later
from core.runtime.attempts import DEADLY, Attempts
from core.runtime.context import HandlerContext
from core.runtime.dispatch import Dispatcher, forward_timers
from core.runtime.governor import Governor
from core.runtime.ordering import Cursor, queues
from core.runtime.stalls import Stalls
from core.runtime.vitals import Vitals, Work
from core.thread.threads import Threads
from core.user import store
from core.views.projections import Views

log = structlog.get_logger("sika.system")

PATIENCE_SECONDS = 60.0
"""Time after its answerer's last sign of life for which a question is asked again: longer than a process is frozen
while its machine is moved, or swaps.
"""
HANDLERS = 128
"""Events that an actor handles at once in a process, if neither it nor the configuration says how many."""
UNKNOWN_LIMIT = timedelta(hours=24)
"""Age at which a wake-up for an event of a newer version, which no process has handled, becomes a dead letter."""
MAX_FAILURES = 10_000
"""Wake-ups whose failures are counted."""
RECONCILE_SECONDS = 15.0
"""Interval of the search for open runs without a wake-up, in which nothing has happened for as long."""
SUBAGENT_BYTES = 32 << 20
"""Bytes of events of subagents that are kept folded in memory."""
CREATED = type_of(ThreadCreated.__name__)
PAUSES = (1.0, 5.0, 15.0, 60.0)
"""Seconds between restarts of a loop that failed, and until work that waits for something is tried again."""


def worker_name() -> str:
    """Says where a run is being worked on; unique per process start."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class System:
    """The parts of a process: made by `start`, used by channels, workers and tools."""

    def __init__(self, bus: Bus, views: Path, lease_seconds: float, slots: int | None, most_waiting: int) -> None:
        self.bus = bus
        self.name = worker_name()
        self.log = EventLog(bus)
        subagents = Threads(self.log, kind=SUBAGENT, cache_bytes=SUBAGENT_BYTES)
        snapshots = views.with_name("snapshots")
        self.threads = Threads(self.log, snapshots, subagents=subagents)
        self.chats = Chats(self.log, snapshots)
        self.stores = store.aggregates(self.log, snapshots)
        self.answers = Answers(self.log)
        self.queue = WorkQueue(bus, lease_seconds)
        self.standing = Standing(self.log)
        self.admission = Admission(bus, self.name, slots, Governor(), most_waiting)
        """The places of runs in this process, and those that wait for one."""
        self.intake = Intake(self.threads, self.queue, self.standing.may_ask, self._dispatched, self.admission.admit)
        self.pump = Pump(bus)
        self.followers = Followers(self.log, pump=self.pump)
        """The channels that follow runs in this process."""
        self.views = Views(views, self.log)
        self.worker = Worker(self.threads, self.queue, self.pump, self.name)
        self.subagents = Intake(subagents, self.queue)
        self.workers = {
            KIND: self.worker,
            SUBAGENT: Worker(self.subagents.threads, self.queue, self.pump, self.name),
        }
        """Workers by the kind of the aggregates whose runs they work on."""
        self.left = Notices()
        """Work that was left to processes of a newer version."""
        self.vitals = Vitals(self.name)
        self.stalls = Stalls()
        self.dispatcher: Dispatcher | None = None
        self.attempts = Attempts(bus)
        self.states: dict[str, Repository[Any]] = {}
        """The states that actors declare, by actor."""
        self._failures: dict[tuple[str, int], int] = {}
        """Failures of the work on a wake-up in this process, by actor and sequence."""

    async def call(
        self, actor: str, request: Mapping[str, Any], on_progress: Callable[[str], Awaitable[None]] | None = None
    ) -> Any:
        """Ask an actor, wherever it runs. A process that answers may have died, be frozen, or not reach NATS: the
        question is asked again after each silence, until `PATIENCE_SECONDS` have passed since the last sign of life. A
        request with `once: true` is not asked again when somebody may have taken it.

        Raises `Silent` if somebody may have taken the question in the end, and was not heard again.
        """
        last_sign, taken = anyio.current_time(), None

        def on_sign() -> None:
            nonlocal last_sign
            last_sign = anyio.current_time()

        while True:
            try:
                return await calls.call(self.bus, actor, request, on_progress, on_sign)
            except calls.Declined:
                raise
            except Unavailable as error:
                taken = error if isinstance(error, calls.Silent) else taken
                if taken and request.get("once"):
                    raise
                patience = PATIENCE_SECONDS if taken else self.queue.lease_seconds
                if anyio.current_time() > last_sign + patience:
                    raise taken or error from error
                await anyio.sleep(0.5)

    def _dispatched(self) -> int:
        return self.dispatcher.position if self.dispatcher else 0

    # ── actors ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def serve(
        self, actors: Sequence[Actor[Any]], *, alone: bool, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Run actors until cancelled. `alone`: no other process can hold leases, so what is un-acked is taken up at
        once.
        """
        readers = [actor for actor in actors if actor.subscription]
        self.attempts.alone = alone
        self.dispatcher = dispatcher = Dispatcher(self.log, self.queue, readers)
        self.answers.watch(actor.name for actor in readers if not isinstance(actor, RunActor))

        async def ensure() -> None:
            await dispatcher.ensure()
            for actor in readers:
                for queue in queues(actor):
                    await self.queue.ensure(queue, anew=alone, in_turn=actor.ordered)

        await self._until_done("actors", ensure)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._supervise, "vitals", self.vitals.serve, self.bus)
            for actor in actors:
                position = partial(dispatcher.position_of, actor.name) if actor.subscription else None
                work = self.vitals.watch(actor, self._limit(actor), position)
                if actor.initial is not None:
                    self.states[actor.name] = own_state.repository(self.log, actor)
                if type(actor).answer is not Actor.answer:
                    what = f"{actor.name} (questions)"
                    answer = partial(_measured, actor, work)
                    tasks.start_soon(self._supervise, what, calls.serve, self.bus, actor.name, answer)
                if actor.subscription:
                    tasks.start_soon(self._supervise, actor.name, self._serve_one, actor, work)
            for actor in readers:
                if isinstance(actor, RunActor) and actor.kind == KIND:
                    tasks.start_soon(self._supervise, f"{actor.name} (open runs)", self._reconcile, actor)
            if any(isinstance(actor, RunActor) for actor in readers):
                tasks.start_soon(self._supervise, "places", self.admission.run)
            if readers:
                tasks.start_soon(self._supervise, "dispatch", dispatcher.run)
                tasks.start_soon(self._supervise, "timers", forward_timers, self.bus, self.queue)
                tasks.start_soon(self._supervise, "clock", clock.watch, self.log, self.queue)
            task_status.started()

    def _limit(self, actor: Actor[Any]) -> int:
        """Returns the most wake-ups that an actor works on at once in this process."""
        most = HELD if isinstance(actor, RunActor) else HANDLERS
        return actor.concurrency or self.admission.slots or most

    async def _serve_one(self, actor: Actor[Any], work: Work) -> None:
        if isinstance(actor, RunActor):
            await self._serve_runs(actor, work)
            return
        # The queue of any other actor has that many slots itself.
        slots = anyio.CapacityLimiter(work.limit) if actor.ordered else nullcontext()

        async def one(wakeup: Wakeup) -> None:
            async with _draining(actor, wakeup), slots:
                with work.measured():
                    await self._work_on_event(actor, wakeup, work)

        async with anyio.create_task_group() as tasks:
            for queue in queues(actor):
                tasks.start_soon(self.queue.serve, queue, one, Room(1 if actor.ordered else work.limit))

    async def _serve_runs(self, actor: RunActor, work: Work) -> None:
        line = self.admission.line(actor.name, actor.concurrency)

        async def one(wakeup: Wakeup) -> None:
            try:
                async with _draining(actor, wakeup):
                    share = await self._share(actor, wakeup)
                    ASKER.set(share)  # what the run asks for counts in the same share
                    async with self.admission.place(line, wakeup, share):
                        with work.measured():
                            await self._work_on_run(actor, wakeup, work)
            except GivenBack:
                await self._again(wakeup, 0)

        await self.queue.serve(actor.name, one, line.room)

    async def _share(self, actor: RunActor, wakeup: Wakeup) -> str:
        """Returns whose share of the places a wake-up's run takes (`core.runs.share`). Those that no request sent (of
        timers, of dispatchers, of open runs) do not say it: the thread does.
        """
        share = wakeup.hint.share
        if not share:
            with suppress(SikaError):
                threads = self.workers[actor.kind or KIND].threads
                share = share_of((await threads.load(wakeup.aggregate.id)).user)
        return share or str(wakeup.aggregate)

    async def _work_on_run(self, actor: RunActor, wakeup: Wakeup, work: Work) -> None:
        try:
            tip = await self.workers[actor.kind or KIND].tip(wakeup) if self.attempts.redelivered(wakeup) else 0
            async with self.attempts.begun(wakeup, tip) as deaths:
                await actor.work(wakeup, self.workers[actor.kind or KIND], deadly=deaths >= DEADLY)
                await wakeup.done()
        except OwnershipLost as error:
            log.info("run handed over", reason=str(error))
            return  # not acked here: the wake-up is the new owner's lease
        except Unavailable as error:
            log.warning("run waits", aggregate=str(wakeup.aggregate), reason=str(error))
            if isinstance(error, Unread):
                self.left.note(_left(error.type))
            await self._again(wakeup, error.seconds if isinstance(error, Suspended) else PAUSES[0])
            return
        except Exception as error:
            log.exception("wake-up failed", aggregate=str(wakeup.aggregate))
            work.fail(f"{type(error).__name__}: {error}")
            await self._retry(wakeup, actor, error, "the worker failed; see the server's log")

    async def _work_on_event(self, actor: Actor[Any], wakeup: Wakeup, work: Work) -> None:
        deadline: asyncio.Timeout | None = None
        try:
            async with self.attempts.begun(wakeup) as deaths:
                if deaths >= DEADLY:
                    reason = f"{DEADLY + 1} processes ended while they handled it"
                    await self._bury(actor, wakeup, reason, harmless=deaths < DEADLY + 1)
                    return
                async with asyncio.timeout(actor.deadline_seconds) as deadline:
                    with contained():
                        await (self._handle_in_turn if actor.ordered else self._handle)(actor, wakeup)
                await wakeup.done()
        except Unavailable as error:
            log.warning("handler waits", actor=actor.name, aggregate=str(wakeup.aggregate), reason=str(error))
            work.fail(str(error), counts=False)
            await self._again(wakeup, PAUSES[1])
            return
        except Exception as error:
            late = isinstance(error, TimeoutError) and deadline is not None and deadline.expired()
            reason = f"not done within {actor.deadline_seconds:g} s" if late else f"{type(error).__name__}: {error}"
            log.warning("handler failed", actor=actor.name, aggregate=str(wakeup.aggregate), exc_info=True)
            work.fail(reason)
            await self._retry(wakeup, actor, error, reason)
            return
        self._failures.pop((actor.name, wakeup.seq), None)

    async def _handle_in_turn(self, actor: Actor[Any], wakeup: Wakeup) -> None:
        """Handles a wake-up unless a later one of its queue was handled before."""
        seq = wakeup.hint.seq
        if not seq or wakeup.hint.again:
            await self._handle(actor, wakeup)
            return
        cursor = Cursor(self.bus, wakeup.actor)
        if seq > await cursor.read():
            await self._handle(actor, wakeup)
            await cursor.move(seq)

    async def _handle(self, actor: Actor[Any], wakeup: Wakeup) -> None:
        if not wakeup.hint.seq:
            await actor.wake(wakeup.aggregate, HandlerContext(self, actor, wakeup.aggregate))
            return
        seq = wakeup.hint.seq
        record, later = await self.answers.event(wakeup.aggregate, seq)
        if record is None or later.by(actor.name, record.id):
            return
        event = record.event
        if isinstance(event, Opaque):
            raise self._unknown(event, wakeup)
        if record.run:
            bind_contextvars(run=record.run)
        if isinstance(event, ThreadErased):
            again = await self._first_of_new(record, later)
            if actor.initial is not None:
                await self.erase_state(actor, record.aggregate, before=again)
            if again is not None or ThreadErased not in actor.subscription:
                return
        await actor.handle(event, HandlerContext(self, actor, wakeup.aggregate, record))

    def _unknown(self, event: Opaque, wakeup: Wakeup) -> SikaError:
        """Returns the error of an event that is not readable here; one of a newer version is left to its processes."""
        if event.problem is not None:
            return Invalid(event.problem)
        if datetime.now(UTC) - wakeup.sent > UNKNOWN_LIMIT:
            return Invalid(f"{event.type}: not known to any process for {UNKNOWN_LIMIT}")
        self.left.note(reason := _left(event.type))
        return Unavailable(reason)

    async def _first_of_new(self, tombstone: Record, later: Later) -> int | None:
        """Returns where the thread begins that has a deleted one's id by now: what is late must not erase it. None if
        there is no such thread.
        """
        if not later.last or not (await self.threads.load(tombstone.aggregate.id)).exists:
            return None
        following = self.log.read(tombstone.aggregate, after=tombstone.seq, bodies=False)
        return min([record.seq async for record in following if record.type == CREATED], default=None)

    async def erase_state(self, actor: Actor[Any], aggregate: Aggregate, *, before: int | None = None) -> None:
        """Erases the state that an actor has for a thread, or what it had before an event. May be repeated."""
        target = own_state.own_state(actor.name, aggregate)
        await self.states[actor.name].erase(target.id, before=before or await self.log.tip(target) + 1)

    async def _bury(self, actor: Actor[Any], wakeup: Wakeup, reason: str, *, harmless: bool = True) -> None:
        """Makes a dead letter of a wake-up. `harmless`: the actor may do something about it before. Raises
        `Unavailable`."""
        if harmless:
            try:
                async with asyncio.timeout(actor.deadline_seconds):
                    with contained():
                        await actor.given_up(wakeup.aggregate, HandlerContext(self, actor, wakeup.aggregate))
            except Unavailable:
                raise
            except Exception:
                log.exception("dead letter left something open", actor=actor.name, aggregate=str(wakeup.aggregate))
        await self.queue.bury(wakeup, reason)

    async def _retry(self, wakeup: Wakeup, actor: Actor[Any], error: Exception, reason: str) -> None:
        """Gives back what failed; after the last attempt it becomes a dead letter. Only failures count: a wake-up is
        also delivered again after a restart, a freeze or a pause.
        """
        key = (wakeup.actor, wakeup.seq)
        failures = self._failures[key] = self._failures.pop(key, 0) + 1
        while len(self._failures) > MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        retries = actor.retries
        if failures >= retries.attempts or retries.is_final(error):
            try:
                await self._bury(actor, wakeup, reason)
                await self.attempts.forget(wakeup)
                del self._failures[key]
                return
            except (Unavailable, Invalid) as refusal:
                log.warning("dead letter not stored yet", error=str(refusal))
        await self._again(wakeup, retries.pause(failures))

    async def _reconcile(self, actor: RunActor) -> None:
        """Wakes open runs that no wake-up stands for any more: the queue was purged, or the log alone restored. Runs
        for later have a timer; they are woken here if they are late.
        """
        while True:
            await anyio.sleep(RECONCILE_SECONDS)
            before = datetime.now(UTC) - timedelta(seconds=RECONCILE_SECONDS)
            try:
                for thread_id in await self.views.open_threads(before):
                    await self._reconcile_checked(actor, thread_id)
            except Unavailable as error:
                log.info("open runs are looked at later", reason=str(error))

    async def _reconcile_checked(self, actor: RunActor, thread_id: str) -> None:
        """Passes over a thread that cannot be looked at: the others come all the same."""
        try:
            await self._reconcile_thread(actor, thread_id)
        except Unavailable:
            raise
        except SikaError as error:
            log.error("an open run is not looked at", thread=thread_id, error=str(error))

    async def _reconcile_thread(self, actor: RunActor, thread_id: str) -> None:
        state = await self.threads.load(thread_id)
        run = state.active or next((run for run in state.queued if not_yet(run) is None), None)
        if run is None or run.id in self.worker.owned or (state.active and await self.queue.exists(run.lease)):
            return
        if state.active:
            log.warning("an open run has no wake-up: woken", thread=thread_id, run=run.id)
        tick = int(time.time() / RECONCILE_SECONDS)
        await self.queue.wake(actor.name, thread(thread_id), Hint(), key=f"open-{run.id}-{tick}")

    async def _again(self, wakeup: Wakeup, seconds: float) -> None:
        try:
            await wakeup.again(seconds)
        except Unavailable as error:
            log.warning("wake-up comes again after its lease", error=str(error))

    # ── loops ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def loops(self, *, views: bool = True) -> None:
        """Runs what every process does besides its actors. Without `views`, it keeps no read models and executes no
        runs."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._supervise, "log", self.log.watch)
            tasks.start_soon(self._supervise, "leases", self.queue.hold)
            tasks.start_soon(self._supervise, "stalls", self.stalls.run)
            if not views:
                return
            tasks.start_soon(self._supervise, "previews", self.pump.run)
            tasks.start_soon(self._supervise, "views", self.views.run)
            for kind in (self.threads, self.chats, self.stores):
                if kind.snapshots is not None:
                    tasks.start_soon(self._supervise, f"snapshots of {kind.kind}", kind.snapshots.run)
            tasks.start_soon(self._supervise, "preview stream", self._keep_previews)

    async def _keep_previews(self) -> None:
        """The memory stream of previews goes with its server: make it again after a reconnect."""
        again = anyio.Event()
        with self.bus.on_reconnect(lambda: again.set()):
            while True:
                await again.wait()
                try:
                    await self.bus.ensure_previews()
                    again = anyio.Event()
                except Unavailable as error:
                    log.warning("no previews yet", error=str(error))
                    await anyio.sleep(PAUSES[0])

    async def _until_done(self, what: str, step: Callable[[], Awaitable[None]]) -> None:
        """Does a step of the start, again while NATS is not there. Raises `Invalid`, as it would come again."""
        refusal: list[Invalid] = []

        async def tried() -> None:
            try:
                await step()
            except Invalid as error:
                refusal.append(error)

        await self._supervise(what, tried)
        if refusal:
            raise refusal[0]

    async def _supervise(self, what: str, loop: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Start a loop again when it fails, with growing pauses; a loop that ran for a minute starts over with the
        first.
        """
        failures = 0
        while True:
            started = anyio.current_time()
            try:
                await loop(*arguments)
                return
            except Exception as error:
                failures = 1 if anyio.current_time() - started > 60 else failures + 1
                pause = PAUSES[min(failures, len(PAUSES)) - 1]
                quiet = isinstance(error, SikaError)
                self.vitals.restarted(what, error)
                log.error("loop failed", loop=what, again_in=pause, error=str(error), exc_info=not quiet)
            await anyio.sleep(pause)


def _left(event_type: str) -> str:
    return f"{event_type} is not known to this version: left to another process"


async def _measured(actor: Actor[Any], work: Work, request: Mapping[str, Any], progress: Progress) -> Any:
    """Answers a request, and measures it."""
    with work.measured():
        return await actor.answer(request, progress)


@asynccontextmanager
async def _draining(actor: Actor[Any], wakeup: Wakeup) -> AsyncIterator[None]:
    """Gives a wake-up back if the work on it is cancelled: somebody else, or the next start, goes on at once."""
    bind_contextvars(actor=actor.name, **_about(wakeup))  # each wake-up has a task of its own
    try:
        yield
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await wakeup.again()
        raise


def _about(wakeup: Wakeup) -> dict[str, str]:
    """Returns what the process's log says about a wake-up."""
    kind, identity = wakeup.aggregate
    about = {"thread": identity} if kind == "thread" else {"aggregate": str(wakeup.aggregate)}
    return {**about, "event_id": wakeup.hint.id} if wakeup.hint.id else about


@asynccontextmanager
async def start(
    endpoint: Endpoint,
    views: Path,
    *,
    lease_seconds: float,
    slots: int | None,
    most_waiting: int = MOST_WAITING,
    loops: bool = True,
    name: str = "sika",
    keep_views: bool = True,
    upkeep: Upkeep | None = None,
) -> AsyncIterator[System]:
    """Connect and run the loops of a process (without `loops`: only read; without `keep_views`: see `System.loops`).
    Leaving the block ends them. `slots`: runs of an actor at work, None for as many as the machine bears;
    `most_waiting`: runs that wait for a place from which on others are refused. `upkeep`: by default, all with loops
    and none without.
    """
    if lease_seconds < 2:
        raise Refused(f"runs.lease_seconds: at least 2, got {lease_seconds}")
    upkeep = upkeep or (Upkeep.ALL if loops else Upkeep.NONE)
    async with connect(endpoint, name, upkeep=upkeep) as bus:
        system = System(bus, views, lease_seconds, slots, most_waiting)
        await system.log.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(system.loops, views=keep_views) if loops else system.log.watch)
            try:
                yield system
            finally:
                tasks.cancel_scope.cancel()
