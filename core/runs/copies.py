"""Copies of checkpoints in a new thread: a tree of commits, appended in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast, overload

import msgspec

from core.events import Event, Json, StatePatched, thread
from core.thread.messages import timed
from core.thread.state import Commit, ThreadState
from core.thread.threads import Threads

BATCH = 200
"""Events in one atomic batch; the server allows 1 000."""
BATCH_BYTES = 8 << 20
"""Bytes after which a batch ends."""
ROOT = -1

Source = Literal["update", "input", "loop", "fork"]


class Step(NamedTuple):
    """A checkpoint to write. `parent`: index of an earlier step of the list, or `ROOT`."""

    values: Json
    node: str | None
    source: Source
    parent: int


async def write_steps(
    threads: Threads,
    thread_id: str,
    first: Sequence[Event],
    steps: Sequence[Step],
    *,
    actor: str,
    after: ThreadState | None = None,
) -> ThreadState:
    """Appends `first`, then the steps, to a thread that is new, `after` a deleted one with its id if there was one. The
    last step is the head.

    Raises `Conflict` if the thread is not new, or is written to meanwhile.
    """
    state = after or ThreadState()
    batch: list[Event] = list(first)
    waiting: list[int] = []
    seqs: dict[int, int] = {}
    size = 0

    async def flush() -> None:
        nonlocal state, size
        if not batch:
            return
        records = await threads.log.append(thread(thread_id), batch, expected=state.seq, actor=actor)
        state = threads.fold(thread_id, records, state)
        commits = records[len(records) - len(waiting) :]
        seqs.update((index, record.seq) for index, record in zip(waiting, commits, strict=True))
        batch.clear()
        waiting.clear()
        size = 0

    for index, step in enumerate(steps):
        if step.parent in waiting[:-1] or len(batch) >= BATCH:
            await flush()
        follows = step.parent == index - 1
        base = None if follows else 0 if step.parent == ROOT else seqs[step.parent]  # there is no sequence 0: the root
        batch.append(StatePatched(values=step.values, as_node=step.node, base=base, source=step.source))
        waiting.append(index)
        size += len(msgspec.json.encode(step.values))
        if size >= BATCH_BYTES:
            await flush()
    await flush()
    return state


def all_steps(state: ThreadState) -> list[Step]:
    """Returns all checkpoints except rolled-back ones, ordered so that the head comes last."""
    undone = state.undone
    reachable: set[int] = set()
    for index, commit in enumerate(state.commits):
        if index == state.head or commit.run not in undone:
            _add_chain(state.commits, index, reachable)
    order = sorted(reachable)
    if not order or order[-1] == state.head:
        return _steps(state, order)
    if state.head >= 0 and all(state.commits[index].parent != state.head for index in order):
        order.remove(state.head)
        return _steps(state, [*order, state.head])
    head = state.commits[state.head] if state.head >= 0 else None
    again = Step({}, head.node if head else None, _source(head), order.index(state.head) if head else ROOT)
    return [*_steps(state, order), again]


def steps_to(state: ThreadState, index: int) -> Sequence[Step]:
    """Returns a checkpoint and its ancestors, oldest first, each made when it is asked for."""
    return _Chain(state, list(state.chain(index))[::-1])


class _Chain(Sequence[Step]):
    """Checkpoints of a state that follow each other."""

    def __init__(self, state: ThreadState, order: Sequence[int]) -> None:
        self._state, self._order = state, order

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, place: int) -> Step: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Step]: ...
    def __getitem__(self, place: int | slice) -> Step | Sequence[Step]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        commit = self._state.commits[self._order[place]]
        return Step(_patch(self._state, commit), commit.node, _source(commit), place - 1 if place else ROOT)


def _add_chain(commits: Sequence[Commit], index: int, reachable: set[int]) -> None:
    while index >= 0 and index not in reachable:
        reachable.add(index)
        index = commits[index].parent


def _steps(state: ThreadState, order: Sequence[int]) -> list[Step]:
    places = {index: place for place, index in enumerate(order)}
    commits = [state.commits[index] for index in order]
    return [Step(_patch(state, c), c.node, _source(c), places.get(c.parent, ROOT)) for c in commits]


def _patch(state: ThreadState, commit: Commit) -> Json:
    """Returns the patch of a step with the times of its run, which is not copied."""
    run = state.runs.get(commit.run or "")
    if run is None or commit.source != "loop" or not commit.patch.get("messages"):
        return dict(commit.patch)
    return {**commit.patch, "messages": [timed(message, run) for message in commit.patch["messages"]]}


def _source(commit: Commit | None) -> Source:
    return cast(Source, commit.source) if commit else "update"
