"""The machines of sandboxes, as one worker uses them: started under a claim, kept in use, replaced when they are lost.

Theory of operation
-------------------
A machine belongs to a thread by facts (`core.sandbox.state` has their rules), so that all workers agree on it. A worker
that needs it for a call first has the fact that it uses the machine, for `Timing.use` seconds. The fact is renewed at
half of that while calls are under way, and by nothing else. So a thread without calls costs nothing and gets idle, and
a call under way in any worker shows in the log. What a worker knows of its own use is valid without asking: nobody may
end the machine before that time. That makes all calls but one in `use / 2` seconds free of the log.

To start or to end a machine, a worker appends a claim, which the log's guard gives to one of them. If that worker dies,
the claim runs out; a timer, set before the claim, wakes the actor to look what has become of the machine (`reaping`).

Rejected: a lock of NATS for each machine (a second truth beside the log, and one connection decides over it); asking
all workers before a machine is ended (one that is frozen does not answer, and is at work afterwards).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol, cast
from weakref import WeakValueDictionary

import anyio
import structlog

from core.config.sandbox import Sandbox as Settings
from core.errors import NotFound, SikaError, Unavailable, ungrouped
from core.events import Aggregate, Event
from core.ids import now, stamp, uuid7
from core.log.repository import Repository
from core.ports.sandbox import Machine, MachineLost, Resident, Sandbox, StartsMachines
from core.runtime.system import System
from core.sandbox.facts import (
    Reason,
    SandboxAcquired,
    SandboxClaimed,
    SandboxFailed,
    SandboxReleased,
    SandboxUsed,
)
from core.sandbox.state import KIND, Lease, key_of, leases
from core.thread.threads import Threads

log = structlog.get_logger("sika.sandbox")

ACTOR = "sandbox"
TIMER = "look"
"""Key of the only timer of a thread's sandbox."""
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0
"""Seconds between two looks at what another worker starts or ends."""
DROP_SECONDS = 2.0
"""Timeout of giving a claim back when the worker is stopped meanwhile."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times in seconds."""

    use: float = 120.0
    """Duration of a use; workers' clocks may differ by less than half of it."""
    claim: float = 120.0
    """Duration of a claim: longer than `start`."""
    start: float = 90.0
    """Timeout of starting or ending a machine (DeerFlow waits 60 seconds until one is ready)."""
    open: float = 20.0
    """Timeout of opening a machine, which is also the check of its health."""
    check: float = 30.0
    """Pause after which the health of a machine is checked before a call."""
    sweep: float = 600.0
    """Interval of sweeps."""


USUAL = Timing()


class Provider(StartsMachines, Protocol):
    """A provider that starts machines, with its name."""

    @property
    def name(self) -> str: ...


class OpenMachine:
    """A machine that this worker has open."""

    def __init__(self, machine: Machine, sandbox: Sandbox, until: datetime) -> None:
        self.machine, self.sandbox, self.until = machine, sandbox, until
        self.checked = time.monotonic()
        self.renewal = anyio.Lock()
        self.news = ""
        """The words for the agent about what it lost."""
        self._news_taken_by: str | None = None

    def take_news(self, call: str) -> str:
        """Returns those words to one call, and again if it is repeated: its answer may have been lost. `call`: its key,
        empty if it has none.
        """
        if self._news_taken_by is not None and (not call or call != self._news_taken_by):
            return ""
        self._news_taken_by = call
        return self.news


