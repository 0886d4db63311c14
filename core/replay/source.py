"""Where recorded events are read: a log, or a file that was exported from one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from core.errors import NotFound
from core.events import Aggregate, Record
from core.log.kinds import KIND
from core.replay import causes

if TYPE_CHECKING:
    from core.log.reader import Read
    from core.log.store import EventLog


class Source(Protocol):
    """Recorded events by their aggregates."""

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        """Returns all events of an aggregate, the oldest first; none for one that is unknown."""
        ...

    def threads(self) -> AsyncIterator[Aggregate]:
        """Yields every thread."""
        ...

    def events(self) -> AsyncIterator[Record]:
        """Yields the events of all aggregates, one at a time; those of one aggregate oldest first."""
        ...

    async def last(self) -> Aggregate | None:
        """Returns the thread with the newest event; None without threads."""
        ...


class LogSource:
    """The log of a server. `home`: its data directory, with the read models that find threads."""

    def __init__(self, log: EventLog, home: Path | None = None) -> None:
        self._log = log
        self.home = home

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        return [record async for record in self._log.read(aggregate)]

    @property
    def from_log(self) -> Read:
        return self._log.read

    def back(self, aggregate: Aggregate, *, before: int = 0) -> AsyncGenerator[Record]:
        """Reads backwards, and leaves out bodies that lie outside of the log (`core.replay.causes.Logs`)."""
        return self._log.back(aggregate, before=before, bodies=False)

    async def first(self, aggregate: Aggregate) -> Record | None:
        record = await self._log.first(aggregate)
        return record and await self._log.whole(record)

    async def whole(self, record: Record) -> Record:
        """Returns an event with its body. One of which only the envelope is there is read again."""
        if not causes.is_envelope(record):
            return await self._log.whole(record)
        async with aclosing(self._log.read(record.aggregate, after=record.seq - 1, upto=record.seq)) as records:
            return await anext(records, record)

    def follow(self, aggregate: Aggregate, after: int) -> AsyncIterator[Record]:
        """Yields the events of an aggregate after a sequence, and new ones as they come, without end."""
        return self._log.follow(aggregate, after=after)

    async def threads(self) -> AsyncIterator[Aggregate]:
        from core.bus.streams import counts  # a reader of files loads no bus

        names = self._log.bus.names
        for subject in await counts(self._log.bus, "log", names.log(Aggregate(KIND, "*"))):
            yield names.aggregate(subject)

    async def events(self) -> AsyncIterator[Record]:
        async for record in self._log.between(0, await self._log.last()):
            yield record

    async def last(self) -> Aggregate | None:
        from core.bus.streams import find

        newest = await find(self._log.bus, "log", {"last_by_subj": self._log.bus.names.log(Aggregate(KIND, "*"))})
        return self._log.bus.names.aggregate(newest.subject) if newest else None


async def records_of(source: Source, aggregate: Aggregate) -> Sequence[Record]:
    """Returns all events of an aggregate. Raises `NotFound` if there are none."""
    if records := await source.read(aggregate):
        return records
    raise NotFound(f"{aggregate.kind} {aggregate.id}: nothing in the log")
