"""Checkpoints as clients see them: the state at any commit of a thread, and at the root before its first input.

The root is what the first message is edited from: clients start a run from the parent of the state that first shows a
message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from channels.http.protocols.langgraph import dumps
from core.events import Json, Message, Record
from core.ids import checkpoint_id
from core.thread.state import ROOT, Commit, Run, ThreadState
from core.thread.subagents import TOOL as DELEGATION
from core.thread.values import entitle, next_nodes, places_of, unanswered
from core.thread.values import reduce as apply

_CHECKPOINTS = ("checkpoint", "parent_checkpoint")


def checkpoint(thread_id: str, seq: int | None) -> Json | None:
    """The reference to a checkpoint; its id is the log sequence of the commit."""
    if seq is None:
        return None
    return {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id(seq)}


def parent_seq(state: ThreadState, commit: Commit) -> int | None:
    """The checkpoint that a commit was made from."""
    if commit.parent >= 0:
        return state.commits[commit.parent].seq
    return ROOT if commit.after_root else None


def snapshot(thread_id: str, state: ThreadState, index: int, values: Json | None = None) -> Json:
    """The thread state at a commit (-1: the root), as the state and history endpoints show it. `values` there, if they
    are at hand.
    """
    if index < 0:
        return _nothing(state) if _first(state) is None else root(thread_id, state)
    commit = state.commits[index]
    parent = parent_seq(state, commit)
    values = state.values_at(index) if values is None else values
    tasks = _tasks(thread_id, state, index, values)
    return {
        "values": dumps.timed_values(values, state, index),
        "next": [task["name"] for task in tasks],
        "tasks": tasks,
        "metadata": metadata(thread_id, state, index),
        "created_at": commit.at,
        "checkpoint": checkpoint(thread_id, commit.seq),
        "parent_checkpoint": checkpoint(thread_id, parent),
        "checkpoint_id": checkpoint_id(commit.seq),
        "parent_checkpoint_id": None if parent is None else checkpoint_id(parent),
        "interrupts": [interrupt for task in tasks for interrupt in task["interrupts"]],
    }


def within(namespace: str, shown: Json) -> Json:
    """Returns a snapshot of a subagent as one of its namespace in the thread."""
    places = {name: shown[name] and {**shown[name], "checkpoint_ns": namespace} for name in _CHECKPOINTS}
    return {**shown, **places}


def root(thread_id: str, state: ThreadState) -> Json:
    """The state before the first input. It is written with that, as LangGraph does it."""
    first = _first(state)
    assert first is not None
    return {
        "values": {"messages": []},
        "next": ["__start__"],
        "tasks": [_task(f"{ROOT}-__start__", "__start__", None, [])],
        "metadata": metadata(thread_id, state, -1),
        "created_at": state.commits[first].at,
        "checkpoint": checkpoint(thread_id, ROOT),
        "parent_checkpoint": None,
        "checkpoint_id": checkpoint_id(ROOT),
        "parent_checkpoint_id": None,
        "interrupts": [],
    }


def _first(state: ThreadState) -> int | None:
    """The oldest checkpoint that the root is the parent of, if there is one; the head counts as the newest."""
    undone = state.undone
    shown = (
        i
        for i, commit in enumerate(state.commits)
        if commit.after_root and i != state.head and commit.run not in undone
    )
    return next(shown, state.head if state.head >= 0 and state.commits[state.head].after_root else None)


def timeline(state: ThreadState, indices: Iterable[int]) -> Iterator[tuple[int, Json]]:
    """The values at many commits, in ascending order of the commits. Each commit is applied once: what several of them
    come from is kept, and messages are shared between all.
    """
    commits = sorted(set(indices))
    stops = _junctions(state, commits)
    known: dict[int, tuple[Json, dict[str, int]]] = {}
    for index in sorted(stops):
        path: list[int] = []
        start: tuple[Json, dict[str, int]] = ({}, {})
        for step in state.chain(index):
            if step in known:
                start = _copied(*known[step])
                break
            if (frame := state.commits.values(step)) is not None:
                start = frame, places_of(frame)
                break
            path.append(step)
        values, places = start
        for step in reversed(path):
            apply(values, places, state.commits[step].patch)
        entitle(values, state.title)
        known[index] = values, places
        if index in commits:
            yield index, values


def _junctions(state: ThreadState, commits: Iterable[int]) -> set[int]:
    """Returns the commits, and those at which their ways part: from the root, or the nearest commit whose values are
    kept.
    """
    seen: set[int] = set()
    stops = set(commits)
    for index in commits:
        while index >= 0 and index not in seen:
            seen.add(index)
            index = -1 if state.commits.has_values(index) else state.commits[index].parent
        if index >= 0:
            stops.add(index)
    return stops


def _copied(values: Json, places: dict[str, int]) -> tuple[Json, dict[str, int]]:
    mine = dict(values)
    if "messages" in mine:
        mine["messages"] = list(mine["messages"])
    return mine, dict(places)


def metadata(thread_id: str, state: ThreadState, index: int) -> Json:
    if index < 0:
        first = _first(state)
        assert first is not None
        return {**metadata(thread_id, state, first), "source": "input", "step": state.commits[first].step - 1}
    commit = state.commits[index]
    about: Json = {"source": commit.source, "step": commit.step, "parents": {}, "thread_id": thread_id}
    if commit.run is None:
        return about
    run = state.runs.get(commit.run)
    return {**(run.request.metadata if run else {}), **about, "run_id": commit.run}


def history(state: ThreadState, upto: int | None = None) -> Iterator[int]:
    """Yields the indices of the checkpoints of all branches up to a sequence, newest first; the head before everything,
    the root (-1) last.

    What was rolled back is gone.
    """
    undone = state.undone
    count = len(state.commits) if upto is None else state.commits.upto(upto)
    if 0 <= state.head < count:
        yield state.head
    for index in range(count - 1, -1, -1):
        if index != state.head and (not undone or state.commits[index].run not in undone):
            yield index
    if (upto is None or upto >= ROOT) and _first(state) is not None:
        yield -1


def follows_root(state: ThreadState) -> bool:
    """Tells whether the head brought the thread's first input: the root is written with it."""
    return state.commits[state.head].after_root and state.head == next(
        index for index, commit in enumerate(state.commits) if commit.after_root
    )


