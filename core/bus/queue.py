"""Wake-ups: the work queue that sends actors to aggregates; its leases, timers and dead letters.

A wake-up names an aggregate and carries no decision. It is delivered to one process at a time. While that process
extends its lease (in-progress acks), no other gets it; if the process dies, it is delivered again after the lease. A
second delivery is harmless. A wake-up that this process holds already is not handed out again.

Every wake-up is decoded and handled in a task of its own: an unreadable message becomes a dead letter with its reason,
and a task that fails ends alone. The loop that takes wake-ups outlives all of them.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import msgspec
import structlog

from core.bus.connection import Bus
from core.bus.errors import CONSUMER_NOT_FOUND, ApiError
from core.bus.pull import Room, pull
from core.bus.streams import counts, erase_all, find, messages
from core.bus.subjects import SECOND
from core.config.redaction import redactor
from core.control import sendable
from core.errors import Invalid, SikaError, Unavailable
from core.events import Aggregate
from core.ids import now, stamp

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = structlog.get_logger("sika.work")

RETRY_SECONDS = 1.0
"""Pause before the queue is pulled from again after the pull itself failed."""
SET_AT = "Sika-Set-At"
"""Header of a timer: the time at which it was set, by the clock of who set it."""
TIMER_RESOLUTION = timedelta(milliseconds=1)
"""Added to the time of a timer, so that it is never early."""
REST_SECONDS = 10.0
"""Time in which the handlers of an aggregate notice that it was deleted; of one that hangs nobody waits for the end."""
UNREADABLE_BYTES = 4096
"""Limit of the part of an unreadable message that its dead letter keeps."""


REASON_CHARACTERS = 10_000
"""Limit of the reason in a dead letter, which must fit a message."""


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a wake-up: the event that led to it. `seq` is 0 if there is none. `again`: it became a dead letter,
    and somebody wants it handled all the same. `share`: whose share of the places a run takes (`core.runs.share`); if
    it is empty, the user's of the thread.
    """

    seq: int = 0
    type: str = ""
    id: str = ""
    again: bool = False
    share: str = ""


class Slot(Protocol):
    """A slot that work holds, and gives to others while it waits for them."""

    def free(self) -> None: ...

    def take(self) -> None: ...


