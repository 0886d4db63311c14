"""Where recorded events are read: a log, or a file that was exported from one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from core.bus.streams import counts
from core.errors import NotFound
from core.events import Aggregate, Record
from core.log.store import EventLog
from core.thread.threads import KIND


class Source(Protocol):
    """Recorded events by their aggregates."""

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        """Returns all events of an aggregate, the oldest first; none for one that is unknown."""
        ...

    def threads(self) -> AsyncIterator[Aggregate]:
        """Yields every thread."""
        ...


class LogSource:
    """The log of a server."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        return [record async for record in self._log.read(aggregate)]

    async def threads(self) -> AsyncIterator[Aggregate]:
        names = self._log.bus.names
        for subject in await counts(self._log.bus, "log", names.log(Aggregate(KIND, "*"))):
            yield names.aggregate(subject)


async def records_of(source: Source, aggregate: Aggregate) -> Sequence[Record]:
    """Returns all events of an aggregate. Raises `NotFound` if there are none."""
    if records := await source.read(aggregate):
        return records
    raise NotFound(f"{aggregate.kind} {aggregate.id}: nothing in the log")
