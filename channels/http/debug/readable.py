"""The logs that the user of a call may see, for questions about what happened: other users' logs are absent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from channels.http.endpoints.call import Call
from channels.http.server.reading import Whole
from core.errors import NotFound
from core.events import Aggregate, Record
from core.log.kinds import KIND, SUBAGENT
from core.replay.moments.past import Past
from core.replay.moments.places import record_at
from core.runs.prompts import OF_THREAD, SETUP
from core.thread.state import ThreadState
from core.user.schedules import KIND as SCHEDULES


class Readable:
    """Logs as `core.replay.causes.Logs`, read from places and never held.

    Subagents are named by the logs that called them only, so they are the user's if those are. What models got is the
    user's if the thread is that it was recorded for; contents without anything of a user are everybody's.
    """

    def __init__(self, call: Call) -> None:
        self._call, self._reading = call, call.live.reading

    async def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncGenerator[Record]:
        """Yields the events of an aggregate as `Reading.read` does."""
        if await self._may_see(aggregate):
            async with aclosing(self._reading.read(aggregate, after=after, upto=upto, bodies=bodies)) as records:
                async for record in records:
                    yield record

    async def back(self, aggregate: Aggregate, *, before: int = 0) -> AsyncGenerator[Record]:
        if await self._may_see(aggregate):
            async with aclosing(self._reading.back(aggregate, before=before, bodies=False)) as records:
                async for record in records:
                    yield record

    async def first(self, aggregate: Aggregate) -> Record | None:
        async with aclosing(self.read(aggregate)) as records:
            return await anext(records, None)

    async def whole(self, record: Record) -> Record:
        if record.head.blob is None:
            return record
        async with aclosing(self._reading.read(record.aggregate, after=record.seq - 1, upto=record.seq)) as records:
            return await anext(records, record)

    async def record_at(self, aggregate: Aggregate, place: str) -> Record:
        """Returns the event at a place (`core.replay.causes.find`). Raises `NotFound`."""
        return await record_at(self.read, aggregate, place)

    async def past(self, thread_id: str) -> Past:
        """Returns the past of a thread of the user. Raises `NotFound`."""
        now = await self._call.services.commands.state(self._call.user, thread_id)

        async def at(seq: int) -> ThreadState:
            return await self._call.live.moments.at(thread_id, now, seq)

        return Past(self._reading.read, thread_id, now, at)

    async def contents(self, whole: Whole, aggregate: Aggregate) -> Sequence[Record]:
        """Returns all events of a log of what models got, which is short. Raises `HttpError` (413)."""
        return await whole.read(aggregate) if await self._may_see(aggregate) else ()

    async def _may_see(self, aggregate: Aggregate) -> bool:
        kind = aggregate.kind
        if kind not in (KIND, OF_THREAD):
            return kind in (SUBAGENT, SETUP) or (kind, aggregate.id) == (SCHEDULES, self._call.user)
        try:
            await self._call.services.commands.check_owner(self._call.user, aggregate.id)
        except NotFound:
            return False
        return True
