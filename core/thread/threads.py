"""Threads as they stand: the folded state, kept warm, and the one way to decide on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from core import traces
from core.events import Aggregate, Event, Record, RunRequested
from core.log import repository
from core.log.repository import Folded, Repository
from core.log.snapshots import Snapshots
from core.log.store import EventLog
from core.thread.ownership import owned
from core.thread.snapshots import ThreadForm
from core.thread.state import Folding, ThreadState, fold, labels_of

KIND = "thread"
KEPT_BYTES = 128 << 20
"""Of events whose threads are kept folded in memory (which takes some three times as much); a thread that is not kept
is read again, about 11 ms per 1 000 events.
"""

SUBAGENT = "subagent"
"""The kind of the conversations of subagents: the same facts, folded the same way, on logs of their own."""

Decision = repository.Decision[ThreadState]


class Threads(Repository[ThreadState]):
    """Conversations of one kind. `snapshots`: the directory where they are kept, if they are."""

    def __init__(
        self, log: EventLog, snapshots: Path | None = None, *, kind: str = KIND, kept_bytes: int | None = None
    ) -> None:
        super().__init__(
            log,
            kind,
            fold,
            ThreadState(),
            kept_bytes=KEPT_BYTES if kept_bytes is None else kept_bytes,
            weigh=lambda state: state.size,
            snapshots=Snapshots(log, snapshots, kind, ThreadForm()) if snapshots else None,
        )

    def aggregate(self, identity: str) -> Aggregate:
        return Aggregate(self.kind, identity)

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

    def _labels(self, state: ThreadState, run: str | None, events: Sequence[Event]) -> frozenset[str]:
        return labels_of(state, run, events)

    def _traceparent(self, state: ThreadState, run: str | None, events: Sequence[Event]) -> str | None:
        """Returns the trace of the run that is decided on, or asked for."""
        known = state.runs.get(run or "")
        request = known.request if known else next((one for one in events if isinstance(one, RunRequested)), None)
        return traces.header(request) if request else None


def folded(state: ThreadState) -> Folded[ThreadState]:
    """Returns a state for `Threads.decide` to begin with."""
    return Folded(state.seq, state, state.size, state.seq)
