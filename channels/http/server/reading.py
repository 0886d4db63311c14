"""The one door through which requests read the log: few batches at a time, and never more than a bound in memory.

Theory of operation
-------------------
A client may ask for a thread of any length, and all clients come back at once when a server was away. So what a request
reads comes in batches of `BATCH` facts or `BATCH_BYTES`, of which `READING` are being read at a time. A turn ends with
its batch: a client that reads slowly holds its own batch, and nobody's turn.

Questions about much of a log (what took time, what differs) read it in batches, too, and hold their answer only:
`WHOLE` of them at a time may, each `ANSWER_BYTES` at most. `sika log` on the machine answers in full.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from channels.http.server.errors import HttpError
from core.errors import Unavailable
from core.events import Aggregate, Record
from core.log.store import EventLog

READING = 4
"""Batches that are read at the same time."""
BATCH = 50
BATCH_BYTES = 1 << 20
WHOLE = 2
"""Requests with such questions that are answered at the same time."""
WHOLE_BYTES = 64 << 20
"""Bytes of events that one of them may hold: of a run, or of what models got besides the conversation."""
ANSWER_BYTES = 16 << 20
"""Bytes of the answer to one of them."""
WAIT_SECONDS = 30.0
"""Timeout of the wait for a turn."""


class Reading:
    """The log of a process, for its clients."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._batches = asyncio.Semaphore(READING)
        self._wholes = asyncio.Semaphore(WHOLE)

    async def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncGenerator[Record]:
        """Yields the aggregate's events like `EventLog.read`. Raises `Unavailable`, also if no turn comes in time."""
        async with aclosing(self._log.read(aggregate, after=after, upto=upto, bodies=bodies)) as records:
            while batch := await self._batch(records):
                for record in batch:
                    yield record
                await asyncio.sleep(0)

    async def back(self, aggregate: Aggregate, *, before: int = 0, bodies: bool = True) -> AsyncGenerator[Record]:
        """Yields the aggregate's events newest first, like `EventLog.back`. Raises `Unavailable`."""
        async with aclosing(self._log.back(aggregate, before=before, bodies=bodies)) as records:
            while batch := await self._batch(records):
                for record in batch:
                    yield record
                await asyncio.sleep(0)

    async def between(self, after: int, upto: int) -> AsyncGenerator[Record]:
        """Yields the events of all aggregates like `EventLog.between`, without big bodies. Raises `Unavailable`."""
        async with aclosing(self._log.between(after, upto, bodies=False)) as records:
            while batch := await self._batch(records):
                for record in batch:
                    yield record
                await asyncio.sleep(0)

    async def _batch(self, records: AsyncGenerator[Record]) -> list[Record]:
        batch, size = list[Record](), 0
        async with _turn(self._batches):
            async for record in records:
                batch.append(record)
                size += len(record.raw)
                if len(batch) >= BATCH or size >= BATCH_BYTES:
                    break
        return batch

    async def holds(self, aggregate: Aggregate, seq: int) -> bool:
        """Tells whether an aggregate has an event of this sequence."""
        async with aclosing(self.read(aggregate, after=seq - 1, upto=seq, bodies=False)) as records:
            return await anext(records, None) is not None

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[Whole]:
        """Gives a turn of answering a question about much of a log. Raises `Unavailable` if none comes in time."""
        async with _turn(self._wholes):
            yield Whole(self)


class Whole:
    """Bounds of one request: what it holds of logs, and its answer."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._left, self._answer = WHOLE_BYTES, ANSWER_BYTES
        self._logs: dict[Aggregate, Sequence[Record]] = {}

    def spend(self, size: int) -> None:
        """Takes bytes of the answer. Raises `HttpError` (413) beyond `ANSWER_BYTES`."""
        self._answer -= size
        if self._answer < 0:
            raise _too_large(f"the answer is longer than {ANSWER_BYTES >> 20} MiB: ask about one run")

    def hold(self, record: Record) -> None:
        """Takes the bytes of an event that is held. Raises `HttpError` (413) beyond `WHOLE_BYTES`."""
        self._left -= len(record.raw)
        if self._left < 0:
            kind, identity = record.aggregate
            raise _too_large(f"{kind} {identity}: more than the {WHOLE_BYTES >> 20} MiB that a request may hold")

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        """Returns all events of an aggregate, the oldest first. Raises `HttpError` (413) beyond `WHOLE_BYTES`."""
        if aggregate in self._logs:
            return self._logs[aggregate]
        records = list[Record]()
        async with aclosing(self._reading.read(aggregate)) as following:
            async for record in following:
                self.hold(record)
                records.append(record)
        self._logs[aggregate] = records
        return records


def _too_large(text: str) -> HttpError:
    return HttpError(413, f"{text}; `sika log` answers this on the server", "too_large")


@asynccontextmanager
async def _turn(turns: asyncio.Semaphore) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await turns.acquire()
    except TimeoutError:
        raise Unavailable("other logs are being read; try again") from None
    try:
        yield
    finally:
        turns.release()
