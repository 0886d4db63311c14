"""The safety net: wakes actors for what the log says, whoever appended it, and forwards timers.

A process hears the whole log anyway (for its read models), so it looks at every event's type as it comes by and sends
its actors their wake-ups; its position is stored on the bus, by actor. The next process to run the actor goes on from
there: at most `STORE_SECONDS` of events are looked at twice, and a wake-up sent twice is dropped by its id, or finds
nothing to do. Where latency matters the appender has sent the same wake-up at once; then this one is dropped, or not
even sent, if the actor's own first event is already there (`Actor.proof`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from core.actor import Actor
from core.bus.connection import Bus
from core.bus.pull import Room, pull
from core.bus.queue import Hint, WorkQueue
from core.bus.streams import delete, find
from core.bus.subjects import SECOND
from core.errors import Invalid, SikaError, Unavailable
from core.events import UNREADABLE, Aggregate, Event, Opaque, Record, ThreadErased
from core.lifecycle import IMPORTED
from core.log.feed import Listener
from core.log.kinds import SUBAGENT
from core.log.store import EventLog
from core.runtime.ordering import queue_of

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = structlog.get_logger("sika.dispatch")

GATHER_SECONDS = 0.25
"""Time for which events are gathered: by then most wake-ups have been answered and need not be sent. Those of prompt
actors are sent at once (`Actor.prompt`).
"""
BATCH = 500
STORE_SECONDS = 5.0
"""Interval at which the position is stored."""
RETRY_SECONDS = 1.0
STANDING_SECONDS = 60.0
"""Time for which one wake-up is sent again before the loop itself is begun again."""
ACK_SECONDS = 5
"""A timer that a process was about to forward when it died, another one forwards after this."""


ERASED = str(ThreadErased.__struct_config__.tag)


class Dispatcher:
    """Sends the actors of one process the wake-ups of the events they subscribe to."""

    def __init__(self, log: EventLog, queue: WorkQueue, actors: Sequence[Actor[Any]]) -> None:
        self._log = log
        self._bus = log.bus
        self._queue = queue
        self._subscribers = [_Subscriber(actor) for actor in actors]
        self._stored_at = 0.0
        self.standing: str | None = None
        """Set while a wake-up is not taken: no later one is sent."""

    @property
    def position(self) -> int:
        """Everything up to this log sequence has been dispatched to all of them."""
        return min((subscriber.position for subscriber in self._subscribers), default=0)

    def position_of(self, actor: str) -> int:
        """Returns the log sequence up to which one actor's events have been dispatched."""
        return next(subscriber.position for subscriber in self._subscribers if subscriber.name == actor)

    async def ensure(self) -> None:
        """Reads each actor's position in the log. A new actor begins at the end; one that can prove what it has seen
        begins at the beginning.
        """
        last = await self._log.last()
        for subscriber in self._subscribers:
            position = await self._stored_position(subscriber.name)
            subscriber.position = (0 if subscriber.proof else last) if position is None else min(position, last)
            if position is None:
                await self._store(subscriber)

    async def run(self) -> None:
        """Runs for as long as the process."""
        with self._log.listen(None, bodies=False) as listener:
            behind = True
            while True:
                if behind:
                    await self._catch_up()
                records, behind = await self._gather(listener)
                if not behind:
                    await self._dispatch(records)

    async def _gather(self, listener: Listener) -> tuple[list[Record], bool]:
        """Waits for events, and for those that follow within a while; wakes the prompt actors meanwhile. Returns as
        `Listener.take` does.
        """
        records, lost = await listener.take()
        until = asyncio.get_running_loop().time() + GATHER_SECONDS
        new = records
        while not lost:
            await self._wake_prompt(new)
            try:
                async with asyncio.timeout_at(until):
                    await listener.ready()
            except TimeoutError:
                break
            new, lost = await listener.drain()
            records += new
        return records, lost

    async def _wake_prompt(self, batch: Sequence[Record]) -> None:
        for subscriber in self._subscribers if batch else ():
            if subscriber.actor.prompt:
                await self._wake_for(subscriber, batch)

    async def _catch_up(self) -> None:
        batch: list[Record] = []
        async for record in self._log.between(self.position, await self._log.last(), bodies=False):
            batch.append(record)
            if len(batch) == BATCH:
                await self._dispatch(batch)
                batch = []
        await self._dispatch(batch)

    async def _dispatch(self, batch: Sequence[Record]) -> None:
        """Wake-ups for a batch of events, in order. What could not be sent is sent later: nothing is passed over."""
        if not batch:
            return
        for record in batch:
            if record.type == UNREADABLE and isinstance(record.event, Opaque):  # nothing is decoded here
                await self._repeated(f"log/{record.seq}", partial(self._bury, record))
        for subscriber in self._subscribers:
            await self._wake_for(subscriber, batch)
        now = asyncio.get_running_loop().time()
        if now > self._stored_at + STORE_SECONDS:
            self._stored_at = now
            for subscriber in self._subscribers:
                await self._store(subscriber)

    async def _wake_for(self, subscriber: _Subscriber, batch: Sequence[Record]) -> None:
        for record in subscriber.select(batch):
            await self._wake(queue_of(subscriber.actor, record.aggregate), record)
        subscriber.position = max(subscriber.position, batch[-1].seq)

    async def _wake(self, queue: str, record: Record) -> None:
        hint = Hint(seq=record.seq, type=record.type, id=record.id)
        wake = partial(self._queue.wake, queue, record.aggregate, hint, key=record.id)
        await self._repeated(f"{queue} for {record.aggregate}", wake)

    async def _bury(self, record: Record) -> None:
        assert isinstance(record.event, Opaque)
        await self._queue.bury_refused(record.seq, record.event.problem or "", record.raw.decode())

    async def _repeated(self, what: str, send: Callable[[], Awaitable[None]]) -> None:
        """Sends until NATS takes it. What it will never take is left out, and named. Raises `Unavailable` after
        `STANDING_SECONDS`: then the loop begins again where it stands.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            try:
                await send()
                self.standing = None
                return
            except Unavailable as error:
                self.standing = "NATS does not take a wake-up, and later ones wait"
                log.warning("not dispatched yet", what=what, error=str(error))
                if clock() - began > STANDING_SECONDS:
                    raise
            except SikaError as error:
                log.error("not dispatched", what=what, error=str(error))
                self._log.refused.note("a wake-up that NATS will never take; the server's log says why")
                return
            await asyncio.sleep(RETRY_SECONDS)

    # ── positions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _stored_position(self, actor: str) -> int | None:
        stored = await find(self._bus, "place", {"last_by_subj": self._bus.names.place(actor)})
        if stored is None:
            return None
        try:
            return msgspec.json.decode(stored.data, type=int)
        except msgspec.DecodeError as error:
            log.error(
                "the position of an actor cannot be read", actor=actor, error=str(error), stored=repr(stored.data[:80])
            )
            return None

    async def _store(self, subscriber: _Subscriber) -> None:
        try:
            await self._bus.ask(self._bus.names.place(subscriber.name), b"%d" % subscriber.position)
        except Unavailable as error:
            log.warning("position not stored", actor=subscriber.name, error=str(error))


class _Subscriber:
    """An actor, as far as the dispatcher is concerned."""

    def __init__(self, actor: Actor[Any]) -> None:
        self.actor = actor
        self.name = actor.name
        self.position = 0
        self._kind = actor.kind
        self.proof = _name(actor.proof) if actor.proof else None
        whole = {event for event in actor.only if not isinstance(event, str)}
        self._labels = frozenset(label for label in actor.only if isinstance(label, str))
        self._types = {_name(event): not actor.only or event in whole for event in actor.subscription}
        """The types it subscribes to, and whether their events need no label."""
        self._forgets = actor.initial is not None
        """The runtime erases the actor's state when its thread is erased."""

    def select(self, batch: Sequence[Record]) -> list[Record]:
        """Returns the events it must be woken for."""
        records = [record for record in batch if record.seq > self.position and self._needs(record)]
        if self.proof and records:
            proven = {record.aggregate: record.seq for record in batch if record.type == self.proof}
            records = [record for record in records if proven.get(record.aggregate, 0) < record.seq]
        return records

    def _needs(self, record: Record) -> bool:
        return self.matches(record) or (self._forgets and record.type == ERASED)

    def matches(self, record: Record) -> bool:
        unlabelled = self._types.get(record.type)
        if unlabelled is None or (not unlabelled and self._labels.isdisjoint(record.labels)):
            return False
        kind = record.head.kind
        if kind != self._kind and (self._kind is not None or kind == SUBAGENT):
            return False
        return IMPORTED not in record.labels and record.type not in map(_name, self.actor.ignored())


