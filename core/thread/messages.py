"""Messages as clients read them: the log leaves defaults out, LangChain's dumps have every field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from core.events import Json, Message
from core.thread.state import Run, ThreadState

_COMMON: Json = {"content": "", "additional_kwargs": {}, "response_metadata": {}, "type": "", "name": None, "id": None}
_OF_TYPE: Mapping[str, Json] = {
    "ai": {**_COMMON, "tool_calls": [], "invalid_tool_calls": [], "usage_metadata": None},
    "tool": {**_COMMON, "tool_call_id": None, "artifact": None, "status": "success"},
}


REMINDER = "reminder"
"""Key of `additional_kwargs`: text that the model reads right before the message (decision 11)."""
UPLOADS_BLOCK = "uploads_block"
"""Key of `additional_kwargs`: number of characters of the content, or of its first block, that the server wrote."""
MEMORY = "memory"
"""Key of `additional_kwargs`: references to what the model is told of the memory with the message
(`core.memory.inject`).
"""
RESERVED = frozenset({REMINDER, UPLOADS_BLOCK, MEMORY, "dynamic_context_reminder"})
"""Keys of `additional_kwargs` that only the server sets; those of clients are ignored."""


def full(message: Message) -> Json:
    """Returns the message with every field of its type. Entries of `tool_calls` that are no objects are left out."""
    dump = {**_OF_TYPE.get(str(message.get("type")), _COMMON), **message}
    if calls := message.get("tool_calls"):
        calls = calls if isinstance(calls, list) else []
        dump["tool_calls"] = [{"type": "tool_call", **call} for call in calls if isinstance(call, dict)]
    return dump


def timed(message: Message, run: Run | None) -> Message:
    """Returns the message; the last answer of an ended run with the run's duration in whole seconds."""
    if run is None or message.get("id") != run.answer or (seconds := _duration(run)) is None:
        return message
    extra = message.get("additional_kwargs")
    return {
        **message,
        "additional_kwargs": {**(extra if isinstance(extra, dict) else {}), "turn_duration": seconds},
    }


def last_answers(state: ThreadState) -> Callable[[str], Run | None]:
    """Returns a function that gives the ended run whose last message has an id."""
    newest = {run.answer: run for run in state.runs.tail.values() if run.answer and not run.open}
    return lambda message_id: newest.get(message_id) or state.runs.ended_with(message_id)


def _duration(run: Run) -> int | None:
    """Returns the seconds from the request of an ended run to its end."""
    if run.open:
        return None
    try:
        duration = datetime.fromisoformat(run.updated_at) - datetime.fromisoformat(run.created_at)
    except (ValueError, TypeError):  # the fold takes any text for a time
        return None
    return max(0, int(duration.total_seconds()))
