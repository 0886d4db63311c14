"""Runs of a thread for those who look at it from outside."""

from __future__ import annotations

from core.errors import NotFound
from core.events import Json
from core.ids import assistant_id
from core.thread.state import Run, ThreadState


def known_by(assistant: str) -> Json:
    """Returns the assistant's keys in the metadata of a thread whose first run used it. Their names are in the log: in
    the metadata that clients write, and in those that copies and `thread.pruned` keep.
    """
    identity = assistant_id(assistant)
    return {"assistant_id": identity} if identity == assistant else {"graph_id": assistant, "assistant_id": identity}


def thread_metadata(state: ThreadState) -> Json:
    """Returns the metadata of a thread for clients: with the assistant of its first run, unless it names another."""
    first = next(iter(state.runs.values()), None)
    return {**(known_by(first.request.assistant) if first else {}), **state.metadata}


def shown_run(state: ThreadState, run_id: str) -> Run:
    """Returns a run that clients see. Raises `NotFound`."""
    run = state.runs.get(run_id)
    if run is None or not run.shown:
        raise NotFound(f"Run {run_id} not found")
    return run


def end_of(state: ThreadState, run: Run) -> int:
    """Returns the index of the thread's commit at the end of the run, -1 if there was none."""
    if run.status == "rolled_back" and run.attempt:
        return run.before
    undone, commits = state.undone, state.commits
    index = commits.upto(run.ended_seq or 0) - 1
    while index >= 0 and commits[index].run in undone:
        index -= 1
    if run.started_seq and (index < 0 or commits[index].seq < run.started_seq):  # it did nothing where it began
        return run.before if run.request.base is None else state.commit_at(run.request.base)
    return index