def concerns(actor: Actor[Any], record: Record) -> bool:
    """Returns whether an actor is woken for an event."""
    return _Subscriber(actor).matches(record)


async def ensure_timers(bus: Bus) -> None:
    config: Mapping[str, Any] = {
        "ack_wait": ACK_SECONDS * SECOND,
        "max_deliver": -1,
        "max_ack_pending": 10_000,
        "ack_policy": "explicit",
        "durable_name": "timers",
        "filter_subject": bus.names.all_wakes,
    }
    await bus.ensure_consumer(bus.names.stream("timer"), config)


async def forward_timers(bus: Bus, queue: WorkQueue) -> None:
    """Runs for as long as the process: timers that fired to wake-ups. What is no timer becomes a dead letter."""
    room = Room(BATCH)
    while True:
        try:
            await ensure_timers(bus)  # again, if it was deleted
            async for msg in pull(bus, bus.names.stream("timer"), "timers", room):
                try:
                    await _forward(bus, queue, msg)
                finally:
                    room.free()
        except Unavailable as error:
            log.warning("timers out of reach", error=str(error))
        await asyncio.sleep(RETRY_SECONDS)


async def _forward(bus: Bus, queue: WorkQueue, msg: Msg) -> None:
    seq = msg.metadata.sequence.stream
    try:
        try:
            actor, aggregate = bus.names.target(msg.subject)
        except ValueError as error:
            await queue.bury_unreadable("timers", msg, f"{msg.subject}: not a timer: {error}")
        else:
            await _forwarded(queue, msg, actor, aggregate)
        await bus.publish(msg.reply, b"+ACK")
        await delete(bus, "timer", seq)
    except Unavailable as error:
        log.warning("timer not forwarded yet, or not cleaned up", error=str(error))


async def _forwarded(queue: WorkQueue, msg: Msg, actor: str, aggregate: Aggregate) -> None:
    """Sends a timer's wake-up. One that NATS will never take becomes a dead letter."""
    try:
        await queue.wake(actor, aggregate, Hint(), key=f"timer-{msg.metadata.sequence.stream}")
    except Invalid as error:
        await queue.bury_unreadable("timers", msg, str(error))


def _name(event: type[Event]) -> str:
    return str(event.__struct_config__.tag)
