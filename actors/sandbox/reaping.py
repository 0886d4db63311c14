"""Ends the machines that nobody needs: idle ones, those of erased threads, and those that nobody holds.

All of it is driven by timers on the bus, so it goes on in whichever worker lives. A machine gets idle by itself: only
tool calls count as use (`machines`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import anyio
import structlog

from actors.sandbox.machines import TIMER, Machines
from core.actor import Context
from core.errors import Unavailable
from core.events import Aggregate
from core.ids import now
from core.log.repository import Repository
from core.ports.sandbox import Machine, Resident
from core.sandbox.state import KIND, NONE, Lease, key_of

log = structlog.get_logger("sika.sandbox")

SWEEP = "sweep"
"""Id of the aggregate that has the timer of the sweeps, and no events."""
LONG_SECONDS = 3600.0
"""Pause between two looks at a machine that is never idle (`sandbox.idle_seconds: 0`)."""
STOP_SECONDS = 10.0
"""Timeout of ending machines when the server stops."""


class Reaper:
    """Ends machines. Its methods may be repeated, and run in several workers at once."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        """Handles a timer: looks at one sandbox, or sweeps. Raises `Unavailable`."""
        if aggregate.id == SWEEP:
            await ctx.wake_at(_now() + timedelta(seconds=self._machines.timing.sweep), TIMER)
            await self.sweep()
        elif (again := await self._look(aggregate.id)) is not None:
            await ctx.wake_at(again, TIMER)

    async def _look(self, key: str) -> datetime | None:
        """Ends a machine that is idle, and settles what a dead worker left. Returns when to look again, if ever."""
        machines, lease = self._machines, await self._machines.leases.load(key)
        if lease.claimed(now()):
            assert lease.claim is not None
            return _moment(lease.claim.until)
        if lease.machine is None and lease.claim is None:
            return None
        there = next((r for r in await machines.residents() if key_of(r.user, r.thread) == key), None)
        if lease.machine is None:
            if there is not None:
                await machines.end(there, "lost", lambda lease: lease.machine is None)
            return None
        if there is None or there.machine.id != lease.machine.id:
            await machines.lost(lease.user, lease.thread, lease.machine)
            return _soon() if there is not None else None
        idle = self._idle_at(lease)
        if idle is None or idle > datetime.now(UTC):
            return idle or datetime.now(UTC) + timedelta(seconds=LONG_SECONDS)
        await machines.end(there, "idle", lambda lease: (at := self._idle_at(lease)) is not None and at <= _now())
        return _soon()

    def _idle_at(self, lease: Lease) -> datetime | None:
        """Returns when the machine will have been idle for long enough; None for never."""
        seconds = self._machines.settings().idle_seconds
        return _moment(lease.used_until) + timedelta(seconds=seconds) if seconds else None

    async def sweep(self) -> None:
        """Ends the machines of this installation that no thread holds."""
        machines = self._machines
        for resident in await machines.residents():
            key = key_of(resident.user, resident.thread)
            lease = await machines.leases.load(key)
            if _holds(lease, resident.machine) or lease.claimed(now()):
                continue
            log.warning("a machine that no thread holds", machine=resident.machine.id, thread=resident.thread)
            await machines.end(resident, "lost", _not_holding(resident.machine))
            if (await machines.threads.load(resident.thread)).erased:
                await forget(machines.leases, machines, resident.user, resident.thread)

    async def begin(self) -> None:
        """Has a worker sweep now, and from then on in intervals."""
        try:
            await self._machines.look_at(SWEEP, _now())
        except Unavailable as error:
            log.warning("machines that no thread holds are not looked for at this start", error=str(error))

    async def stop(self) -> None:
        """Ends the machines that no other worker uses, if they are to end with the server."""
        machines = self._machines
        if not machines.settings().stop_on_exit:
            return
        worker = machines.worker
        with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_SECONDS) as stopping:
            try:
                for resident in await machines.residents():
                    await machines.end(resident, "stopped", lambda lease: not _used_by_others(lease, worker))
            except Unavailable as error:
                log.warning("machines not ended with the server", error=str(error))
        if stopping.cancelled_caught:
            log.warning("machines not ended with the server in time", seconds=STOP_SECONDS)


async def forget(leases: Repository[Lease], machines: Machines | None, user: str, thread: str) -> None:
    """Ends the machine of an erased thread, whoever uses it, and deletes its facts but the last: they hold nothing that
    people wrote. Raises `Unavailable`: try again.
    """
    key = key_of(user, thread)
    lease = await leases.load(key)
    if lease == NONE:
        return
    if machines is not None:
        if lease.claimed(now()):
            raise Unavailable("the sandbox of an erased thread is being started or ended")
        if lease.machine is not None:
            await machines.end(Resident(lease.machine, user, thread), "erased")
    await leases.log.purge(Aggregate(KIND, key))
    await leases.drop(key)


def _used_by_others(lease: Lease, worker: str) -> bool:
    until = max((until for other, until in lease.uses.items() if other != worker), default="")
    return now() < until


def _holds(lease: Lease, machine: Machine) -> bool:
    return lease.machine is not None and lease.machine.id == machine.id


def _not_holding(machine: Machine) -> Callable[[Lease], bool]:
    return lambda lease: not _holds(lease, machine)


def _moment(at: str) -> datetime:
    return datetime.fromisoformat(at).astimezone(UTC) if at else datetime.fromtimestamp(0, UTC)


def _now() -> datetime:
    return datetime.now(UTC)


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1)
