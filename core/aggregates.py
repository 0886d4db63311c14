"""Folded aggregates of one kind, kept warm, and the one way to decide on them.

For everything that is not a thread and fits in memory (one user's store, assistants, schedules; the accounts): the
state is always folded from the log as it is now, so that every replica gives the same answer at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from core.errors import Conflict, Unavailable
from core.events import Aggregate, Event, Record
from core.log import EventLog

S = TypeVar("S")
DECIDE_TRIES = 50

Fold = Callable[[Iterable[Record], S], S]
"""The state after these records, beginning at a state that must not be changed: pure and total."""


class Aggregates(Generic[S]):
    """Aggregates of one kind. `empty` is the state before the first event; at most `kept` are kept folded."""

    def __init__(self, log: EventLog, kind: str, fold: Fold[S], empty: S, *, kept: int = 1000) -> None:
        self.log = log
        self.kind = kind
        self._fold = fold
        self._empty = empty
        self._most = kept
        self._kept: OrderedDict[str, tuple[int, S]] = OrderedDict()

    async def load(self, identity: str) -> S:
        """The state as of now."""
        return (await self._load(identity))[1]

    async def decide(
        self, identity: str, decision: Callable[[S], Sequence[Event]], *, actor: str, cause: str | None = None
    ) -> tuple[S, list[Record]]:
        """Append what `decision` makes of the current state; decide again if somebody else was first. A decision
        refuses by raising. Returns the state after the append, and what was appended.
        """
        aggregate = Aggregate(self.kind, identity)
        for _ in range(DECIDE_TRIES):
            seq, state = await self._load(identity)
            events = decision(state)
            if not events:
                return state, []
            try:
                records = await self.log.append(aggregate, events, expected=seq, actor=actor, cause=cause)
            except Conflict:
                continue
            return self._keep(identity, records[-1].seq, self._fold(records, state)), records
        raise Unavailable(f"{aggregate}: too many writers at once")

    async def _load(self, identity: str) -> tuple[int, S]:
        seq, state = self._kept.get(identity, (0, self._empty))
        records = [record async for record in self.log.read(Aggregate(self.kind, identity), after=seq)]
        if not records:
            return seq, state
        return records[-1].seq, self._keep(identity, records[-1].seq, self._fold(records, state))

    def _keep(self, identity: str, seq: int, state: S) -> S:
        if seq >= self._kept.get(identity, (0, state))[0]:
            self._kept[identity] = (seq, state)
            self._kept.move_to_end(identity)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return state
