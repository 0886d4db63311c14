"""Forgetting a thread's past: its checkpoints, runs and files of big events go; what it amounts to stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from core.events import Event, Json, ThreadExpirySet, ThreadPruned, thread
from core.thread.messages import last_answers, timed
from core.thread.runs import thread_metadata
from core.thread.state import ThreadState
from core.thread.threads import Threads


async def prune(threads: Threads, thread_id: str, *, user: str | None = None, actor: str) -> bool:
    """Keep of a thread only what it amounts to. Whether that was done: a thread that is at work or waits for an answer
    is left alone, as is one that does not exist (or is not the user's). Repeating it is fine.
    """

    def decide(state: ThreadState) -> Sequence[Event]:
        if not prunable(state) or user not in (None, state.user) or not (state.runs or len(state.commits) > 1):
            return []
        events: list[Event] = [
            ThreadPruned(
                user=state.user, metadata=thread_metadata(state), created_at=state.created_at, values=_values(state)
            )
        ]
        if expiry := state.expiry:
            strategy: Literal["delete", "keep_latest"] = "delete" if expiry.strategy == "delete" else "keep_latest"
            events.append(ThreadExpirySet(minutes=expiry.minutes, strategy=strategy))
        return events

    state, _ = await threads.decide(thread_id, decide, actor=actor)
    if not prunable(state) or user not in (None, state.user):
        return False
    await _purge(threads, thread_id)
    return True


def _values(state: ThreadState) -> Json:
    """With the life of each run at its last answer: the runs are forgotten."""
    run_of = last_answers(state)
    timed_messages = [timed(message, run_of(str(message.get("id")))) for message in state.messages]
    return {**state.values, "messages": timed_messages} if state.messages else dict(state.values)


def prunable(state: ThreadState) -> bool:
    return state.exists and state.status != "busy" and state.paused is None


async def _purge(threads: Threads, thread_id: str) -> None:
    """Purge what lies before the newest `thread.pruned`; not what has come after it, so repeating it is safe."""
    records = [record async for record in threads.log.read(thread(thread_id))]
    kept = next((record.seq for record in reversed(records) if record.type == "thread.pruned"), None)
    if kept is not None:
        await threads.purge(thread_id, before=kept)
