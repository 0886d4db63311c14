"""Turns: the writers of one process to an aggregate come one after the other, in the order of their arrival.

The log's guard lets one of them be first, and makes all others decide again: n writers at once would decide n²/4
times, and the last may never come first. In turns they decide once each. Writers in other processes are met by the
guard alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core.errors import Unavailable
from core.events import Aggregate

TURN_SECONDS = 60.0
"""Time that a writer waits for those before it."""


class _Queue:
    """The writers to one aggregate: a lock that is fair, and the number of those who hold it or wait for it."""

    __slots__ = ("lock", "writers")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.writers = 0


class Turns:
    """One per process."""

    def __init__(self) -> None:
        self._queues: dict[Aggregate, _Queue] = {}

    @asynccontextmanager
    async def turn(self, aggregate: Aggregate) -> AsyncIterator[None]:
        """Waits for the writers before, and keeps those behind waiting. Raises `Unavailable` after `TURN_SECONDS`."""
        queue = self._queues.get(aggregate)
        if queue is None:
            queue = self._queues[aggregate] = _Queue()
        queue.writers += 1
        try:
            await self._acquire(queue, aggregate)
            try:
                yield
            finally:
                queue.lock.release()
        finally:
            queue.writers -= 1
            if not queue.writers:
                del self._queues[aggregate]

    async def _acquire(self, queue: _Queue, aggregate: Aggregate) -> None:
        if queue.writers == 1:  # nobody to wait for: without the cost of a timer
            await queue.lock.acquire()
            return
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await queue.lock.acquire()
        except TimeoutError as error:
            raise Unavailable(f"{aggregate}: too many writers at once: {queue.writers} wait") from error
