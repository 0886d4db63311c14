"""The items of a batch at work: fewer while the model's provider limits the rate of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import structlog

log = structlog.get_logger("sika.subagents")


QUOTA_SECONDS = (30.0, 60.0, 120.0, 300.0, 600.0)
"""Pauses of a batch whose provider says that a quota is used up, by how often in a row: 18 minutes together."""


class Quota:
    """Pauses a batch while a quota is used up, a longer time after each refusal. Refusals of one *wave*, of items that
    were at work at the same time, count once.
    """

    def __init__(self) -> None:
        self.wave = 0
        self._refusals = 0
        self._until = 0.0

    def is_patient(self, wave: int) -> bool:
        """Tells whether there is another pause, or one has begun since the wave."""
        return wave < self.wave or self._refusals < len(QUOTA_SECONDS)

    def refused(self, wave: int) -> float:
        """Begins a pause, unless the refused item was begun before the last one. Returns its seconds; 0 without one."""
        if wave != self.wave:
            return 0.0
        seconds = QUOTA_SECONDS[self._refusals]
        self._until = anyio.current_time() + seconds
        self.wave, self._refusals = self.wave + 1, self._refusals + 1
        log.info("the batch pauses: the provider says that a quota is used up", seconds=seconds)
        return seconds

    def answered(self) -> None:
        self._refusals = 0

    async def passed(self) -> None:
        """Waits for the end of the pause."""
        await anyio.sleep_until(self._until)


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
