"""Wake-ups: the work queue that tells an actor to look at an aggregate; its leases, timers and dead letters.

A wake-up carries no decision, only where to look. It is delivered to one process at a time; for as long as that
process keeps it (in-progress acks) nobody else gets it, and if the process dies it is delivered again after the
lease. Delivering one twice is harmless. One that this process holds already is not handed out again.

Every wake-up is worked on in a task of its own, and is read there: what cannot be read becomes a dead letter with its
reason, and a task that fails ends alone. The loop that takes them outlives all of them.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

import anyio
import msgspec
import structlog
from nats.aio.msg import Msg

from core.bus.connection import MESSAGE_NOT_FOUND, SECOND, ApiError, Bus
from core.bus.pull import Room, pull
from core.config.redaction import redactor
from core.errors import Invalid, Unavailable
from core.events import Aggregate
from core.ids import now

log = structlog.get_logger("sika.work")

RETRY_SECONDS = 1.0
"""Pause before the queue is pulled from again after the pull itself failed."""
UNREADABLE_BYTES = 4096
"""How much of a message that cannot be read its dead letter keeps."""


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a wake-up: which event led to it. `seq` 0 means: just look."""

    seq: int = 0
    type: str = ""
    id: str = ""


class Wakeup:
    """One delivery of a wake-up. Raises `Invalid` if it cannot be read.

    `generation`: when the consumer that delivers it was made, in milliseconds.
    """

    def __init__(self, bus: Bus, msg: Msg, generation: int = 0) -> None:
        self._bus = bus
        self._msg = msg
        try:
            self.actor, self.aggregate = bus.names.target(msg.subject)
            self.hint = msgspec.json.decode(msg.data, type=Hint) if msg.data else Hint()
        except (ValueError, msgspec.DecodeError) as error:
            raise Invalid(f"{msg.subject}: not a wake-up: {error}") from error
        position = msg.metadata
        self.seq = position.sequence.stream
        """Sequence in the work queue: the same over all deliveries. Names the lease."""
        self.delivery = position.num_delivered
        self.order = generation * 1000 + self.delivery
        """Orders the deliveries of one wake-up, also over consumers: a consumer that is made anew counts from 1."""

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
        self._extended = time.monotonic()
        self._lapses = 0

    @property
    def lapses(self) -> int:
        """How often this process was held up, or without NATS, for longer than a lease: each time its wake-ups may have
        been handed to others.
        """
        self._count_lapse()
        return self._lapses

    def _count_lapse(self) -> None:
        if time.monotonic() > self._extended + self.lease_seconds:
            self._lapses += 1
            self._extended = time.monotonic()

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
            self._count_lapse()
            if self.bus.connected:  # else what is sent now is not received, or too late
                self._extended = time.monotonic()
            for wakeup in list(self._held.values()):
                try:
                    await wakeup.keep()
                except Unavailable as error:
                    log.warning("lease not extended", aggregate=str(wakeup.aggregate), error=str(error))

    async def serve(self, actor: str, work: Callable[[Wakeup], Awaitable[None]], slots: int) -> None:
        """Hand out the actor's wake-ups, at most `slots` at a time, until cancelled. `work` owns each wake-up it
        gets; what it raises is logged, and the wake-up comes again after its lease.
        """
        room = Room(slots)

        async def one(msg: Msg, generation: int) -> None:
            try:
                await self._one(actor, work, msg, generation)
            except Exception:
                log.exception("wake-up failed", actor=actor, subject=msg.subject)
            finally:
                room.free()

        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    generation = await self._generation(actor)
                    async for msg in pull(self.bus, self._stream, actor, room):
                        tasks.start_soon(one, msg, generation)
                except Unavailable as error:
                    log.warning("work queue out of reach", actor=actor, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _one(self, actor: str, work: Callable[[Wakeup], Awaitable[None]], msg: Msg, generation: int) -> None:
        try:
            wakeup = Wakeup(self.bus, msg, generation)
        except Invalid as error:
            await self.bury_unreadable(actor, msg, str(error))
            await self.bus.publish(msg.reply, b"+ACK")
            return
        if wakeup.seq in self._held:
            return  # delivered again while it is worked on here: `hold` keeps it
        self._held[wakeup.seq] = wakeup
        try:
            await work(wakeup)
        finally:
            del self._held[wakeup.seq]

    async def _generation(self, actor: str) -> int:
        """When the actor's consumer was made, in milliseconds: the same for all processes that share it."""
        try:
            info = await self.bus.api(f"CONSUMER.INFO.{self._stream}.{actor}")
        except ApiError as error:
            raise Unavailable(str(error)) from error
        return int(datetime.fromisoformat(info["created"][:23].rstrip("Z") + "+00:00").timestamp() * 1000)

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
        letter = {"actor": wakeup.actor, "aggregate": str(wakeup.aggregate), "reason": reason, "hint": wakeup.hint}
        subject = self.bus.names.dlq(wakeup.actor, wakeup.aggregate)
        await self._letter(subject, letter, f"{wakeup.actor}-{wakeup.seq}")
        await wakeup.done()

    async def bury_unreadable(self, actor: str, msg: Msg, reason: str) -> None:
        """Put a message aside that cannot be read, with the reason and its first bytes (base64)."""
        seq = msg.metadata.sequence.stream
        letter = {
            "actor": actor,
            "aggregate": f"unreadable/{seq}",
            "reason": reason,
            "subject": msg.subject,
            "body": base64.b64encode(msg.data[:UNREADABLE_BYTES]).decode(),
        }
        stream = msg.metadata.stream
        await self._letter(self.bus.names.dlq(actor, Aggregate("unreadable", str(seq))), letter, f"{stream}-{seq}")

    async def _letter(self, subject: str, letter: Mapping[str, Any], key: str) -> None:
        """Store a dead letter. Raises `Unavailable`."""
        letter = {**letter, "reason": redactor.text(letter["reason"]), "at": now()}
        body = msgspec.json.encode(letter)
        reply = await self.bus.ask(subject, body, {"Nats-Msg-Id": key})
        if error := msgspec.json.decode(reply.data).get("error"):
            raise Unavailable(f"{subject}: {error.get('description')}")
        log.error("dead letter", actor=letter["actor"], aggregate=letter["aggregate"], reason=letter["reason"])
