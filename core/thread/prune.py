"""Pruning of a thread: checkpoints and runs are removed, metadata and values stay. The janitor erases the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from core.events import Event, Json, ThreadExpirySet, ThreadPruned
from core.thread import goals
from core.thread.messages import last_answers, timed
from core.thread.runs import thread_metadata
from core.thread.state import ThreadState
from core.thread.threads import Threads


async def prune(threads: Threads, thread_id: str, *, user: str | None = None, actor: str) -> bool:
    """Keeps only the metadata and values of a thread. Returns False for a thread that is busy, interrupted, absent or
    not the user's: it is left as it is. Idempotent.
    """

    def decide(state: ThreadState) -> Sequence[Event]:
        if not prunable(state) or user not in (None, state.user) or not (state.runs or len(state.commits) > 1):
            return []
        events: list[Event] = [
            ThreadPruned(
                user=state.user, metadata=thread_metadata(state), created_at=state.created_at, values=_values(state)
            )
        ]
        events += goals.restated(state.goal)
        events += [state.folder] if state.folder else []
        events += state.variables.values()
        if expiry := state.expiry:
            strategy: Literal["delete", "keep_latest"] = "delete" if expiry.strategy == "delete" else "keep_latest"
            events.append(ThreadExpirySet(minutes=expiry.minutes, strategy=strategy))
        return events

    state, _ = await threads.decide(thread_id, decide, actor=actor)
    if not prunable(state) or user not in (None, state.user):
        return False
    await threads.drop(thread_id)
    return True


def _values(state: ThreadState) -> Json:
    """Returns the values, with the times of each run at its last answer: the runs are removed."""
    run_of = last_answers(state)
    timed_messages = [timed(message, run_of(str(message.get("id")))) for message in state.messages]
    return {**state.values, "messages": timed_messages} if state.messages else dict(state.values)


def prunable(state: ThreadState) -> bool:
    return state.exists and state.status != "busy" and state.paused is None
