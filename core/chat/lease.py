"""The lease of an account: at most one process holds the connection to a platform, over all replicas.

Theory of operation
-------------------
The lease is the last message of a subject of the stream of places. Its holder replaces it every third of the lease, and
only if it is still its own (the expected sequence), so nobody renews what another has taken. A process that waits looks
at the message, and takes the lease when the same message has stood there for a whole lease by the waiting process's own
clock. Clocks of several machines are never compared.

The holder counts from before it sent its last renewal that was stored. A waiting process counts from after it saw that
renewal. So the holder's time is over before the other's, also if the holder was frozen, or without NATS, in between:
`held` compares clocks and asks nobody. The clock goes on while the machine is suspended
(where the system has such a clock).

A server knows when its own child is dead, and with it the child's connections: it frees the lease (`free`) by the name
that it gave to the child. Then the next child does not wait. Nor does a process on the same machine as a holder that is
dead: a server that was killed frees nothing.

Rejected: wake-ups of the work queue as leases, as for runs: their extension is not acknowledged.
"""

from __future__ import annotations

import time
from typing import NoReturn

import anyio
import msgspec
import structlog

from core.bus.connection import Bus
from core.bus.errors import WRONG_LAST_SEQUENCE, ApiError
from core.bus.streams import find
from core.chat import process
from core.errors import OwnershipLost, Unavailable

log = structlog.get_logger("sika.accounts")

NEAR_SECONDS = 0.25
"""Interval at which a process that waits looks whether a holder on its machine is dead."""
RELEASE_SECONDS = 2.0
"""Timeout of giving the lease back at the end."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Holder(msgspec.Struct, frozen=True):
    """The content of the message. `seconds`: the lease; 0 once it was given back. `process`: its identity
    (`core.chat.process`)."""

    name: str
    seconds: float
    process: str = ""


class Lease:
    """The lease of one account, as one process sees it. `holder` names the process."""

    def __init__(self, bus: Bus, account: str, holder: str, seconds: float) -> None:
        self.seconds = seconds
        self._bus = bus
        self._account = account
        self._subject = bus.names.place(f"-account-{account}")
        self._holder = holder
        self._sequence = 0
        """Sequence of the message that is this process's own; 0 if there is none."""
        self._until = 0.0

    @property
    def held(self) -> bool:
        """True as long as no other process can have taken the lease."""
        return bool(self._sequence) and _now() < self._until

    def require(self) -> None:
        """Raises `Unavailable` if the lease is not held: then nothing may be sent, and nothing received be
        acknowledged."""
        if not self.held:
            raise Unavailable(f"{self._account}: this process does not hold the account any more")

    async def take(self) -> None:
        """Returns when this process holds the lease; waits for as long as another one does."""
        watched, since, near = -1, 0.0, False
        while True:
            try:
                stored = await find(self._bus, "place", {"last_by_subj": self._subject})
                sequence = stored.seq if stored else 0
                holder = _decoded(stored.data) if stored else Holder("", 0.0)
                lease = 0.0 if process.is_dead(holder.process) else holder.seconds
                near = process.is_near(holder.process)
                if sequence != watched:
                    if watched == -1 and lease:
                        log.info("account is served by another process: standing by", account=self._account)
                    watched, since = sequence, _now()
                if _now() >= since + lease and await self._store(sequence):
                    return
            except Unavailable as error:
                log.warning("lease not looked at", account=self._account, error=str(error))
            await anyio.sleep(min(self.seconds / 3, NEAR_SECONDS) if near else self.seconds / 3)

    async def keep(self) -> NoReturn:
        """Renews the lease. Raises `OwnershipLost` when it is lost."""
        while True:
            await anyio.sleep(min(self.seconds / 3, max(0.0, self._until - _now())))
            if not self.held:
                raise OwnershipLost(f"{self._account}: the lease has run out")
            try:
                with anyio.move_on_after(self._until - _now()):
                    if not await self._store(self._sequence):
                        raise OwnershipLost(f"{self._account}: another process has taken the account")
            except Unavailable as error:
                log.warning("lease not renewed", account=self._account, error=str(error))

    async def give_back(self) -> None:
        """Lets another process take the lease at once. May fail: then that one waits."""
        if self.held:
            with anyio.move_on_after(RELEASE_SECONDS, shield=True):
                try:
                    await self._store(self._sequence, seconds=0.0)
                except Unavailable as error:
                    log.warning("lease not given back", account=self._account, error=str(error))
        self._until = 0.0

    async def _store(self, expected: int, *, seconds: float | None = None) -> bool:
        """Replaces the message after which nothing was stored. Returns whether it did; raises `Unavailable`."""
        began = _now()
        lease = Holder(self._holder, self.seconds if seconds is None else seconds, process.own())
        content = msgspec.json.encode(lease)
        try:
            self._sequence = await self._bus.store(
                self._subject, content, {"Nats-Expected-Last-Subject-Sequence": str(expected)}
            )
        except ApiError as error:
            if error.err_code not in WRONG_LAST_SEQUENCE:
                raise
            return await self._renew_own()
        self._until = began + self.seconds
        return True

    async def _renew_own(self) -> bool:
        """Renews a lease that is this process's own all the same: the answer to an earlier renewal was lost."""
        stored = await find(self._bus, "place", {"last_by_subj": self._subject})
        if stored is None or stored.seq == self._sequence or _decoded(stored.data).name != self._holder:
            return False
        return await self._store(stored.seq)


async def free(bus: Bus, account: str, holder: str) -> bool:
    """Ends the lease of a process that is certainly dead. Returns whether it held the account. Raises `Unavailable`."""
    subject = bus.names.place(f"-account-{account}")
    stored = await find(bus, "place", {"last_by_subj": subject})
    if stored is None or (lease := _decoded(stored.data)).name != holder or not lease.seconds:
        return False
    content = msgspec.json.encode(Holder(holder, 0.0))
    try:
        await bus.store(subject, content, {"Nats-Expected-Last-Subject-Sequence": str(stored.seq)})
    except ApiError as error:
        if error.err_code not in WRONG_LAST_SEQUENCE:
            raise
        return False
    return True


def _decoded(data: bytes) -> Holder:
    try:
        return msgspec.json.decode(data, type=Holder)
    except msgspec.DecodeError as error:
        raise Unavailable(f"not a lease: {data[:100]!r}: {error}") from None


def _now() -> float:
    return time.clock_gettime(_CLOCK)
