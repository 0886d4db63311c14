"""Wake-ups: the work queue that tells an actor to look at an aggregate; its leases, timers and dead letters.

A wake-up carries no decision, only where to look. It is delivered to one process at a time; for as long as that
process keeps it (in-progress acks) nobody else gets it, and if the process dies it is delivered again after the
lease. Delivering one twice is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import anyio
import msgspec
import structlog
from nats.aio.msg import Msg

from core.bus import MESSAGE_NOT_FOUND, SECOND, ApiError, Bus
from core.errors import Unavailable
from core.events import Aggregate
from core.ids import now
from core.pull import Room, pull

log = structlog.get_logger("sika.work")


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a wake-up: which event led to it. `seq` 0 means: just look."""

    seq: int = 0
    type: str = ""
    id: str = ""


class Wakeup:
    """One delivery of a wake-up."""

    def __init__(self, bus: Bus, msg: Msg) -> None:
        self._bus = bus
        self._msg = msg
        self.actor, self.aggregate = bus.names.target(msg.subject)
        self.hint = msgspec.json.decode(msg.data, type=Hint) if msg.data else Hint()
        position = msg.metadata
        self.seq = position.sequence.stream
        """Sequence in the work queue: the same over all deliveries. Names the lease."""
        self.delivery = position.num_delivered

    async def keep(self) -> None:
        """Extend the lease."""
        await self._bus.publish(self._msg.reply, b"+WPI")

    async def done(self) -> None:
        await self._bus.publish(self._msg.reply, b"+ACK")

    async def again(self, seconds: float = 0.0) -> None:
        """Give it back: somebody will get it after a pause."""
        payload = b'-NAK {"delay": %d}' % int(seconds * SECOND) if seconds else b"-NAK"
        await self._bus.publish(self._msg.reply, payload)


class WorkQueue:
    """Sends wake-ups and hands out those of one actor."""

    def __init__(self, bus: Bus, lease_seconds: float) -> None:
        self.bus = bus
        self.lease_seconds = lease_seconds
        self._stream = bus.names.stream("cmd")
        self._held: dict[int, Wakeup] = {}

    async def wake(self, actor: str, aggregate: Aggregate, hint: Hint, *, key: str) -> None:
        """Wake an actor. The same key within two minutes is sent once. Raises `Unavailable`."""
        subject = self.bus.names.cmd(actor, aggregate)
        reply = await self.bus.ask(subject, msgspec.json.encode(hint), {"Nats-Msg-Id": f"{actor}-{key}"})
        if error := msgspec.json.decode(reply.data).get("error"):
            raise Unavailable(f"{subject}: {error.get('description')}")

    async def nudge(self, actor: str, aggregate: Aggregate, hint: Hint, *, key: str) -> None:
        """Wake an actor without waiting to hear whether that was stored: the dispatcher sends the same again if not."""
        subject = self.bus.names.cmd(actor, aggregate)
        await self.bus.publish(subject, msgspec.json.encode(hint), {"Nats-Msg-Id": f"{actor}-{key}"})

    async def wake_at(self, when: datetime, actor: str, aggregate: Aggregate, *, key: str) -> None:
        """Wake an actor at a time, also if no process lives then (message schedule, ADR-51). The same key replaces."""
        subject = self.bus.names.timer(actor, aggregate, key)
        headers = {
            "Nats-Schedule": f"@at {when.astimezone().isoformat(timespec='milliseconds')}",
            "Nats-Schedule-Target": self.bus.names.wake(actor, aggregate),
            "Nats-Rollup": "sub",
        }
        reply = msgspec.json.decode((await self.bus.ask(subject, msgspec.json.encode(Hint()), headers)).data)
        if error := reply.get("error"):
            raise Unavailable(f"{subject}: {error.get('description')}")

    async def ensure(self, actor: str, *, anew: bool = False) -> None:
        """The actor's durable consumer. `anew` makes everything that was not acked available at once."""
        config = {
            "durable_name": actor,
            "filter_subject": self.bus.names.cmd_of(actor),
            "ack_policy": "explicit",
            "ack_wait": int(self.lease_seconds * SECOND),
            "max_deliver": -1,
            "max_ack_pending": 100_000,
        }
        await self.bus.ensure_consumer(self._stream, config, anew=anew)

    async def hold(self) -> None:
        """Runs for as long as the process: keeps the leases of what is being worked on."""
        while True:
            await asyncio.sleep(self.lease_seconds / 3)
            for wakeup in list(self._held.values()):
                try:
                    await wakeup.keep()
                except Unavailable as error:
                    log.warning("lease not extended", aggregate=str(wakeup.aggregate), error=str(error))

    async def serve(self, actor: str, work: Callable[[Wakeup], Awaitable[None]], slots: int) -> None:
        """Hand out the actor's wake-ups, at most `slots` at a time, until cancelled. `work` owns each wake-up it
        gets.
        """
        room = Room(slots)

        async def one(wakeup: Wakeup) -> None:
            self._held[wakeup.seq] = wakeup
            try:
                await work(wakeup)
            finally:
                if self._held.get(wakeup.seq) is wakeup:
                    del self._held[wakeup.seq]
                room.free()

        async with anyio.create_task_group() as tasks:
            async for msg in pull(self.bus, self._stream, actor, room):
                tasks.start_soon(one, Wakeup(self.bus, msg))

    async def exists(self, seq: int) -> bool:
        """Whether this wake-up is still in the queue (nobody has acked it)."""
        try:
            await self.bus.api(f"STREAM.MSG.GET.{self._stream}", {"seq": seq})
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return False
            raise Unavailable(str(error)) from error
        return True

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────

    async def bury(self, wakeup: Wakeup, reason: str) -> None:
        """Put what cannot be processed aside, with the reason, and take it off the queue."""
        letter = {"actor": wakeup.actor, "aggregate": str(wakeup.aggregate), "reason": reason, "at": now()}
        body = msgspec.json.encode({**letter, "hint": wakeup.hint})
        subject = self.bus.names.dlq(wakeup.actor, wakeup.aggregate)
        reply = await self.bus.ask(subject, body, {"Nats-Msg-Id": f"{wakeup.actor}-{wakeup.seq}"})
        if error := msgspec.json.decode(reply.data).get("error"):
            raise Unavailable(f"{subject}: {error.get('description')}")
        await wakeup.done()
        log.error("dead letter", actor=wakeup.actor, aggregate=str(wakeup.aggregate), reason=reason)
