"""Custody of what a platform delivers: in order for each chat, tried again while the log is out of reach."""

from __future__ import annotations

import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from core.errors import Unavailable, ungrouped

LANES = 16
LANE_LENGTH = 64
"""Deliveries that wait in a lane."""
CUSTODY_SECONDS = 30.0
"""Most time for one attempt."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

T = TypeVar("T")
Handle = Callable[[T], Awaitable[None]]
"""Takes a delivery into custody: returns when it is in the log. Raises `Unavailable` to be tried again."""
Then = Callable[[], Awaitable[None]]

log = structlog.get_logger("sika.channels.chat")


class _Waiting(NamedTuple, Generic[T]):
    delivery: T
    then: Then


class Lanes(Generic[T]):
    """Takes deliveries. Those of a chat stay in order: one that is not in custody holds up those after it."""

    def __init__(self, platform: str, handle: Handle[T], lanes: list[MemoryObjectSendStream[_Waiting[T]]]) -> None:
        self._platform = platform
        self._handle = handle
        self._lanes = lanes

    def offer(self, chat: str, delivery: T, then: Then) -> bool:
        """Puts a delivery into its lane. `then`: called when it is in custody. Returns whether there was room."""
        try:
            self._lanes[zlib.crc32(chat.encode()) % len(self._lanes)].send_nowait(_Waiting(delivery, then))
        except anyio.WouldBlock:
            log.warning("too many messages wait for the log", platform=self._platform)
            return False
        return True

    async def work(self, lane: MemoryObjectReceiveStream[_Waiting[T]]) -> None:
        async for waiting in lane:
            if await self._in_custody(waiting.delivery):
                await waiting.then()

    async def _in_custody(self, delivery: T) -> bool:
        """Tries however long the log is away. Returns False for what can never be taken."""
        pause = FIRST_PAUSE
        while True:
            try:
                with anyio.fail_after(CUSTODY_SECONDS):
                    await self._handle(delivery)
                return True
            except (Unavailable, TimeoutError) as error:
                reason = str(error) or f"it did not take the message in {CUSTODY_SECONDS:g} s"
                log.warning("a message waits for the log", platform=self._platform, reason=reason)
            except Exception:
                log.exception("a message was not taken", platform=self._platform)
                return False
            await anyio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)


@asynccontextmanager
async def custody(platform: str, handle: Handle[T]) -> AsyncIterator[Lanes[T]]:
    """Opens the lanes of an account, until the block ends."""
    streams = [anyio.create_memory_object_stream[_Waiting[T]](LANE_LENGTH) for _ in range(LANES)]
    lanes = Lanes(platform, handle, [send for send, _ in streams])
    try:
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                for _, receive in streams:
                    tasks.start_soon(lanes.work, receive)
                yield lanes
                tasks.cancel_scope.cancel()
    finally:
        for send, receive in streams:
            send.close()
            receive.close()