def root_event(record: Record, state: ThreadState) -> Json:
    """The root, as the `checkpoints` stream mode shows it."""
    whole = root(record.aggregate.id, state)
    return _event(whole, whole["values"])


def checkpoint_event(record: Record, state: ThreadState) -> Json:
    """The head, as the `checkpoints` stream mode shows it."""
    whole = snapshot(record.aggregate.id, state, state.head)
    return _event(whole, dumps.numbered_values(state.values, state))


def _event(whole: Json, values: Json) -> Json:
    parent = whole["parent_checkpoint"]
    return {
        "config": {"configurable": whole["checkpoint"]},
        "parent_config": {"configurable": parent} if parent else None,
        "values": values,
        "metadata": whole["metadata"],
        "next": whole["next"],
        "tasks": [
            {"id": task["id"], "name": task["name"], "interrupts": task["interrupts"], "state": None}
            for task in whole["tasks"]
        ],
    }


def task_input(state: ThreadState) -> Json:
    return dumps.numbered_values(state.values, state)


def _nothing(state: ThreadState) -> Json:
    empty: Json = {"values": {}, "next": [], "tasks": [], "metadata": {}, "created_at": state.created_at or None}
    nowhere = dict.fromkeys(("checkpoint", "parent_checkpoint", "checkpoint_id", "parent_checkpoint_id"))
    return {**empty, **nowhere, "interrupts": []}


def _tasks(thread_id: str, state: ThreadState, index: int, values: Json) -> list[Json]:
    """Returns what would run next at this checkpoint, with the questions of the run that paused there, or its error.

    Clients learn the namespace of a subagent from the place of its call among those that are open.
    """
    commit = state.commits[index]
    if commit.node == "__end__":
        return []
    messages: Sequence[Message] = values.get("messages") or []
    here = index == state.head
    paused = state.paused if here and commit.run is not None else None  # not what was written over it since
    run = _last_run(state) if here else None
    failed = run.error if run is not None else None
    nodes = paused.next if paused else next_nodes(messages)
    calls = unanswered(messages)
    names: list[tuple[str, str]] = [(call["id"], "tools") for call in calls]
    names = names or [(f"{commit.seq}-{node}", node) for node in nodes]
    if failed and not names:
        names = [(f"{commit.seq}-model", "model")]
    questions = state.interrupts if here else {}
    if paused:
        names += [(task, (nodes or ["model"])[0]) for task in questions if all(task != known for known, _ in names)]
    error = failed.text if failed else None
    tasks = [_task(identity, name, error, questions.get(identity, [])) for identity, name in names]
    for number, (task, call) in enumerate(zip(tasks, calls, strict=False)):
        task["path"] = ["__pregel_push", number]
        if call["name"] == DELEGATION:
            task["checkpoint"] = {"thread_id": thread_id, "checkpoint_ns": f"tools:{call['id']}"}
    return tasks


def _task(identity: str, name: str, error: str | None, questions: Sequence[Json]) -> Json:
    empty = {"checkpoint": None, "state": None, "result": None}
    shown = {"id": identity, "name": name, "path": ["__pregel_pull", name], "error": error}
    return {**shown, "interrupts": list(questions), **empty}


def _last_run(state: ThreadState) -> Run | None:
    return next((run for run in reversed(state.runs.values()) if run.status != "rolled_back"), None)
