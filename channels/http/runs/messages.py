"""Messages as clients read them: the log leaves defaults out, LangChain's dumps have every field."""

from __future__ import annotations

from collections.abc import Mapping

from core.events import Json, Message

_COMMON: Json = {"content": "", "additional_kwargs": {}, "response_metadata": {}, "type": "", "name": None, "id": None}
_OF_TYPE: Mapping[str, Json] = {
    "ai": {**_COMMON, "tool_calls": [], "invalid_tool_calls": [], "usage_metadata": None},
    "tool": {**_COMMON, "tool_call_id": None, "artifact": None, "status": "success"},
}


def full(message: Message) -> Json:
    """Returns the message with every field of its type. Entries of `tool_calls` that are no objects are left out."""
    dump = {**_OF_TYPE.get(str(message.get("type")), _COMMON), **message}
    if calls := message.get("tool_calls"):
        calls = calls if isinstance(calls, list) else []
        dump["tool_calls"] = [{"type": "tool_call", **call} for call in calls if isinstance(call, dict)]
    return dump
