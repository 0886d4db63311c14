"""Messages as clients get them: the log leaves defaults out, LangChain's dumps have every field."""

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
"""Key of `additional_kwargs`: what the model is told right before the message (decision 11)."""
UPLOADS_BLOCK = "uploads_block"
"""Key of `additional_kwargs`: how many characters of the content, or of its first block, are the server's."""
RESERVED = frozenset({REMINDER, UPLOADS_BLOCK, "dynamic_context_reminder"})
"""Keys of `additional_kwargs` that are the server's word. A client's count for nothing."""


def full(message: Message) -> Json:
    """The message with every field of its type. What is no tool call is left out, whoever wrote it."""
    dump = {**_OF_TYPE.get(str(message.get("type")), _COMMON), **message}
    if calls := message.get("tool_calls"):
        calls = calls if isinstance(calls, list) else []
        dump["tool_calls"] = [{"type": "tool_call", **call} for call in calls if isinstance(call, dict)]
    return dump


def timed(message: Message, run: Run | None) -> Message:
    """The message; if it is the last one that an ended run said, with the run's life in whole seconds."""
    if run is None or message.get("id") != run.answer or (seconds := _life(run)) is None:
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


def _life(run: Run) -> int | None:
    """From the moment it was asked for until it ended."""
    if run.open:
        return None
    try:
        life = datetime.fromisoformat(run.updated_at) - datetime.fromisoformat(run.created_at)
    except (ValueError, TypeError):  # the fold takes any text for a time
        return None
    return max(0, int(life.total_seconds()))
