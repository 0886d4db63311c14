"""Subagents as the custom events of DeerFlow: which `task_…` event a fact is."""

from __future__ import annotations

from channels.http.runs.messages import full
from core.events import Event, Json, SubagentCompleted, SubagentProgressed, SubagentStarted
from core.thread.entries import Delegation
from core.thread.state import Run
from core.thread.tokens import usage_of

Fact = SubagentStarted | SubagentProgressed | SubagentCompleted


def delegation(run: Run, call_id: str) -> tuple[str, Delegation] | None:
    """Returns the newest subagent that was given a call: its id, and its part of the run."""
    known = [(subagent, part) for subagent, part in run.subagents.items() if part.call_id == call_id]
    return known[-1] if known else None


def task_event(event: Event, run: Run) -> Json | None:
    """Returns the custom event of a fact. `run`: the caller's, after the fact. None if no subagent is concerned."""
    if not isinstance(event, Fact) or (known := delegation(run, event.call_id)) is None:
        return None
    _, part = known
    common: Json = {"task_id": event.call_id, "model_name": part.model or run.model}
    match event:
        case SubagentStarted():
            return {"type": "task_started", **common, "description": event.description}
        case SubagentProgressed():
            return {
                "type": "task_running",
                **common,
                "message": full(event.message),
                "message_index": event.index,
                "total_messages": part.messages,
                "usage": usage_of(part.tokens) if part.tokens.total else None,
            }
        case SubagentCompleted():
            outcome = {"result": event.result} if event.status == "completed" else {"error": event.error or ""}
            model = event.model or common["model_name"]
            return {"type": f"task_{event.status}", **common, **outcome, "usage": event.usage, "model_name": model}
