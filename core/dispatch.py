"""The safety net: wakes actors for what the log says, whoever appended it, and forwards timers.

One durable consumer on the log for each actor, shared by the processes that run the actor, looks at headers only. Where
latency matters the appender has sent the same wake-up at once; then this one is dropped as a duplicate, or not even
sent, if the actor's own first event is already there (`Actor.proof`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from nats.aio.msg import Msg

from core.actor import Actor
from core.bus import SECOND, ApiError, Bus
from core.errors import Unavailable
from core.events import Event
from core.log import AUDIENCE
from core.pull import Room, pull
from core.work import Hint, WorkQueue

log = structlog.get_logger("sika.dispatch")

GATHER_SECONDS = 0.25
"""How long events are gathered: by then most wake-ups have been answered and need not be sent."""
BATCH = 500
RETRY_SECONDS = 1.0
ACK_SECONDS = 5
"""What a process that died was about to dispatch, another one does after this."""
_CONSUMER = {
    "ack_wait": ACK_SECONDS * SECOND,
    "max_deliver": -1,
    "max_ack_pending": 10_000,
}
GROUP = "one"
_PINNED = {"ack_policy": "all", "priority_policy": "pinned_client", "priority_groups": [GROUP]}
"""One process at a time dispatches for an actor, so it may ack a whole batch at once."""


class Dispatcher:
    """Sends one actor the wake-ups of the events it subscribes to."""

    def __init__(self, bus: Bus, queue: WorkQueue, actor: Actor[Any]) -> None:
        self.bus = bus
        self.queue = queue
        self._actor = actor.name
        self._wanted = {_name(event) for event in actor.subscription}
        self._summoned = {_name(event) for event in actor.summoned}
        self._proof = _name(actor.proof) if actor.proof else None
        self._stream = bus.names.stream("log")

    async def ensure(self) -> None:
        """Its place in the log. An actor that is new begins with what is new; one that can prove what it has seen, at
        the beginning."""
        config = {**_CONSUMER, **_PINNED, "priority_timeout": ACK_SECONDS * SECOND}
        config |= {"durable_name": f"dispatch-{self._actor}", "headers_only": True}
        await self.bus.ensure_consumer(self._stream, {**config, "deliver_policy": "all" if self._proof else "new"})

    async def run(self) -> None:
        """Runs for as long as the process."""
        room = Room(BATCH)
        arrived: list[Msg] = []
        some = asyncio.Event()

        async def gather() -> None:
            async for msg in pull(self.bus, self._stream, f"dispatch-{self._actor}", room, GROUP):
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

    async def _dispatch(self, batch: Sequence[Msg]) -> None:
        """Wake-ups for a batch of events, in order. From the first that could not be sent on, they come again."""
        proven = {msg.subject: n for n, msg in enumerate(batch) if _type(msg) == self._proof}
        done: Msg | None = None
        try:
            for number, msg in enumerate(batch):
                if self._is_wanted(msg) and proven.get(msg.subject, -1) < number:
                    await self._wake(msg)
                done = msg
        except Unavailable as error:
            log.warning("not dispatched yet", subject=msg.subject, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        if done is not None:
            with suppress(Unavailable):  # unacked ones come again
                await self.bus.publish(done.reply, b"+ACK")

    def _is_wanted(self, msg: Msg) -> bool:
        name = _type(msg)
        if name in self._summoned:
            return self._actor in (msg.headers or {}).get(AUDIENCE, "").split(",")
        return name in self._wanted

    async def _wake(self, msg: Msg) -> None:
        identity = (msg.headers or {}).get("Nats-Msg-Id", "")
        hint = Hint(seq=msg.metadata.sequence.stream, type=_type(msg), id=identity)
        await self.queue.wake(self._actor, self.bus.names.aggregate(msg.subject), hint, key=identity)


async def ensure_timers(bus: Bus) -> None:
    config: Mapping[str, Any] = {
        **_CONSUMER,
        "ack_policy": "explicit",
        "durable_name": "timers",
        "filter_subject": bus.names.all_wakes,
    }
    await bus.ensure_consumer(bus.names.stream("timer"), config)


async def forward_timers(bus: Bus, queue: WorkQueue) -> None:
    """Runs for as long as the process: timers that fired to wake-ups."""
    room = Room(BATCH)
    stream = bus.names.stream("timer")
    async for msg in pull(bus, stream, "timers", room):
        actor, aggregate = bus.names.target(msg.subject)
        seq = msg.metadata.sequence.stream
        try:
            await queue.wake(actor, aggregate, Hint(), key=f"timer-{seq}")
            await bus.publish(msg.reply, b"+ACK")
            await bus.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})
        except (Unavailable, ApiError) as error:
            log.warning("timer not forwarded yet, or not cleaned up", error=str(error))
        finally:
            room.free()


def _type(msg: Msg) -> str:
    return (msg.headers or {}).get("Sika-Type", "")


def _name(event: type[Event]) -> str:
    return str(event.__struct_config__.tag)
