"""Run objects in the form of the LangGraph Platform, as HTTP and webhooks send them."""

from __future__ import annotations

import msgspec

from core.errors import NotFound
from core.events import Json, ModelFailed
from core.ids import assistant_id
from core.thread.messages import full
from core.thread.state import Run, ThreadState
from core.thread.usage import of_run


def run_object(thread_id: str, run: Run, state: ThreadState) -> Json:
    """Returns the run object with its usage so far, and with its `error` if it failed."""
    request = run.request
    kwargs: Json = {"input": request.input, "config": request.config, "context": request.context}
    if request.resume is not None:
        kwargs["command"] = {"resume": request.resume.value}
    return {
        "run_id": run.id,
        "thread_id": thread_id,
        "assistant_id": assistant_id(request.assistant),
        "status": run.status,
        "metadata": request.metadata,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "multitask_strategy": request.multitask,
        "kwargs": kwargs,
        **msgspec.structs.asdict(of_run(state, run)),
        **({"error": {"error": run.error.error, "message": run.error.text}} if run.error else {}),
    }


def known_by(assistant: str) -> Json:
    """Returns the assistant's keys in the metadata of a thread whose first run used it."""
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


_REASONS = {
    "busy": "the model's provider is busy",
    "transient": "the model did not answer",
    "quota": "the quota of the model's provider is used up",
    "auth": "the model's provider did not accept the server's credentials",
    "circuit_open": "the model has failed several times in a row",
}


def retry_json(event: ModelFailed) -> Json:
    """Returns the event of streams for a failed model call that is retried."""
    return {
        "type": "llm_retry",
        "attempt": event.attempt,
        "max_attempts": event.max_attempts,
        "wait_ms": event.wait_ms,
        "reason": event.reason,
        "message": _retry_text(event),
    }


def _retry_text(event: ModelFailed) -> str:
    """Returns the text for people. The provider's text stays in the log: it may name internal systems."""
    reason = _REASONS.get(event.reason, "the model's provider refused the request")
    wait = f"Retrying in {event.wait_ms / 1000:g}s." if event.wait_ms else "Asking again now."
    return f"LLM request retry {event.attempt}/{event.max_attempts}: {reason}. {wait}"


def outcome(thread_id: str, run: Run, state: ThreadState, values: Json, started_at: str | None) -> Json:
    """Returns the body of a webhook: an ended run with the thread's `values` at its end."""
    values = {**values, "messages": [full(message) for message in values.get("messages", ())]}
    return {
        **run_object(thread_id, run, state),
        "run_started_at": started_at,
        "run_ended_at": run.updated_at,
        "values": values,
    }
