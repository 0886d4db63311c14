"""Marks a request for the prompt cache of Anthropic's models, which cache only what is marked.

Three of the four marks that a request may have are set: after the tools and the system prompt, where the request before
ended, and at the end. Other providers cache what is equal from the beginning, without marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

MARK = {"cache_control": {"type": "ephemeral"}}
OWN_CLIENT = "langchain_anthropic"
ROUTER = "openrouter.ai"
"""A router that takes the marks in OpenAI's form of a request."""


def with_cache_marks(messages: Sequence[BaseMessage], model: BaseChatModel) -> Sequence[BaseMessage]:
    """Returns the messages with marks, if the model's provider takes them; else the same object."""
    if not takes_marks(model):
        return messages
    result = list(messages)
    for place in _places(messages):
        result[place] = _with_mark(result[place])
    return result


def takes_marks(model: BaseChatModel) -> bool:
    if any(cls.__module__.partition(".")[0] == OWN_CLIENT for cls in type(model).__mro__):
        return True
    name = str(getattr(model, "model_name", "") or getattr(model, "model", "")).lower()
    host = urlsplit(str(getattr(model, "openai_api_base", None) or "")).hostname or ""
    return (host == ROUTER or host.endswith(f".{ROUTER}")) and (name.startswith("anthropic/") or "claude" in name)


def _places(messages: Sequence[BaseMessage]) -> set[int]:
    """Returns the places of the marks: the system prompt, the last message before the newest answer, and the last."""
    answer = max((place for place, message in enumerate(messages) if isinstance(message, AIMessage)), default=0)
    ends = (_last(messages, len(messages)), _last(messages, answer))
    system = {0} if messages and isinstance(messages[0], SystemMessage) else set()
    return system | {place for place in ends if place is not None}


def _last(messages: Sequence[BaseMessage], end: int) -> int | None:
    """Returns the place of the last message before `end` that can be marked: not an answer, and with a text."""
    for place in range(end - 1, -1, -1):
        if not isinstance(messages[place], AIMessage) and _text_block(messages[place].content) is not None:
            return place
    return None


def _text_block(content: Any) -> int | None:
    """Returns the place of the last text in a content of blocks; 0 for a plain text."""
    if isinstance(content, str):
        return 0 if content.strip() else None
    for place in range(len(content) - 1, -1, -1):
        block = content[place]
        if isinstance(block, dict) and block.get("type") == "text" and str(block.get("text")).strip():
            return place
    return None


def _with_mark(message: BaseMessage) -> BaseMessage:
    content: Any = message.content
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    place = _text_block(blocks)
    if place is None:
        return message
    blocks[place] = {**blocks[place], **MARK}
    return message.model_copy(update={"content": blocks})
