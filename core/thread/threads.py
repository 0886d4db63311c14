"""Threads as they stand: the folded state, kept warm, and the one way to decide on it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from cachetools import LRUCache

from core import traces
from core.errors import Conflict, Unavailable
from core.events import (
    Aggregate,
    Event,
    Record,
    RunRequested,
    SubagentStarted,
    ThreadCreated,
    ThreadErased,
    ThreadPruned,
    ThreadShared,
    ThreadUnshared,
    type_of,
)
from core.log import repository
from core.log.kinds import KIND, SUBAGENT
from core.log.repository import Folded, Repository
from core.log.store import EventLog
from core.thread.fold import Folding, fold
from core.thread.ownership import owned
from core.thread.snapshots import ThreadForm
from core.thread.state import Share, ThreadState, labels_of

KEPT_BYTES = 128 << 20
"""Limit of the events whose threads stay folded in memory (which takes some three times as much); a thread that is not
kept is read again, about 11 ms per 1 000 events.
"""

STARTED, ERASED = type_of(SubagentStarted.__name__), type_of(ThreadErased.__name__)
OWNERS = 10_000
"""Threads whose owners are kept."""
SHARED = 1_000
"""Threads whose shares are kept."""
_SHARING = {type_of(cls.__name__) for cls in (ThreadShared, ThreadUnshared, ThreadPruned, ThreadErased)}
"""Types of the events that change what is shared of a thread."""

Decision = repository.Decision[ThreadState]


class Shared(NamedTuple):
    """What is shared of a thread after the event `seq`; nothing of one that is not there."""

    seq: int
    user: str
    shares: Mapping[str, Share]


class Threads(Repository[ThreadState]):
    """Conversations of one kind. `snapshots`: the directory where they are kept, if they are. `subagents`: those that
    threads call; those that subagents call are of the same kind.
    """

    def __init__(
        self,
        log: EventLog,
        snapshots: Path | None = None,
        *,
        kind: str = KIND,
        cache_bytes: int | None = None,
        subagents: Threads | None = None,
    ) -> None:
        super().__init__(
            log,
            kind,
            fold,
            ThreadState(),
            cache_bytes=KEPT_BYTES if cache_bytes is None else cache_bytes,
            weigh=lambda state: state.size,
            form=ThreadForm(),
            directory=snapshots,
        )
        self.subagents = self if kind == SUBAGENT else subagents
        self._owners: LRUCache[str, str] = LRUCache(OWNERS)
        """Users of threads, which stay the same, also when an id is used again."""
        self._shared: LRUCache[str, Shared] = LRUCache(SHARED)

    def aggregate(self, identity: str) -> Aggregate:
        return Aggregate(self.kind, identity)

    async def bury(self, identity: str, *, by: str, actor: str) -> None:
        """Puts a conversation's tombstone, and drops what was made of its events. Idempotent; an unknown one is no
        error. Nothing is folded, so that one with damaged events can be buried, too.
        """
        async with self.log.turns.turn(self.aggregate(identity)):
            await self._bury(identity, by, actor)

    async def _bury(self, identity: str, by: str, actor: str) -> None:
        log, aggregate = self.log, self.aggregate(identity)
        for attempt in range(repository.DECIDE_TRIES):
            tip = await log.tip(aggregate)
            last = [record.event async for record in log.read(aggregate, after=tip - 1)] if tip else []
            if not last:
                return
            try:
                if not isinstance(last[-1], ThreadErased):
                    await log.append(aggregate, [ThreadErased(by=by)], expected=tip, actor=actor)
                return await self.drop(identity)
            except Conflict:
                await repository.back_off(attempt)
        raise Unavailable(f"{aggregate}: too many writers at once")

    async def erase(
        self,
        identity: str,
        *,
        before: int | None = None,
        seconds: float = math.inf,
        rest: Callable[[Aggregate], Awaitable[object]] | None = None,
    ) -> bool:
        """Erases events and the subagents that they name: these first, so that a repeated erasure finds them. `rest`
        waits until nobody is at work on a subagent any more: it shares the files of the thread.
        """
        until = time.monotonic() + seconds
        if self.subagents is not None:
            async for record in self.log.read(self.aggregate(identity), upto=before, bodies=False):
                event = (await self.log.whole(record)).event if record.type == STARTED else None
                if isinstance(event, SubagentStarted):
                    await self.subagents.bury(event.subagent, by=str(self.aggregate(identity)), actor=SUBAGENT)
                    if rest is not None:
                        await rest(self.subagents.aggregate(event.subagent))
                    if not await self.subagents.erase(event.subagent, seconds=until - time.monotonic(), rest=rest):
                        return False
        return await super().erase(identity, before=before, seconds=until - time.monotonic())

    async def owner(self, thread_id: str) -> str | None:
        """Returns the user of a thread; None if it is not there. Nothing is folded: a log begins with its owner, or
        with the tombstone of an earlier one of the same owner (`core.runs.reuse`). That of a deleted thread ends with a
        tombstone.

        Raises `Unavailable`.
        """
        aggregate = self.aggregate(thread_id)
        last = await self.log.newest(aggregate)
        if last is None or last.type == ERASED:
            return None
        if thread_id not in self._owners:
            first = await self.log.first(aggregate)
            if first is not None and first.type == ERASED:
                first = await self.log.first_after(aggregate, first.seq)
            created = first and (await self.log.whole(first)).event
            if not isinstance(created, ThreadCreated | ThreadPruned):
                return (await self.existing(thread_id)).user
            self._owners[thread_id] = created.user
        return self._owners[thread_id]

    async def shared(self, thread_id: str) -> Shared:
        """Returns what is shared of a thread. One that was asked for before costs one lookup, and the heads of the
        events since; it is folded only if one of these changes what is shared.

        Raises `Unavailable`.
        """
        tip, known = await self.log.tip(self.aggregate(thread_id)), self._shared.get(thread_id)
        if known is None or await self._sharing_changed(thread_id, known.seq, tip):
            state = await self.load(thread_id)
            known = Shared(state.seq, state.user, state.shares if state.exists else {})
        else:
            known = known._replace(seq=tip)
        self._shared[thread_id] = known
        return known

    async def _sharing_changed(self, thread_id: str, after: int, tip: int) -> bool:
        if tip <= after:
            return tip < after
        async with aclosing(self.log.read(self.aggregate(thread_id), after=after, upto=tip, bodies=False)) as records:
            async for record in records:
                if record.type in _SHARING:
                    return True
        return False

    async def existing(self, thread_id: str) -> ThreadState:
        """Like `load`, but raises `NotFound` if there is no such thread."""
        return owned(await self.load(thread_id), thread_id, None)

    def fold(self, thread_id: str, records: Sequence[Record], before: ThreadState) -> ThreadState:
        """Folds records that directly follow `before`, and keeps the result."""
        return self._keep(thread_id, self._folded(records, folded(before), fold(records, before))).state

    def _folding(self, state: ThreadState) -> Callable[[Sequence[Record]], ThreadState]:
        """Folds in place: a copy of a long thread for each slice would cost more than the slice."""
        folding = Folding(state)

        def apply(records: Sequence[Record]) -> ThreadState:
            for record in records:
                folding.apply(record)
            return folding.state

        return apply

    def _labels(self, identity: str, state: ThreadState, run: str | None, events: Sequence[Event]) -> frozenset[str]:
        return labels_of(state, run, events)

    def _traceparent(self, state: ThreadState, run: str | None, events: Sequence[Event]) -> str | None:
        """Returns the trace of the run that is decided on, or asked for."""
        known = state.runs.get(run or "")
        request = known.request if known else next((one for one in events if isinstance(one, RunRequested)), None)
        return traces.header(request) if request else None


def folded(state: ThreadState) -> Folded[ThreadState]:
    """Returns a state for `Threads.decide` to begin with."""
    return Folded(state.seq, state, state.size, state.seq)
