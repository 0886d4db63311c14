"""Where recorded events are read: a log, or a file that was exported from one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio.to_thread

from core.errors import Invalid, NotFound
from core.events import Aggregate, Record, thread
from core.ids import safe_id
from core.log.kinds import KIND, SUBAGENT

if TYPE_CHECKING:
    from core.log.reader import Read
    from core.log.store import EventLog

LAST = "@last"
"""Names the thread with the newest event."""
LAST_FAILED = "@last-failed"
"""Names the last changed one of the threads with a run that failed."""
WHOLE_ID = 36
"""Length of a UUID: an id of that length is no prefix of another one."""
MOST_NAMED = 5
"""Limit of the threads that an ambiguous prefix names."""


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


async def aggregate_of(source: Source, name: str) -> Aggregate:
    """Returns the log that a name stands for: a thread's id or the only one that begins so, `subagent/<id>`, `@last`,
    `@last-failed`.

    Raises `Invalid` for what is no name and for an ambiguous prefix, and `NotFound`.
    """
    kind, slash, identity = name.rpartition("/")
    if slash and kind == SUBAGENT:
        return Aggregate(SUBAGENT, safe_id(identity, "subagent"))
    if name == LAST:
        if newest := await source.last():
            return newest
        raise NotFound(f"{name}: there is no thread")
    if name == LAST_FAILED:
        return await _last_failed(source)
    if len(safe_id(name, "thread")) >= WHOLE_ID:
        return thread(name)
    hits = sorted([aggregate.id async for aggregate in source.threads() if aggregate.id.startswith(name)])
    if name in hits or len(hits) == 1:
        return thread(name if name in hits else hits[0])
    if not hits:
        raise NotFound(f"thread {name}: nothing in the log")
    more = f" and {len(hits) - MOST_NAMED} more" if len(hits) > MOST_NAMED else ""
    raise Invalid(f"thread {name}: {len(hits)} ids begin so: {', '.join(hits[:MOST_NAMED])}{more}")


async def _last_failed(source: Source) -> Aggregate:
    from core.replay.listing import Filter, listed_in_views, threads_of_file

    failed, listing = Filter(errors=True), None
    if isinstance(source, LogSource) and source.home is not None:
        listing = await anyio.to_thread.run_sync(listed_in_views, source.home, failed, 1)
    listing = listing or await threads_of_file(source, failed, 1)
    if not listing.summaries:
        raise NotFound(f"{LAST_FAILED}: no run of a thread failed, and no policy stopped one")
    return thread(listing.summaries[0].thread)


def read_of(source: Source) -> Read:
    """Returns a reader of the logs of a source: from a place on where that can be, as in the log of a server."""
    from core.replay.recorded import RecordedLog

    return source.from_log if isinstance(source, LogSource) else RecordedLog(source).read


async def records_of(source: Source, aggregate: Aggregate) -> Sequence[Record]:
    """Returns all events of an aggregate. Raises `NotFound` if there are none."""
    if records := await source.read(aggregate):
        return records
    raise NotFound(f"{aggregate.kind} {aggregate.id}: nothing in the log")
