"""Messages as clients get them: the log leaves defaults out, LangChain's dumps have every field."""

from __future__ import annotations

from collections.abc import Mapping

from core.events import Json, Message

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
    """The message with every field of its type."""
    dump = {**_OF_TYPE.get(message["type"], _COMMON), **message}
    if calls := message.get("tool_calls"):
        dump["tool_calls"] = [{"type": "tool_call", **call} for call in calls]
    return dump