class Wakeup:
    """A delivery of a wake-up. Raises `Invalid` if it cannot be read.

    `generation` is the time when its consumer was created, in milliseconds.
    """

    def __init__(self, bus: Bus, msg: Msg, generation: int = 0, room: Room | None = None) -> None:
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
        self.sent = position.timestamp
        self.order = generation * 1000 + self.delivery
        """Orders the deliveries of a wake-up, also over consumers: a consumer that is created anew counts from 1."""
        self.acked = False
        self.rooms: list[Slot] = [room] if room is not None else []
        """What the work on it holds a slot of."""
        self._waits = 0

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Gives the slot to others while the work waits for them. They may be as many as there are slots, so that all
        would wait for ever. Afterwards there may be one more at work than there are slots.
        """
        self._waits += 1
        if self._waits == 1:
            for room in self.rooms:
                room.free()
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                for room in self.rooms:
                    room.take()

    async def keep(self) -> None:
        """Extends the lease."""
        await self._bus.publish(self._msg.reply, b"+WPI")

    async def done(self) -> None:
        self.acked = True
        await self._bus.publish(self._msg.reply, b"+ACK")

    async def again(self, seconds: float = 0.0) -> None:
        """Releases the lease: the wake-up is delivered again after a pause."""
        payload = b'-NAK {"delay": %d}' % int(seconds * SECOND) if seconds else b"-NAK"
        await self._bus.publish(self._msg.reply, payload)


class WorkQueue:
    """Sends wake-ups, and hands out those of an actor."""

    def __init__(self, bus: Bus, lease_seconds: float) -> None:
        self.bus = bus
        self.lease_seconds = lease_seconds
        self._stream = bus.names.stream("cmd")
        self._in_turn: set[str] = set()
        """Actors whose wake-ups are handed out one after the other."""
        self._in_progress: dict[int, Wakeup] = {}
        self._extended = time.monotonic()
        self._lapses = 0

    @property
    def lapses(self) -> int:
        """The number of times that this process was blocked, or without NATS, for longer than a lease. Each time its
        wake-ups may have been delivered to others.
        """
        self._count_lapse()
        return self._lapses

    def _count_lapse(self) -> None:
        if time.monotonic() > self._extended + self.lease_seconds:
            self._lapses += 1
            self._extended = time.monotonic()

    async def wake(self, actor: str, aggregate: Aggregate, hint: Hint, *, key: str) -> None:
        """Wakes an actor. The same key within two minutes is sent once. Raises `Unavailable`."""
        subject = self.bus.names.cmd(actor, aggregate)
        await self.bus.store(subject, msgspec.json.encode(hint), {"Nats-Msg-Id": f"{actor}-{key}"})

    async def nudge(self, actor: str, aggregate: Aggregate, hint: Hint, *, key: str) -> None:
        """Wakes an actor without waiting for the acknowledgement: the dispatcher repeats a wake-up that was lost."""
        subject = self.bus.names.cmd(actor, aggregate)
        await self.bus.publish(subject, msgspec.json.encode(hint), {"Nats-Msg-Id": f"{actor}-{key}"})

    async def wake_at(self, when: datetime, actor: str, aggregate: Aggregate, *, key: str) -> None:
        """Wakes an actor at a time, by a message schedule (ADR-51) that survives restarts. Never early; the
        same key replaces.
        """
        subject = self.bus.names.timer(actor, aggregate, key)
        headers = {
            "Nats-Schedule": f"@at {(when + TIMER_RESOLUTION).astimezone().isoformat(timespec='milliseconds')}",
            "Nats-Schedule-Target": self.bus.names.wake(actor, aggregate),
            "Nats-Rollup": "sub",
            SET_AT: now(),
        }
        await self.bus.store(subject, msgspec.json.encode(Hint()), headers)

    async def fire_set_after(self, moment: datetime) -> None:
        """Wakes the actors of the timers that were set after a moment, as if these had fired; of a timer within two
        minutes once. Raises `Unavailable`.
        """
        async for timer in messages(self.bus, "timer", self.bus.names.all_timers):
            if (timer.header(SET_AT) or "") > stamp(moment):
                with suppress(ValueError, Invalid):  # of somebody else, and not readable
                    actor, aggregate = self.bus.names.target(timer.header("Nats-Schedule-Target") or "")
                    await self.wake(actor, aggregate, Hint(), key=f"timer-{timer.seq}")

    async def ensure(self, actor: str, *, anew: bool = False, in_turn: bool = False) -> None:
        """Creates or updates the actor's durable consumer. `anew` makes unacked wake-ups available at once. `in_turn`:
        it hands out a wake-up only after the one before was acknowledged.
        """
        self._in_turn = self._in_turn | {actor} if in_turn else self._in_turn - {actor}
        config = {
            "durable_name": actor,
            "filter_subject": self.bus.names.cmd_of(actor),
            "ack_policy": "explicit",
            "ack_wait": int(self.lease_seconds * SECOND),
            "max_deliver": -1,
            "max_ack_pending": 1 if in_turn else 100_000,
        }
        await self.bus.ensure_consumer(self._stream, config, anew=anew)

    async def hold(self) -> None:
        """Extends the leases of the wake-ups in work, until cancelled."""
        while True:
            await asyncio.sleep(self.lease_seconds / 3)
            self._count_lapse()
            if self.bus.connected:  # else the extension is not received, or too late
                self._extended = time.monotonic()
            for wakeup in list(self._in_progress.values()):
                try:
                    await wakeup.keep()
                except Unavailable as error:
                    log.warning("lease not extended", aggregate=str(wakeup.aggregate), error=str(error))

    async def serve(self, actor: str, work: Callable[[Wakeup], Awaitable[None]], room: Room) -> None:
        """Hands out the actor's wake-ups, as many at a time as there is room for, until cancelled. `work` owns each
        wake-up it gets. Its errors are logged, and the wake-up is delivered again after its lease. A consumer that was
        deleted is created anew.
        """

        async def guarded(msg: Msg, generation: int) -> None:
            try:
                await self._work_on(actor, work, msg, generation, room)
            except Exception:
                log.exception("wake-up failed", actor=actor, subject=msg.subject)
            finally:
                room.free()

        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    generation = await self._generation(actor)
                    async for msg in pull(self.bus, self._stream, actor, room):
                        tasks.start_soon(guarded, msg, generation)
                except (Unavailable, Invalid) as error:
                    log.warning("work queue out of reach", actor=actor, error=str(error))
                    await self._restore(actor, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _restore(self, actor: str, error: SikaError) -> None:
        """Creates the actor's consumer anew if the error says that there is none."""
        if isinstance(error, ApiError) and error.err_code == CONSUMER_NOT_FOUND:
            try:
                await self.ensure(actor, in_turn=actor in self._in_turn)
            except (Unavailable, Invalid) as failure:
                log.warning("consumer not created", actor=actor, error=str(failure))

    async def _work_on(
        self, actor: str, work: Callable[[Wakeup], Awaitable[None]], msg: Msg, generation: int, room: Room
    ) -> None:
        try:
            wakeup = Wakeup(self.bus, msg, generation, room)
        except Invalid as error:
            await self.bury_unreadable(actor, msg, str(error))
            await self.bus.publish(msg.reply, b"+ACK")
            return
        if wakeup.seq in self._in_progress:
            return  # delivered again while it is worked on here: `hold` extends its lease
        self._in_progress[wakeup.seq] = wakeup
        try:
            await work(wakeup)
        finally:
            del self._in_progress[wakeup.seq]

    async def _generation(self, actor: str) -> int:
        """Returns the creation time of the actor's consumer in milliseconds, the same for all processes."""
        info = await self.bus.api(f"CONSUMER.INFO.{self._stream}.{actor}")
        return int(datetime.fromisoformat(info["created"][:23].rstrip("Z") + "+00:00").timestamp() * 1000)

    async def exists(self, seq: int) -> bool:
        """True if this wake-up is still in the queue (not acked)."""
        return await find(self.bus, "cmd", {"seq": seq}) is not None

    async def at_work(self, aggregate: Aggregate) -> list[str]:
        """Returns the actors that have wake-ups for an aggregate in the queue: waiting, in work, or given back."""
        subjects = await counts(self.bus, "cmd", self.bus.names.cmd("*", aggregate))
        return sorted({self.bus.names.target(subject)[0] for subject in subjects})

    async def rest(self, aggregate: Aggregate) -> None:
        """Waits until an aggregate has no wake-ups in the queue, at most for `REST_SECONDS`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                while await self.at_work(aggregate):  # noqa: ASYNC110  the queue is of all processes
                    await asyncio.sleep(REST_SECONDS / 100)

    async def letters(self, aggregate: Aggregate) -> int:
        """Returns the number of dead letters of an aggregate."""
        return sum((await counts(self.bus, "dlq", self.bus.names.dlq("*", aggregate))).values())

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────

    async def bury(self, wakeup: Wakeup, reason: str) -> None:
        """Moves a wake-up that cannot be processed to the dead letters, with the reason."""
        letter = {"actor": wakeup.actor, "aggregate": str(wakeup.aggregate), "reason": reason, "hint": wakeup.hint}
        subject = self.bus.names.dlq(wakeup.actor, wakeup.aggregate)
        await self._letter(subject, letter, f"{wakeup.actor}-{wakeup.seq}")
        await wakeup.done()

    async def bury_unreadable(self, actor: str, msg: Msg, reason: str) -> None:
        """Stores a dead letter for an unreadable message, with the reason and its first bytes (base64)."""
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

    async def bury_refused(self, seq: int, problem: str, shown: str) -> None:
        """Stores a dead letter for a message of the log that is no event, with what is shown of it."""
        letter = {
            "actor": "log",
            "aggregate": f"unreadable/{seq}",
            "reason": problem,
            "shown": shown,
        }
        await self._letter(self.bus.names.dlq("log", Aggregate("unreadable", str(seq))), letter, f"log-{seq}")

    async def erase_letters(self, aggregate: Aggregate) -> None:
        """Erases the dead letters of an aggregate: their reasons may quote it. Raises `Unavailable`."""
        await erase_all(self.bus, "dlq", self.bus.names.dlq("*", aggregate))

    async def _letter(self, subject: str, letter: Mapping[str, Any], key: str) -> None:
        """Stores a dead letter. Raises `Unavailable`."""
        reason = redactor.text(sendable(letter["reason"]))[:REASON_CHARACTERS]
        letter = {**letter, "reason": reason, "at": now()}
        await self.bus.store(subject, msgspec.json.encode(letter), {"Nats-Msg-Id": key})
        log.error("dead letter", actor=letter["actor"], aggregate=letter["aggregate"], reason=reason)
