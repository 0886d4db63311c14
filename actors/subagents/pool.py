"""The items of a batch at work: fewer while the model's provider limits the rate of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import structlog

log = structlog.get_logger("sika.subagents")


class Pool:
    """Halves the number of items at once when a provider refuses a request for its rate. Adds one item again after as
    many were answered in a row. A worker that takes a batch over begins with `most`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limiter = anyio.CapacityLimiter(most)
        self._period = self._answered = 0

    @property
    def size(self) -> int:
        return int(self._limiter.total_tokens)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[int]:
        """Waits for a place, and yields its period: a new one begins when the pool shrinks."""
        async with self._limiter:
            yield self._period

    def refused(self, period: int) -> None:
        """Shrinks, unless the place is from before the pool has shrunk: its item adds nothing new."""
        if period == self._period:
            self._period, self._answered = self._period + 1, 0
            self._limiter.total_tokens = max(1, self.size // 2)
            log.info("fewer items at once: the provider limits the rate of requests", items=self.size)

    def answered(self, period: int) -> None:
        if period == self._period and self.size < self._most:
            self._answered += 1
            if self._answered >= self.size:
                self._answered = 0
                self._limiter.total_tokens = self.size + 1
