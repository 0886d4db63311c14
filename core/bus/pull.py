"""Pulling from a durable consumer: as many messages as there are free slots, through reconnects and lost requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

import msgspec
import structlog

from core.bus.connection import Bus
from core.bus.subjects import SECOND
from core.errors import Unavailable

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = structlog.get_logger("sika.pull")

PULL_SECONDS = 20.0
"""Expiry of a pull request at the server. A lost request is noticed at the reconnect, else 5 s after its expiry."""
RETRY_SECONDS = 1.0


class Room:
    """Free slots for messages. The consumer of a message calls `free` when it is done with it."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._available = asyncio.Event()
        self._available.set()

    async def wait(self) -> int:
        await self._available.wait()
        return self._slots

    def take(self) -> None:
        self._slots -= 1
        if self._slots <= 0:
            self._available.clear()

    def free(self) -> None:
        self._slots += 1
        if self._slots > 0:
            self._available.set()


class _NobodyAnswers(Exception):
    """The consumer was deleted, or has no leader at the moment."""


async def pull(bus: Bus, stream: str, consumer: str, room: Room) -> AsyncGenerator[Msg]:
    """Yields the consumer's messages, for ever. One request is outstanding at a time, for at most the free slots.
    Raises `ApiError` if the consumer was deleted, and `Unavailable` if that cannot be found out.
    """
    inbox = bus.nc.new_inbox()
    arrived: asyncio.Queue[Msg | None] = asyncio.Queue()

    async def on_message(msg: Msg) -> None:
        arrived.put_nowait(msg)

    subscription = await bus.subscribe(f"{inbox}.*", on_message)
    request = 0
    try:
        with bus.on_reconnect(lambda: arrived.put_nowait(None)):
            while True:
                batch = await room.wait()
                request += 1
                payload = msgspec.json.encode({"batch": batch, "expires": int(PULL_SECONDS * SECOND)})
                subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
                try:
                    await bus.request_from(subject, payload, f"{inbox}.{request}")
                except Unavailable as error:
                    log.warning("consumer out of reach", consumer=consumer, error=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                try:
                    async for msg in _answers(arrived, f"{inbox}.{request}", batch):
                        room.take()
                        yield msg
                except _NobodyAnswers:
                    await bus.api(f"CONSUMER.INFO.{stream}.{consumer}")
    finally:
        await subscription.unsubscribe()


async def _answers(arrived: asyncio.Queue[Msg | None], mine: str, batch: int) -> AsyncIterator[Msg]:
    """Yields the messages of a request, until it is used up, ended by the server, or lost. Late messages of earlier
    requests come, too. Raises `_NobodyAnswers`.
    """
    for _ in range(batch):
        while True:
            try:
                async with asyncio.timeout(PULL_SECONDS + 5):
                    msg = await arrived.get()
            except TimeoutError:
                return
            if msg is None:  # reconnected: the server has forgotten the request
                return
            status = msg.headers.get("Status") if msg.headers else None
            if status is None:
                break
            if msg.subject == mine and status != "100":
                if status != "408":  # 408: nothing came in time
                    log.debug("pull ended", status=status, text=(msg.headers or {}).get("Description"))
                    await asyncio.sleep(RETRY_SECONDS)
                if status in ("503", "404"):
                    raise _NobodyAnswers
                return
        yield msg
