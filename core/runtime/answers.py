"""Which events have been answered: by whom, and up to where the log was looked through for it.

A wake-up may come twice, so before an event is handled it is looked whether its actor has answered it, by a later event
of the same aggregate. Each later event is looked at once, and not once for each event that is handled: of an aggregate
it is kept what answers what, from one sequence up to another.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.cache import ByteCache
from core.events import Aggregate, Record
from core.log.store import EventLog

CACHE_BYTES = 8 << 20
"""Limit of the answers in memory: about 200 bytes each."""
_ANSWER_BYTES = 200


class Later:
    """Events of an aggregate after the event `first`, up to the sequence `upto` of the stream."""

    def __init__(self, first: int) -> None:
        self.first = self.upto = first
        self.last = 0
        """Sequence of the last event, 0 if there was none."""
        self.answers: set[tuple[str, str]] = set()
        """The actor of an event, and the id of its cause."""

    def by(self, actor: str, event: str) -> bool:
        """Returns whether the actor has answered the event."""
        return (actor, event) in self.answers


class Answers:
    """One per process."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._cached: ByteCache[Aggregate, Later] = ByteCache(CACHE_BYTES)
        self._actors: frozenset[str] = frozenset()

    def watch(self, actors: Iterable[str]) -> None:
        """Looks out for the answers of these actors, too."""
        self._actors = self._actors.union(actors)
        self._cached = ByteCache(CACHE_BYTES)

    async def event(self, aggregate: Aggregate, seq: int) -> tuple[Record | None, Later]:
        """Returns an event, None if it was erased, and what has come after it, as `after` does. Of an aggregate of
        which nothing is kept, both are one read. Raises `Unavailable`.
        """
        if self._cached.get(aggregate) is not None:
            event = await anext(self._log.read(aggregate, after=seq - 1, upto=seq), None)
            return event, await self.after(aggregate, seq)
        event, later = None, Later(seq)
        async for record in self._log.read(aggregate, after=seq - 1, bodies=False):
            if record.seq == seq:
                event = await self._log.whole(record)
            else:
                self._add(record, later)
        self._keep(aggregate, later)
        return event, later

    async def after(self, aggregate: Aggregate, seq: int) -> Later:
        """Returns what has come after a sequence, up to now; perhaps also what came before it. Raises `Unavailable`."""
        later = self._cached.get(aggregate)
        if later is None or later.first > seq:
            later = Later(seq)
        until = await self._log.unchanged_until(aggregate, later.upto)
        if until is None:
            async for record in self._log.read(aggregate, after=later.upto, bodies=False):
                self._add(record, later)
        else:
            later.upto = max(later.upto, until)
        self._keep(aggregate, later)
        return later

    def _add(self, record: Record, later: Later) -> None:
        later.last = max(later.last, record.seq)
        later.upto = max(later.upto, record.seq)
        if record.head.cause is not None and record.head.actor in self._actors:
            later.answers.add((record.head.actor, record.head.cause))

    def _keep(self, aggregate: Aggregate, later: Later) -> None:
        self._cached.put(aggregate, later, _ANSWER_BYTES * (1 + len(later.answers)))
