"""Threads at moments, for people who look at one after the other.

Theory of operation
-------------------
The state after an event is folded from an earlier one and the events in between. The nearest of these is taken:
- the state before a run that had begun by then. It is made of the newest state, which the process keeps anyway, and
  shares its past (`core.thread.rewind`). No event before the run is read
- a *mark*: a state that was made for an earlier question. Marks are left every `STEP` events, and at each moment that
  was looked at. So each further step costs `STEP` events at most, forwards and backwards, also within a long run
- the empty state, where there is no such run, and nobody has asked yet

Marks of a thread share its messages. When their own weight exceeds `MARKS_BYTES`, those whose neighbours are nearest
go first, but for the `RECENT` used last. Threads are let go of by the bytes that they hold, those used last stay. Of
all who look at a thread at a time one folds, and the others find its marks.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import AsyncIterator
from contextlib import aclosing

from core.cache import ByteCache
from core.errors import Unavailable
from core.events import Record, thread
from core.log.reader import Read
from core.thread.fold import fold
from core.thread.rewind import before_runs, newest_begun
from core.thread.state import ThreadState

STEP = 128
"""Events between two marks."""
STEP_BYTES = 1 << 20
"""Bytes of events between two marks, if they are big."""
KEPT_BYTES = 8 << 20
"""Limit of what the marks of all threads hold."""
MARKS_BYTES = 2 << 20
"""Limit of the marks of a thread, without the messages that they share."""
RECENT = 16
"""Marks of a thread that stay, those used last."""
WAIT_SECONDS = 30.0
"""Timeout of the wait for others who look at the same thread."""


class Moments:
    """The threads of a log at moments."""

    def __init__(self, read: Read, limit: int = KEPT_BYTES) -> None:
        self._read = read
        self._marks: ByteCache[str, _Marks] = ByteCache(limit)
        self._forgotten = 0
        """Number of times that threads were forgotten: what was begun before is not kept."""

    async def at(self, thread_id: str, now: ThreadState, seq: int) -> ThreadState:
        """Returns the state after the last event up to `seq`, in all that is shown of a thread
        (`core.replay.queries.Moment`). `now`: the thread as it stands.

        Raises `Unavailable`.
        """
        if seq == now.seq:
            return now
        marks = self._marks.get(thread_id) or _Marks()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await marks.turn.acquire()
        except TimeoutError:
            raise Unavailable("others look at this thread; try again") from None
        try:
            before = now if now.seq < seq else await self._nearest(marks, now, seq)
            return await self._folded(thread_id, marks, before, seq)
        finally:
            marks.turn.release()

    def forget(self) -> None:
        """Keeps nothing: of some thread, events were erased."""
        self._forgotten += 1
        for thread_id in self._marks:
            self._marks.drop(thread_id)

    async def _nearest(self, marks: _Marks, now: ThreadState, seq: int) -> ThreadState:
        mark = marks.before(seq)
        begun = newest_begun(now, seq)
        if mark is not None and (begun is None or begun.started_seq is None or mark.seq >= begun.started_seq - 1):
            return mark
        before = await asyncio.to_thread(before_runs, now, seq)
        return mark if mark is not None and mark.seq >= before.seq else before

    async def _folded(self, thread_id: str, marks: _Marks, before: ThreadState, seq: int) -> ThreadState:
        state, forgotten = before, self._forgotten
        async with aclosing(self._read(thread(thread_id), after=before.seq, upto=seq)) as records:
            async for facts, size in _slices(records):
                state = await asyncio.to_thread(fold, facts, state)
                if forgotten == self._forgotten:
                    marks.add(state, size)
                    self._marks.put(thread_id, marks, marks.size)
        return state


async def _slices(records: AsyncIterator[Record]) -> AsyncIterator[tuple[list[Record], int]]:
    """Yields records in slices that end at marks, and their sizes in bytes."""
    facts, size = list[Record](), 0
    async for record in records:
        facts.append(record)
        size += len(record.raw)
        if len(facts) == STEP or size >= STEP_BYTES:
            yield facts, size
            facts, size = [], 0
    if facts:
        yield facts, size


class _Marks:
    """States of a thread, by their sequence."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._seqs: list[int] = []
        self._states: dict[int, tuple[ThreadState, int]] = {}
        """States with their own weight, those used last at the end."""
        self._own = self._shared = 0

    @property
    def size(self) -> int:
        return self._own + self._shared

    def before(self, seq: int) -> ThreadState | None:
        """Returns the last state up to a sequence."""
        place = bisect_right(self._seqs, seq)
        if not place:
            return None
        mark = self._states[self._seqs[place - 1]] = self._states.pop(self._seqs[place - 1])
        return mark[0]

    def add(self, state: ThreadState, size: int) -> None:
        """Adds a state that was made of `size` bytes of events after another one."""
        if state.seq in self._states:
            return
        own = _weight(state)
        insort(self._seqs, state.seq)
        self._states[state.seq] = state, own
        self._own, self._shared = self._own + own, self._shared + size
        while self._own > MARKS_BYTES and len(self._seqs) > RECENT:
            self._thin()

    def _thin(self) -> None:
        """Lets go of the mark whose neighbours are nearest to each other."""
        old = set(list(self._states)[:-RECENT])
        places = (place for place, seq in enumerate(self._seqs) if seq in old)
        seq = self._seqs.pop(min(places, key=self._gap))
        self._own -= self._states.pop(seq)[1]

    def _gap(self, place: int) -> int:
        before = self._seqs[place - 1] if place else 0
        after = self._seqs[place + 1] if place + 1 < len(self._seqs) else self._seqs[place]
        return after - before


def _weight(state: ThreadState) -> int:
    """Estimates the bytes that a state takes besides what it shares with others."""
    commits, runs = state.commits, state.runs
    references = len(commits.tail) + len(commits.pages) + len(commits.frames) + len(runs.tail) + len(runs.pages)
    return 2048 + 120 * len(state.places) + 100 * references