class Machines:
    """The machines of an installation, for one worker."""

    def __init__(
        self, running: System, provider: Provider, settings: Callable[[], Settings], timing: Timing = USUAL
    ) -> None:
        self.leases: Repository[Lease] = leases(running.log)
        self.provider, self.timing = provider, timing
        self.settings = settings
        self.threads: Threads = running.threads
        self.worker = running.name
        self._queue = running.queue
        self._held: dict[str, OpenMachine] = {}
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    # ── use ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def borrowed(self, user: str, thread: str) -> AsyncIterator[OpenMachine]:
        """Yields the thread's machine, started if there is none, and keeps it in use.

        Raises `Unavailable` if it cannot be started now, `NotFound` if the thread was erased.
        """
        held = await self._ready(user, thread)
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._renew, key_of(user, thread), held)
                try:
                    yield held
                finally:
                    tasks.cancel_scope.cancel()

    async def there(self, user: str, thread: str) -> bool:
        """Tells whether the thread has a machine."""
        return (await self.leases.load(key_of(user, thread))).machine is not None

    async def lost(self, user: str, thread: str, machine: Machine) -> None:
        """Records that a machine is gone."""
        key = key_of(user, thread)
        self.forget(key, machine)
        released = SandboxReleased(machine=machine.id, reason="lost")
        if await self._decide(key, lambda lease: [released], of=machine):
            log.warning("machine of a sandbox is gone", thread=thread, machine=machine.id)

    async def _ready(self, user: str, thread: str) -> OpenMachine:
        key = key_of(user, thread)
        lock = self._locks.setdefault(key, anyio.Lock())
        async with lock:
            held = self._held.get(key)
            if held is not None and self._valid(held):
                return held
            patience, pause = time.monotonic() + self.timing.claim + self.timing.start, FIRST_PAUSE
            while (held := await self._attempt(key, user, thread)) is None:
                if time.monotonic() > patience:
                    raise Unavailable("the sandbox is being started or ended by another worker for too long")
                await anyio.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE)
            self._keep(key, held)
            return held

    def _keep(self, key: str, held: OpenMachine) -> None:
        """Remembers a machine in use; those that are not in use any more are forgotten."""
        self._held = {name: other for name, other in self._held.items() if self._left(other) > 0} | {key: held}

    def _valid(self, held: OpenMachine) -> bool:
        """Tells whether the machine may be used without a look at the log, or at the machine."""
        return self._left(held) > self.timing.use / 2 and time.monotonic() < held.checked + self.timing.check

    def _left(self, held: OpenMachine) -> float:
        return (held.until - datetime.now(UTC)).total_seconds()

    async def _attempt(self, key: str, user: str, thread: str) -> OpenMachine | None:
        """Returns the machine, in use; None if it changed hands meanwhile, or another worker has the claim."""
        lease = await self.leases.load(key)
        if lease.claimed(now()):
            return None
        if lease.machine is None:
            return await self._start(key, user, thread, lease)
        if lease.provider != self.provider.name:  # the configuration has changed; its engine is not ours to ask
            await self.lost(user, thread, lease.machine)
            return None
        held = self._held.get(key)
        known = held is not None and held.machine == lease.machine and self._left(held) > self.timing.use / 2
        until = held.until if held and known else await self.used(key, lease.machine)
        if until is None:
            return None
        return await self._opened(key, user, thread, lease.machine, until)

    async def _opened(self, key: str, user: str, thread: str, machine: Machine, until: datetime) -> OpenMachine | None:
        before = self._held.get(key)
        try:
            with anyio.fail_after(self.timing.open):
                sandbox = await self.provider.open(machine, user, thread)
        except MachineLost:
            await self.lost(user, thread, machine)
            return None
        except TimeoutError:
            raise Unavailable(f"the sandbox does not answer within {self.timing.open:g} s") from None
        if before is None or before.machine != machine:
            return OpenMachine(machine, sandbox, until)
        before.sandbox, before.until, before.checked = sandbox, max(until, before.until), time.monotonic()
        return before

    async def used(self, key: str, machine: Machine) -> datetime | None:
        """Appends that this worker uses the machine. Returns until when; None if that is not possible now."""
        until = self._after(self.timing.use)
        event = SandboxUsed(worker=self.worker, until=stamp(until))
        return until if await self._decide(key, lambda lease: [event], of=machine, unclaimed=True) else None

    async def _renew(self, key: str, held: OpenMachine) -> None:
        """Keeps a machine in use. Ends when it is not the thread's any more: the calls notice it themselves."""
        while True:
            await anyio.sleep(max(self.timing.use / 20, self._left(held) - self.timing.use / 2))
            async with held.renewal:
                if self._left(held) > self.timing.use / 2:
                    continue  # renewed by another call
                try:
                    if until := await self.used(key, held.machine):
                        held.until = until
                    elif (await self.leases.load(key)).machine != held.machine:
                        return
                except Unavailable as error:
                    log.warning("use of a sandbox not renewed", machine=held.machine.id, error=str(error))

    # ── start and end ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _start(self, key: str, user: str, thread: str, lease: Lease) -> OpenMachine | None:
        if (await self.threads.load(thread)).erased:
            raise NotFound(f"the thread {thread} was erased")
        await self.make_room(key)
        claim = await self.claim(key, user, thread, lambda lease: lease.machine is None)
        if claim is None:
            return None
        async with self._claimed(key, claim):
            with anyio.fail_after(self.timing.start):
                machine = await self.provider.start(user, thread)
            until = self._after(self.timing.use)
            acquired = SandboxAcquired(
                provider=self.provider.name,
                machine=machine.id,
                address=machine.address,
                worker=self.worker,
                until=stamp(until),
            )
            if not await self._decide(key, lambda lease: [acquired], claim=claim):
                return None
        held = await self._opened(key, user, thread, machine, until)
        if held is None:
            raise Unavailable("the machine of the sandbox ended as soon as it was started")
        held.news = replaced(lease.released) if lease.released else ""
        return held

    async def end(
        self, resident: Resident, reason: Reason, allowed: Callable[[Lease], bool] = lambda lease: True
    ) -> bool:
        """Ends a machine under a claim, if the sandbox as it stands then allows it. Returns whether it did. Raises
        `Unavailable` if the machine cannot be ended now.
        """
        machine, user, thread = resident
        key = key_of(user, thread)
        claim = await self.claim(key, user, thread, allowed)
        if claim is None:
            return False
        self.forget(key, machine)
        async with self._claimed(key, claim):
            with anyio.fail_after(self.timing.start):
                await self.provider.end(machine)
        await self._decide(key, lambda lease: [SandboxReleased(machine=machine.id, reason=reason)], claim=claim)
        log.info("machine of a sandbox ended", thread=thread, machine=machine.id, reason=reason)
        return True

    async def claim(self, key: str, user: str, thread: str, allowed: Callable[[Lease], bool]) -> str | None:
        """Returns the id of a claim; None if another worker has one, or the sandbox as it stands does not allow it."""
        claim, until = uuid7(), self._after(self.timing.claim)
        await self.look_at(key, until)
        event = SandboxClaimed(claim=claim, worker=self.worker, until=stamp(until), user=user, thread=thread)
        _, records = await self.leases.decide(
            key, lambda lease: [event] if not lease.claimed(now()) and allowed(lease) else [], actor=ACTOR
        )
        return claim if records else None

    @asynccontextmanager
    async def _claimed(self, key: str, claim: str) -> AsyncIterator[None]:
        """Gives the claim back if the block fails. Raises `Unavailable` for a timeout."""
        try:
            yield
        except TimeoutError:
            reason = f"the machine was not ready within {self.timing.start:g} s"
            await self._give_back(key, claim, reason)
            raise Unavailable(reason) from None
        except BaseException as error:
            reason = str(error) if isinstance(error, SikaError) else f"the worker stopped ({type(error).__name__})"
            with anyio.CancelScope(shield=True), anyio.move_on_after(DROP_SECONDS):
                await self._give_back(key, claim, reason)
            raise

    async def _give_back(self, key: str, claim: str, reason: str) -> None:
        with suppress(Unavailable):  # then it runs out
            await self._decide(key, lambda lease: [SandboxFailed(claim=claim, reason=reason)], claim=claim)

    async def make_room(self, key: str) -> None:
        """Ends the machines that were not used for the longest time, as far as there are too many, and none that is
        in use.
        """
        most = self.settings().replicas
        residents = await self.residents() if most else []
        if not most or len(residents) < most:
            return
        known = [(await self.leases.load(key_of(r.user, r.thread)), r) for r in residents]
        surplus = len(residents) - most + 1
        for lease, resident in sorted(known, key=lambda pair: pair[0].used_until):
            if surplus <= 0:
                return
            own = key_of(resident.user, resident.thread) == key
            if not own and not lease.busy(now()):
                surplus -= await self.end(resident, "evicted", lambda lease: not lease.busy(now()))
        if surplus > 0:
            log.warning("more machines than sandbox.replicas: all are in use", replicas=most)

    # ── shared ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def residents(self) -> Sequence[Resident]:
        """Returns the machines that run. Raises `Unavailable`."""
        try:
            with anyio.fail_after(self.timing.start):
                return await self.provider.residents()
        except TimeoutError:
            raise Unavailable(f"the engine does not answer within {self.timing.start:g} s") from None

    async def look_at(self, key: str, when: datetime) -> None:
        """Sets the sandbox's timer."""
        await self._queue.wake_at(when, ACTOR, Aggregate(KIND, key), key=TIMER)

    def forget(self, key: str, machine: Machine) -> None:
        """Forgets the machine that this worker has open for a thread, if it is this one."""
        if (held := self._held.get(key)) and held.machine.id == machine.id:
            del self._held[key]

    async def _decide(
        self,
        key: str,
        events: Callable[[Lease], Sequence[Event]],
        *,
        of: Machine | None = None,
        claim: str = "",
        unclaimed: bool = False,
    ) -> bool:
        """Appends events if the machine, the claim and its absence are as named. Returns whether it did."""

        def decision(lease: Lease) -> Sequence[Event]:
            wrong = (
                (of is not None and (lease.machine is None or lease.machine.id != of.id))
                or (claim and (lease.claim is None or lease.claim.claim != claim))
                or (unclaimed and lease.claimed(now()))
            )
            return [] if wrong else events(lease)

        _, records = await self.leases.decide(key, decision, actor=ACTOR)
        return bool(records)

    def _after(self, seconds: float) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=seconds)


def machines_of(running: System, provider: object, settings: Callable[[], Settings]) -> Machines | None:
    """Returns the machines of sandboxes; None if the provider starts none."""
    return Machines(running, cast(Provider, provider), settings) if isinstance(provider, StartsMachines) else None


REASONS = {
    "idle": "it had not been used for long",
    "evicted": "its room was needed",
    "stopped": "the server was stopped",
    "lost": "its machine was gone",
}


def replaced(reason: str) -> str:
    """Returns the words for the agent after its machine was replaced."""
    why = REASONS.get(reason, reason)
    return f"the sandbox was replaced, because {why}: running commands and files outside /mnt/user-data are gone."
