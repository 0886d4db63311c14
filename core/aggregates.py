"""Folded aggregates of one kind, kept warm, and the one way to decide on them.

For everything that is not a thread and fits in memory (one user's store, assistants, schedules; the accounts): the
state is always folded from the log as it is now, so that every replica gives the same answer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from core.cache import ByteCache
from core.errors import Conflict, Unavailable
from core.events import Aggregate, Event, Record
from core.log import EventLog

S = TypeVar("S")
DECIDE_TRIES = 50
KEPT_BYTES = 16 << 20
"""Of events of one kind whose aggregates are kept folded."""

Fold = Callable[[Iterable[Record], S], S]
"""The state after these records, beginning at a state that must not be changed: pure and total."""


class _Folded(NamedTuple, Generic[S]):
    """A state as of a sequence, made of so many bytes of events."""

    seq: int
    state: S
    size: int


class Aggregates(Generic[S]):
    """Aggregates of one kind. `empty` is the state before the first event; `kept` bytes of events are kept folded."""

    def __init__(self, log: EventLog, kind: str, fold: Fold[S], empty: S, *, kept: int = KEPT_BYTES) -> None:
        self.log = log
        self.kind = kind
        self._fold = fold
        self._empty = empty
        self._kept: ByteCache[str, _Folded[S]] = ByteCache(kept)

    async def load(self, identity: str) -> S:
        """The state as of now."""
        return (await self._load(identity)).state

    async def decide(
        self, identity: str, decision: Callable[[S], Sequence[Event]], *, actor: str, cause: str | None = None
    ) -> tuple[S, list[Record]]:
        """Append what `decision` makes of the current state; decide again if somebody else was first. A decision
        refuses by raising. Returns the state after the append, and what was appended.
        """
        aggregate = Aggregate(self.kind, identity)
        for _ in range(DECIDE_TRIES):
            folded = await self._load(identity)
            events = decision(folded.state)
            if not events:
                return folded.state, []
            try:
                records = await self.log.append(aggregate, events, expected=folded.seq, actor=actor, cause=cause)
            except Conflict:
                continue
            return self._keep(identity, folded, records).state, records
        raise Unavailable(f"{aggregate}: too many writers at once")

    async def _load(self, identity: str) -> _Folded[S]:
        folded = self._kept.get(identity) or _Folded(0, self._empty, 0)
        records = [record async for record in self.log.read(Aggregate(self.kind, identity), after=folded.seq)]
        return self._keep(identity, folded, records) if records else folded

    def _keep(self, identity: str, before: _Folded[S], records: Sequence[Record]) -> _Folded[S]:
        size = before.size + sum(len(record.raw) for record in records)
        folded = _Folded(records[-1].seq, self._fold(records, before.state), size)
        kept = self._kept.get(identity)
        if kept is None or folded.seq >= kept.seq:
            self._kept.put(identity, folded, size)
        return folded
