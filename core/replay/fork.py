"""A fork: a new thread that begins with the conversation of another one as it was at a moment."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from core.errors import Conflict, Invalid, Refused
from core.events import Event, ThreadCreated, ThreadForked, ThreadTitled
from core.ids import checkpoint_id, safe_id
from core.runs.copies import Step, steps_to, write_steps
from core.thread.runs import thread_metadata
from core.thread.state import ThreadState
from core.thread.threads import Threads
from core.thread.values import unanswered

ACTOR = "fork"
SOURCE, SEQUENCE = "branch_parent_thread_id", "fork_sequence"
"""Metadata of a fork: the thread it comes from, and the last event that both share."""


class Forked(msgspec.Struct, frozen=True):
    """A fork. `not_restored`: files that are not as they were, each with its reason."""

    thread: str
    new: bool
    not_restored: Sequence[str] = ()


async def fork(threads: Threads, source: str, state: ThreadState, new: str) -> tuple[ThreadState, bool]:
    """Makes the thread `new` of the thread `source` as it was in `state`, for the same user. Returns its state, and
    whether it is new.

    Raises `Invalid` for a moment without a thread or at which calls have no outcome, and `Refused` if the id is taken
    by anything else than this fork.
    """
    at = state.seq
    if not state.exists:
        raise Invalid(f"thread {source}: erased, or not created yet, at event seq:{at}")
    if open_calls := [call["name"] for call in unanswered(state.messages)]:
        raise Invalid(f"event seq:{at}: the outcome of {', '.join(open_calls)} comes later; name another event")
    steps: Sequence[Step] = steps_to(state, state.head) if state.head >= 0 else []
    origin = {SOURCE: source, SEQUENCE: at}
    if state.head >= 0:
        origin["branch_parent_checkpoint_id"] = checkpoint_id(state.commits[state.head].seq)
    first: list[Event] = [
        ThreadCreated(user=state.user, metadata={**thread_metadata(state), **origin}),
        ThreadForked(source=source, source_seq=at, patches=[]),
        *([ThreadTitled(title=state.title)] if state.title else []),
    ]
    try:
        return await write_steps(threads, safe_id(new, "thread"), first, steps, actor=ACTOR), True
    except Conflict:
        there = await threads.load(new)
        same = (there.metadata.get(SOURCE), there.metadata.get(SEQUENCE)) == (source, at)
        if same and there.user == state.user and len(there.commits) >= len(steps):
            return there, False
        raise Refused(f"thread {new}: the id is taken") from None
