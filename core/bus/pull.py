"""Pulling from a durable consumer: as many messages as there are free slots, through reconnects and lost requests.

A room that is shut takes no messages, and takes back its request: NATS drops it as soon as nobody hears its answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
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
        self._open = asyncio.Event()
        self._open.set()
        self._stop: Callable[[], Awaitable[None]] | None = None

    async def wait(self) -> int:
        await self._available.wait()
        return self._slots

    async def shut(self) -> None:
        """Takes back the request for messages. Afterwards none comes."""
        if self._open.is_set():
            self._open.clear()
            if self._stop is not None:
                await self._stop()

    def reopen(self) -> None:
        self._open.set()

    async def opened(self) -> None:
        """Waits until it is open."""
        await self._open.wait()

    @contextmanager
    def stopping(self, stop: Callable[[], Awaitable[None]]) -> Iterator[None]:
        """Has `stop` called when it is shut."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

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
    while True:
        await room.opened()
        messages = _pull(bus, stream, consumer, room)
        async with aclosing(messages):
            async for msg in messages:
                yield msg


async def _pull(bus: Bus, stream: str, consumer: str, room: Room) -> AsyncGenerator[Msg]:
    """Yields the consumer's messages until the room is shut."""
    inbox = bus.nc.new_inbox()
    arrived: asyncio.Queue[Msg | None] = asyncio.Queue()

    async def on_message(msg: Msg) -> None:
        arrived.put_nowait(msg)

    subscription, stopped = await bus.subscribe(f"{inbox}.*", on_message), False

    async def stop() -> None:
        nonlocal stopped
        stopped = True
        await subscription.unsubscribe()
        while not arrived.empty():  # they are for others now
            if (msg := arrived.get_nowait()) is not None and not (msg.headers and msg.headers.get("Status")):
                with suppress(Unavailable):
                    await bus.publish(msg.reply, b"-NAK")
        arrived.put_nowait(None)

    request = 0
    try:
        with bus.on_reconnect(lambda: arrived.put_nowait(None)), room.stopping(stop):
            while True:
                batch = await room.wait()
                if stopped:
                    return
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
        if not stopped:
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
