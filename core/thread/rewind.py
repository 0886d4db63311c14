"""A thread as it was before a run began, without reading the log up to there."""

from __future__ import annotations

import asyncio
import copy
from itertools import islice

from core.events import Record, thread
from core.log.reader import Read
from core.thread.fold import fold
from core.thread.state import Run, ThreadState
from core.thread.values import places_of

_TRIES = 8
"""Runs from whose beginnings it is tried to come to a fact."""
_FOLDED_AT_ONCE = 256
_FOLDED_BYTES = 1 << 20
"""Facts, and their bytes, that are folded in one go: each time the state is copied."""


async def state_before(read: Read, thread_id: str, state: ThreadState, run: Run, seq: int) -> ThreadState:
    """The state after the fact `seq`, at which `run` had not begun to work. `state`: any later one that knows the run.

    Made from `state`; as far as that is not possible, from the log.
    """
    before = await asyncio.to_thread(rewound, state, run, seq)
    if before is None:
        earlier = await asyncio.to_thread(before_others, state, seq)
        before = await state_upto(read, thread_id, seq, earlier)
    return before


def newest_begun(state: ThreadState, seq: int) -> Run | None:
    """The newest run that had begun at a fact. What is read of a thread from its start on is the same as if it were
    read from the thread's beginning.
    """
    begun = (run for run in state.runs.newest_first(seq) if run.started_seq is not None and run.started_seq <= seq)
    return next(begun, None)


async def state_upto(read: Read, thread_id: str, seq: int, earlier: ThreadState | None = None) -> ThreadState:
    """The state after the fact `seq`, folded from the log on top of an earlier state; few facts are in memory."""
    state, facts, size = earlier or ThreadState(), list[Record](), 0
    async for record in read(thread(thread_id), after=state.seq, upto=seq):
        facts.append(record)
        size += len(record.raw)
        if len(facts) == _FOLDED_AT_ONCE or size >= _FOLDED_BYTES:
            state, size = await asyncio.to_thread(fold, facts, state), 0
            facts.clear()
    return await asyncio.to_thread(fold, facts, state)


def before_others(state: ThreadState, seq: int) -> ThreadState:
    """The state before one of the runs that began before a fact; the empty one if none can be determined."""
    begun = (run for run in state.runs.newest_first(seq) if run.started_seq is not None and run.started_seq <= seq)
    for run in islice(begun, _TRIES):
        if run.started_seq is not None and (before := rewound(state, run, run.started_seq - 1)) is not None:
            return before
    return ThreadState()


def before_runs(state: ThreadState, seq: int) -> ThreadState:
    """The same, but the empty one, too, where something that is shown of a thread is not as it was then."""
    before = before_others(state, seq)
    if before.seq < state.noted_seq:
        return ThreadState()
    before.runs.update({run.id: run for run in state.runs.open() if run.id in before.runs and run.status == "pending"})
    return before


def rewound(state: ThreadState, run: Run, seq: int) -> ThreadState | None:
    """The same, of the state alone; None if it is unknown, as somebody else changed the thread meanwhile, or it got
    its title, which is near the log's beginning.

    Right in what the thread held then: values, commits, pauses, and runs that had ended. What it was annotated with
    (metadata, expiry, feedback, approvals, goal) is that of `state`, and runs that had not begun are as they were
    requested.
    """
    begun = state.seq + 1 if run.started_seq is None else run.started_seq
    count = state.commits.upto(seq)
    written = count < len(state.commits) and state.commits[count].seq < begun
    if (
        written
        or state.titled_seq > seq
        or any(_at_work(other, seq, begun) for other in state.runs.between(seq, begun) if other.id != run.id)
    ):
        return None
    before = copy.copy(state)
    before.seq, before.commits, before.runs = seq, state.commits.until(count), state.runs.at(seq, _then)
    if run.started_seq is not None:
        before.head, (before.paused, before.answers) = run.before, run.resumed
        before.values = state.values_at(run.before) if run.before >= 0 else {}
    before.places, before.steers = places_of(before.values), ()
    return before


def _at_work(run: Run, seq: int, begun: int) -> bool:
    """Tells whether a run was at work at any time from `seq` to `begun`."""
    started = run.started_seq
    return started is not None and started < begun and (run.ended_seq is None or run.ended_seq > seq)


def _then(run: Run, seq: int) -> Run:
    if run.ended_seq is not None and run.ended_seq <= seq:
        return run
    return Run(
        id=run.id,
        request=run.request,
        requested_seq=run.requested_seq,
        created_at=run.created_at,
        updated_at=run.created_at,
        last_id=run.last_id,
    )
