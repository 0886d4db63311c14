"""A log that is only read: what the folds of an event log need, over records from anywhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from core.errors import Unavailable
from core.events import Aggregate, Event, Record
from core.replay.causes import InMemory, Logs
from core.replay.source import LogSource, Source

if TYPE_CHECKING:
    from core.log.reader import Read


class RecordedLog:
    """Stands in for the `EventLog` of repositories where there is no server. What would be appended is refused."""

    position = 0

    def __init__(self, source: Source) -> None:
        self._source = source

    async def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncGenerator[Record]:
        for record in await self._source.read(aggregate):
            if (record.seq > after or not after) and (upto is None or record.seq <= upto):
                yield record

    def unchanged_here(self, aggregate: Aggregate, checked: int, at_least: int) -> int:
        """Returns a sequence up to which nothing was appended: records do not change."""
        return max(checked, at_least)

    async def unchanged_until(self, aggregate: Aggregate, checked: int) -> int:
        """Returns the same."""
        return checked

    async def append(self, aggregate: Aggregate, events: Sequence[Event], **options: Any) -> list[Record]:
        raise Unavailable(f"{aggregate}: these records are only read; nothing is appended")


def read_of(source: Source) -> Read:
    """Returns a reader of the logs of a source: from a place on where that can be, as in the log of a server."""
    return source.from_log if isinstance(source, LogSource) else RecordedLog(source).read


def logs_of(source: Source) -> Logs:
    """Returns the logs of a source, to be read backwards: those of a server are not held."""
    return source if isinstance(source, LogSource) else InMemory(source.read)
