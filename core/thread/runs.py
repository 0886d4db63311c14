"""A run as the LangGraph Platform describes it: what HTTP answers and webhooks send."""

from __future__ import annotations

import msgspec

from core.errors import NotFound
from core.events import Json, ModelFailed
from core.ids import assistant_id
from core.thread.messages import full
from core.thread.state import Run, ThreadState
from core.thread.usage import of_run


def run_object(thread_id: str, run: Run, state: ThreadState) -> Json:
    """The run, with what it used so far; with its `error` if it failed."""
    asked = run.request
    kwargs: Json = {"input": asked.input, "config": asked.config, "context": asked.context}
    if asked.resume is not None:
        kwargs["command"] = {"resume": asked.resume.value}
    return {
        "run_id": run.id,
        "thread_id": thread_id,
        "assistant_id": assistant_id(asked.assistant),
        "status": run.status,
        "metadata": asked.metadata,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "multitask_strategy": asked.multitask,
        "kwargs": kwargs,
        **msgspec.structs.asdict(of_run(state, run)),
        **({"error": {"error": run.error.error, "message": run.error.text}} if run.error else {}),
    }


def known_by(assistant: str) -> Json:
    """What the first run says in the metadata of a thread that does not say it itself."""
    identity = assistant_id(assistant)
    return {"assistant_id": identity} if identity == assistant else {"graph_id": assistant, "assistant_id": identity}


def thread_metadata(state: ThreadState) -> Json:
    """The metadata of a thread as clients see it: with the assistant of its first run, unless it names another."""
    first = next(iter(state.runs.values()), None)
    return {**(known_by(first.request.assistant) if first else {}), **state.metadata}


def shown_run(state: ThreadState, run_id: str) -> Run:
    """Returns a run that clients see. Raises `NotFound`."""
    run = state.runs.get(run_id)
    if run is None or not run.shown:
        raise NotFound(f"Run {run_id} not found")
    return run


def end_of(state: ThreadState, run: Run) -> int:
    """Index of the commit that the thread stood at when the run ended, whatever was done in it since; -1: at none."""
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
    """A failure of the model that is tried again, as streams tell it."""
    return {
        "type": "llm_retry",
        "attempt": event.attempt,
        "max_attempts": event.max_attempts,
        "wait_ms": event.wait_ms,
        "reason": event.reason,
        "message": _retry_text(event),
    }


def _retry_text(event: ModelFailed) -> str:
    """What a failed model call is to people. What the provider said is in the log: it may name what is inside."""
    reason = _REASONS.get(event.reason, "the model's provider refused the request")
    wait = f"Retrying in {event.wait_ms / 1000:g}s." if event.wait_ms else "Asking again now."
    return f"LLM request retry {event.attempt}/{event.max_attempts}: {reason}. {wait}"


def outcome(thread_id: str, run: Run, state: ThreadState, values: Json, started_at: str | None) -> Json:
    """An ended run with what came of it: the body of a webhook. `values`: those at its end."""
    values = {**values, "messages": [full(message) for message in values.get("messages", ())]}
    return {
        **run_object(thread_id, run, state),
        "run_started_at": started_at,
        "run_ended_at": run.updated_at,
        "values": values,
    }
