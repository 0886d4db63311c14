"""Threads as they stand: the folded state, kept warm, and the one way to decide on it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from core import traces
from core.errors import Conflict, NotFound, SikaError, Unavailable
from core.events import Event, Record, RunRequested, thread
from core.log import EventLog
from core.state import ThreadState, fold

KEPT_MESSAGES = 50_000
"""Messages (over all threads) kept folded in memory; a thread that is not kept is read again, about 11 ms per 1 000
events.
"""
DECIDE_TRIES = 50

Decision = Callable[[ThreadState], Sequence[Event]]


class Threads:
    """A cache of folded threads. Always safe: what is decided on a stale state is refused by the log's guard."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._kept: OrderedDict[str, ThreadState] = OrderedDict()
        self._messages = 0

    async def load(self, thread_id: str, *, at_least: int | None = None) -> ThreadState:
        """The thread's state as of now, or (cheaper) as of any moment not before sequence `at_least`."""
        kept = self._kept.get(thread_id)
        if kept is not None and at_least is not None and kept.seq >= at_least:
            self._kept.move_to_end(thread_id)
            return kept
        after = kept.seq if kept else 0
        records = [record async for record in self.log.read(thread(thread_id), after=after)]
        current = self._kept.get(thread_id)
        if current is not None and current.seq > after:  # somebody else read meanwhile
            kept, records = current, [record for record in records if record.seq > current.seq]
        return self._keep(thread_id, fold(records, kept) if records or kept is None else kept)

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
        audience: Sequence[str] = (),
    ) -> tuple[ThreadState, list[Record]]:
        """Append what `decision` makes of the current state; decide again if somebody else was first.

        The decision is first tried on the state that is kept from before, or on none, as most unknown threads are new:
        the guard finds out. If it then refuses (raises), it is asked again on the current one. Returns the state after
        the append, and what was appended (nothing if the decision was to do nothing).
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
                        audience=audience,
                        traceparent=_traceparent(state, run, events),
                    )
                    return self.fold(thread_id, records, state), records
                if fresh or kept:
                    return state, []
            except Conflict:
                fresh = False
            except SikaError:
                if fresh:
                    raise
            state, fresh = await self.load(thread_id), True
        raise Unavailable(f"thread {thread_id}: too many writers at once")

    def _keep(self, thread_id: str, state: ThreadState) -> ThreadState:
        old = self._kept.pop(thread_id, None)
        if old is not None:
            if old.seq > state.seq:
                state = old
            self._messages -= len(old.commits) + 1
        if not state.seq:
            return state
        self._kept[thread_id] = state
        self._messages += len(state.commits) + 1
        while self._messages > KEPT_MESSAGES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._messages -= len(dropped.commits) + 1
        return state


def _traceparent(state: ThreadState, run: str | None, events: Sequence[Event]) -> str | None:
    """Of the run that is decided on, or asked for."""
    known = state.runs.get(run or "")
    request = known.request if known else next((one for one in events if isinstance(one, RunRequested)), None)
    return traces.header(request) if request else None
