"""Checkpoints as clients see them: the state at any commit of a thread."""

from __future__ import annotations

from typing import Any

from channels.http.langgraph import dumps
from core.events import Json, Record
from core.state import Commit, Run, ThreadState, next_nodes, unanswered


def checkpoint(thread_id: str, commit: Commit | None) -> Json | None:
    """The reference to a checkpoint; its id is the log sequence of the commit."""
    if commit is None:
        return None
    return {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": str(commit.seq)}


def snapshot(thread_id: str, state: ThreadState, index: int) -> Json:
    """The thread state at a commit (-1: before the first), as the state and history endpoints show it."""
    if index < 0:
        return _nothing(thread_id, state)
    commit = state.commits[index]
    parent = state.commits[commit.parent] if commit.parent >= 0 else None
    values = state.values_at(index)
    tasks = _tasks(state, index, values)
    return {
        "values": dumps.values(values),
        "next": [task["name"] for task in tasks],
        "tasks": tasks,
        "metadata": metadata(thread_id, state, commit),
        "created_at": commit.at,
        "checkpoint": checkpoint(thread_id, commit),
        "parent_checkpoint": checkpoint(thread_id, parent),
        "checkpoint_id": str(commit.seq),
        "parent_checkpoint_id": str(parent.seq) if parent else None,
        "interrupts": [],
    }


def metadata(thread_id: str, state: ThreadState, commit: Commit) -> Json:
    found: Json = {"source": commit.source, "step": commit.step, "parents": {}, "thread_id": thread_id}
    if commit.run is None:
        return found
    run = state.runs.get(commit.run)
    return {**(run.request.metadata if run else {}), **found, "run_id": commit.run}


def history(state: ThreadState) -> list[int]:
    """Indices of all checkpoints of all branches, newest first; the head before everything.

    What was rolled back is gone.
    """
    undone = {run.id for run in state.runs.values() if run.status == "rolled_back"}
    shown = [i for i, commit in enumerate(state.commits) if i == state.head or commit.run not in undone]
    return sorted(shown, key=lambda index: (index == state.head, index), reverse=True)


def checkpoint_event(record: Record, state: ThreadState) -> Json:
    """The head, as the `checkpoints` stream mode shows it."""
    thread_id = record.head.aggregate
    whole = snapshot(thread_id, state, state.head)
    parent = whole["parent_checkpoint"]
    return {
        "config": {"configurable": whole["checkpoint"]},
        "parent_config": {"configurable": parent} if parent else None,
        "values": whole["values"],
        "metadata": whole["metadata"],
        "next": whole["next"],
        "tasks": [{"id": t["id"], "name": t["name"], "interrupts": [], "state": None} for t in whole["tasks"]],
    }


def task_input(state: ThreadState) -> Json:
    return dumps.values(state.values)


def _nothing(thread_id: str, state: ThreadState) -> Json:
    empty: Json = {"values": {}, "next": [], "tasks": [], "metadata": {}, "created_at": state.created_at or None}
    nowhere = dict.fromkeys(("checkpoint", "parent_checkpoint", "checkpoint_id", "parent_checkpoint_id"))
    return {**empty, **nowhere, "interrupts": []}


def _tasks(state: ThreadState, index: int, values: Json) -> list[Json]:
    """What would run next at this checkpoint; with the error of the run that failed there."""
    commit = state.commits[index]
    if commit.node == "__end__":
        return []
    messages = values.get("messages") or []
    run = _last_run(state) if index == state.head else None
    failed = run.error if run is not None else None
    names: list[tuple[str, Any]] = [(call["id"], "tools") for call in unanswered(messages)]
    if not names:
        names = [(f"{commit.seq}-{node}", node) for node in next_nodes(messages)]
    if failed and not names:
        names = [(f"{commit.seq}-model", "model")]
    error = f"{failed.error}: {failed.text}" if failed else None
    return [_task(identity, name, error) for identity, name in names]


def _task(identity: str, name: str, error: str | None) -> Json:
    empty = {"checkpoint": None, "state": None, "result": None}
    return {"id": identity, "name": name, "path": ["__pregel_pull", name], "error": error, "interrupts": [], **empty}


def _last_run(state: ThreadState) -> Run | None:
    return next((run for run in reversed(state.runs.values()) if run.status != "rolled_back"), None)
