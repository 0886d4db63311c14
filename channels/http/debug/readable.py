"""The logs that may be seen from one that somebody looks at, for questions about what happened: others are absent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from channels.http.endpoints.call import OwnedLog
from core.events import Aggregate, Record, thread
from core.replay.moments.past import Past
from core.replay.moments.places import record_at
from core.thread.state import ThreadState


class Readable:
    """Logs as `core.replay.causes.Logs`, read from places and never held: those that may be seen from `log`."""

    def __init__(self, log: OwnedLog) -> None:
        self._log = log

    async def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncGenerator[Record]:
        """Yields the events of an aggregate as `Reading.read` does."""
        if await self._log.may_see(aggregate):
            async with aclosing(self._log.read(aggregate, after=after, upto=upto, bodies=bodies)) as records:
                async for record in records:
                    yield record

    async def back(self, aggregate: Aggregate, *, before: int = 0) -> AsyncGenerator[Record]:
        if await self._log.may_see(aggregate):
            async with aclosing(self._log.back(aggregate, before=before, bodies=False)) as records:
                async for record in records:
                    yield record

    async def first(self, aggregate: Aggregate) -> Record | None:
        async with aclosing(self.read(aggregate)) as records:
            return await anext(records, None)

    async def whole(self, record: Record) -> Record:
        if record.head.blob is None:
            return record
        async with aclosing(self._log.read(record.aggregate, after=record.seq - 1, upto=record.seq)) as records:
            return await anext(records, record)

    async def record_at(self, aggregate: Aggregate, place: str) -> Record:
        """Returns the event at a place (`core.replay.causes.find`). Raises `NotFound`."""
        return await record_at(self.read, aggregate, place)

    async def past(self, thread_id: str) -> Past:
        """Returns the past of a thread of the user. Raises `NotFound`."""
        call = self._log.call
        now = await call.services.commands.state(call.user, thread_id)

        async def at(seq: int | None) -> ThreadState:
            return now if seq is None else await call.live.moments.at(thread_id, now, seq)

        return Past(self._log.read, thread(thread_id), at)
