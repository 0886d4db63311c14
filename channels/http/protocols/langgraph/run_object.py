"""Runs in the form of the LangGraph Platform, as HTTP and webhooks send them."""

from __future__ import annotations

from channels.http.runs.messages import full
from core.events import Json, ModelFailed, Record
from core.ids import assistant_id
from core.thread.state import Run, ThreadState
from core.thread.subagents import STOP_REASONS
from core.thread.usage import RunUsage, of_run
from core.wording import Narration, name_of

_REASONS = {
    "busy": "the model's provider is busy",
    "transient": "the model did not answer",
    "quota": "the quota of the model's provider is used up",
    "auth": "the model's provider did not accept the server's credentials",
    "context": "the conversation is too long for the model",
    "circuit_open": "the model has failed several times in a row",
}


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
        **_used(of_run(state, run)),
        **({"error": {"error": run.error.error, "message": run.error.text}} if run.error else {}),
        **_stopped(run),
    }


def _stopped(run: Run) -> Json:
    """Returns the limit that a run has met, and the sentence that says what to set."""
    if not run.stopped_by:
        return {}
    return {"stop_reason": STOP_REASONS.get(run.stopped_by, run.stopped_by), "stopped": run.stopped}


def _used(usage: RunUsage) -> Json:
    tokens = usage.total
    return {
        "total_input_tokens": tokens.input,
        "total_output_tokens": tokens.output,
        "total_tokens": tokens.total,
        "llm_call_count": tokens.calls,
        "lead_agent_tokens": usage.agent.total,
        "subagent_tokens": usage.subagents.total,
        "middleware_tokens": usage.summaries.total,
        "message_count": usage.messages,
    }


def outcome(thread_id: str, run: Run, state: ThreadState, values: Json, started_at: str | None) -> Json:
    """Returns the body of a webhook: an ended run with the thread's `values` at its end."""
    values = {**values, "messages": [full(message) for message in values.get("messages", ())]}
    return {
        **run_object(thread_id, run, state),
        "run_started_at": started_at,
        "run_ended_at": run.updated_at,
        "values": values,
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


def event_json(record: Record) -> Json:
    """Returns the event of streams for an event of a package that has words."""
    text = Narration().text(record)
    return {"type": "event", "event": record.type, "name": name_of(record.event), "text": text}


def _retry_text(event: ModelFailed) -> str:
    """Returns the text for people. The provider's text stays in the log: it may name internal systems."""
    reason = _REASONS.get(event.reason, "the model's provider refused the request")
    wait = f"Retrying in {event.wait_ms / 1000:g}s." if event.wait_ms else "Asking again now."
    return f"LLM request retry {event.attempt}/{event.max_attempts}: {reason}. {wait}"
