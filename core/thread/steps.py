"""Steps of a thread: what a fact does to its values becomes a commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.events import (
    ContextCompacted,
    Message,
    MessageAdded,
    ModelCompleted,
    Record,
    RunFailed,
    RunStarted,
    StatePatched,
    ToolCompleted,
)
from core.thread.entries import Commit
from core.thread.state import COMPACTED, ThreadState, materialise
from core.thread.values import REMOVE_ALL, entitle, reduce, with_prepared


def _patch_of(record: Record, state: ThreadState) -> tuple[Mapping[str, Any], str, str] | None:
    """Returns what a record does to the values, as (patch, source, node); None if it does not change them."""
    match record.event:
        case ModelCompleted(message=message):
            return {"messages": [message]}, "loop", "model"
        case ToolCompleted(message=message, update=update):
            return {**update, "messages": [message]}, "loop", "tools"
        case StatePatched(values=values, as_node=node, source=source):
            return values, source, node or "__start__"
        case MessageAdded(messages=messages):
            return {"messages": messages}, "update", "__start__"
        case RunFailed(message=message) if message is not None:
            return {"messages": [message]}, "loop", "model"
        case ContextCompacted():
            return {"messages": _compacted(state, record.event)}, "loop", COMPACTED
        case RunStarted() if (run := state.runs.get(record.run or "")) and run.attempt == 0 and run.request.input:
            return with_prepared(run.request.input, record.event.prepared), "input", "__start__"
    return None


def _compacted(state: ThreadState, event: ContextCompacted) -> list[Message]:
    """The conversation after it was compacted, as a patch that replaces it. What was added meanwhile stays."""
    changed = {str(message.get("id")): message for message in event.messages}
    remaining = [changed.get(one, state.messages[state.places[one]]) for one in event.kept if one in state.places]
    last = max((state.places[one] for one in event.kept if one in state.places), default=len(state.messages) - 1)
    return [{"type": "remove", "id": REMOVE_ALL}, event.summary, *remaining, *state.messages[last + 1 :]]


def commit(state: ThreadState, record: Record, patch: Mapping[str, Any], source: str, node: str, parent: int) -> None:
    """Puts a patch on top of the commit `parent` (an index; -1: the root), and makes it the head."""
    if parent != state.head:
        checkout(state, parent)
    step = state.commits[parent].step + 1 if parent >= 0 else -1 if source == "input" else 0
    reduce(state.values, state.places, patch)
    entitle(state.values, state.title)
    new = Commit(record.seq, parent, patch, source, node, record.at, record.run, step, len(state.messages))
    another = bool(state.commits) and state.commits[-1].seq == record.seq
    state.commits.append(new, 0 if another else len(record.raw), state.values)
    state.head = len(state.commits) - 1


def commit_patch(state: ThreadState, record: Record, parent: int) -> None:
    """Commits what the record says about the values, if it does."""
    if patched := _patch_of(record, state):
        commit(state, record, *patched, parent)


def checkout(state: ThreadState, index: int) -> None:
    """Makes a commit the head: the values are those at it."""
    if index != state.head:
        state.values, state.places = materialise(state, index)
        state.head = index
