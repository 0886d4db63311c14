"""Threads as they stand: the folded state, kept warm, and the one way to decide on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core import traces
from core.cache import ByteCache
from core.errors import Conflict, NotFound, SikaError, Unavailable
from core.events import Event, Record, RunRequested, thread
from core.log import EventLog
from core.state import ThreadState, fold, labels_of

KEPT_BYTES = 128 << 20
"""Of events whose threads are kept folded in memory (which takes some three times as much); a thread that is not kept
is read again, about 11 ms per 1 000 events.
"""
DECIDE_TRIES = 50

Decision = Callable[[ThreadState], Sequence[Event]]


class Threads:
    """A cache of folded threads. Always safe: what is decided on a stale state is refused by the log's guard."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._kept: ByteCache[str, ThreadState] = ByteCache(KEPT_BYTES)

    async def load(self, thread_id: str, *, at_least: int | None = None) -> ThreadState:
        """The thread's state as of now, or (cheaper) as of any moment not before sequence `at_least`."""
        kept = self._kept.get(thread_id)
        if kept is not None and at_least is not None and kept.seq >= at_least:
            return kept
        after = kept.seq if kept else 0
        records = [record async for record in self.log.read(thread(thread_id), after=after)]
        current = self._kept.get(thread_id)
        if current is not None and current.seq > after:  # somebody else read meanwhile
            kept, records = current, [record for record in records if record.seq > current.seq]
        return self._keep(thread_id, fold(records, kept) if records or kept is None else kept)

    def kept(self, thread_id: str) -> ThreadState | None:
        """The thread as it was when it was last looked at here, if it is in memory."""
        return self._kept.get(thread_id)

    def forget(self, thread_id: str) -> None:
        """Keep nothing of the thread in memory."""
        self._kept.drop(thread_id)

    async def existing(self, thread_id: str) -> ThreadState:
        """Like `load`, but raises `NotFound` if there is no such thread."""
        state = await self.load(thread_id)
        if not state.exists:
            raise NotFound(f"Thread {thread_id} not found")
        return state

    def fold(self, thread_id: str, records: Sequence[Record], before: ThreadState) -> ThreadState:
        """Fold records that directly follow `before`, and keep the result."""
        return self._keep(thread_id, fold(records, before))

    async def decide(
        self,
        thread_id: str,
        decision: Decision,
        *,
        actor: str,
        run: str | None = None,
        cause: str | None = None,
    ) -> tuple[ThreadState, list[Record]]:
        """Append what `decision` makes of the current state; decide again if somebody else was first.

        The decision is first tried on the state that is kept from before, or on none, as most unknown threads are new:
        the guard finds out. If it then refuses (raises), it is asked again on the current one. A decision to do nothing
        is final also on a kept state: what is done must stay done. Returns the state after the append, and what was
        appended (nothing if the decision was to do nothing). Raises what the decision raises, and what `append` does.
        """
        kept = self._kept.get(thread_id)
        state, fresh = kept or ThreadState(), False
        for _ in range(DECIDE_TRIES):
            try:
                events = decision(state)
                if events:
                    records = await self.log.append(
                        thread(thread_id),
                        events,
                        expected=state.seq,
                        actor=actor,
                        run=run,
                        cause=cause,
                        labels=labels_of(state, run, events),
                        traceparent=_traceparent(state, run, events),
                    )
                    return self.fold(thread_id, records, state), records
                if fresh or kept:
                    return state, []
            except Conflict:
                fresh = False
            except Unavailable:
                raise
            except SikaError:
                if fresh:
                    raise
            state, fresh = await self.load(thread_id), True
        raise Unavailable(f"thread {thread_id}: too many writers at once")

    def _keep(self, thread_id: str, state: ThreadState) -> ThreadState:
        old = self._kept.get(thread_id)
        if old is not None and old.seq > state.seq:
            return old
        if state.seq:
            self._kept.put(thread_id, state, state.size)
        return state


def _traceparent(state: ThreadState, run: str | None, events: Sequence[Event]) -> str | None:
    """Of the run that is decided on, or asked for."""
    known = state.runs.get(run or "")
    request = known.request if known else next((one for one in events if isinstance(one, RunRequested)), None)
    return traces.header(request) if request else None
