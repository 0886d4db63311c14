"""The safety net: wakes actors for what the log says, whoever appended it, and forwards timers.

One durable consumer on the log, shared by all processes, looks at headers only. Where latency matters the appender
has sent the same wake-up at once; then this one is dropped as a duplicate, or not even sent if the actor's own first
event is already there (`Actor.proof`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog
from nats.aio.msg import Msg

from core.actor import Actor
from core.bus import Bus
from core.errors import Unavailable
from core.events import Event
from core.pull import Room, pull
from core.work import Hint, WorkQueue

log = structlog.get_logger("sika.dispatch")

GATHER_SECONDS = 0.25
"""How long events are gathered before they are looked at: by then most wake-ups have been answered and need not be
sent.
"""
BATCH = 500
RETRY_SECONDS = 1.0


class Dispatcher:
    """Sends each actor the wake-ups of the events it subscribes to."""

    def __init__(self, bus: Bus, queue: WorkQueue, actors: Sequence[Actor[Event]]) -> None:
        self.bus = bus
        self.queue = queue
        self._readers: dict[str, list[Actor[Event]]] = {}
        for actor in actors:
            for event in actor.subscription:
                self._readers.setdefault(_name(event), []).append(actor)

    async def ensure(self) -> None:
        config = {"durable_name": "dispatch", "ack_policy": "explicit", "max_deliver": -1, "max_ack_pending": 10_000}
        stream = self.bus.names.stream("log")
        await self.bus.ensure_consumer(stream, {**config, "headers_only": True, "deliver_policy": "all"})
        timers = {**config, "durable_name": "timers", "filter_subject": self.bus.names.all_wakes}
        await self.bus.ensure_consumer(self.bus.names.stream("timer"), timers)

    async def events(self) -> None:
        """Runs for as long as the process: the log's events to wake-ups."""
        room = Room(BATCH)
        arrived: list[Msg] = []
        some = asyncio.Event()

        async def gather() -> None:
            async for msg in pull(self.bus, self.bus.names.stream("log"), "dispatch", room):
                arrived.append(msg)
                some.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gather())
            while True:
                await some.wait()
                await asyncio.sleep(GATHER_SECONDS)
                some.clear()
                batch = arrived[:]
                arrived.clear()
                await self._dispatch(batch)
                for _ in batch:
                    room.free()

    async def timers(self) -> None:
        """Runs for as long as the process: timers that fired to wake-ups."""
        room = Room(BATCH)
        async for msg in pull(self.bus, self.bus.names.stream("timer"), "timers", room):
            actor, aggregate = self.bus.names.target(msg.subject)
            try:
                await self.queue.wake(actor, aggregate, Hint(), key=f"timer-{msg.metadata.sequence.stream}")
                await self.bus.publish(msg.reply, b"+ACK")
            except Unavailable as error:
                log.warning("timer not forwarded yet", error=str(error))
            finally:
                room.free()

    async def _dispatch(self, batch: Sequence[Msg]) -> None:
        """Wake-ups for a batch of events, in order; what could not be sent is not acked, and comes again."""
        proven = {(msg.subject, (msg.headers or {}).get("Sika-Type", "")): n for n, msg in enumerate(batch)}
        for number, msg in enumerate(batch):
            headers = msg.headers or {}
            try:
                for actor in self._readers.get(headers.get("Sika-Type", ""), ()):
                    if not _awake(actor, msg.subject, number, proven):
                        await self._wake(actor, msg, headers)
                await self.bus.publish(msg.reply, b"+ACK")
            except Unavailable as error:
                log.warning("not dispatched yet", subject=msg.subject, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _wake(self, actor: Actor[Event], msg: Msg, headers: Mapping[str, str]) -> None:
        identity = headers.get("Nats-Msg-Id", "")
        hint = Hint(seq=msg.metadata.sequence.stream, type=headers.get("Sika-Type", ""), id=identity)
        await self.queue.wake(actor.name, self.bus.names.aggregate(msg.subject), hint, key=identity)


def _awake(actor: Actor[Event], subject: str, number: int, proven: Mapping[tuple[str, str], int]) -> bool:
    """Whether a later event of the same aggregate in the batch shows that the actor has woken up and seen this one."""
    return actor.proof is not None and proven.get((subject, _name(actor.proof)), -1) > number


def _name(event: type[Event]) -> str:
    return str(event.__struct_config__.tag)
