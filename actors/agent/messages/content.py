"""Reads and rewrites the texts in messages and in results of tools."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command

Content = str | list[str | dict[Any, Any]]
"""Content of a message: text, or blocks."""
IMAGES = ("image", "image_url")
"""Types of image blocks: LangChain's, and OpenAI's."""
UNSEEN = {"type": "text", "text": "[an image, which you cannot see]"}
DEPTH = 3
"""Depth of nested blocks that is searched; no provider accepts more."""
_THOUGHTS = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


def without_thoughts(text: str) -> str:
    """Removes `<think>` sections, also one that does not end."""
    return _THOUGHTS.sub("", text)


def rewritten(content: Content, change: Callable[[str], str], depth: int = DEPTH) -> Content:
    """Returns the content with its texts changed; the same object if no text changes."""
    if isinstance(content, str):
        return change(content)
    blocks = [_block(block, change, depth) for block in content]
    return content if all(new is old for new, old in zip(blocks, content, strict=True)) else blocks


def _block(block: str | dict[Any, Any], change: Callable[[str], str], depth: int) -> str | dict[Any, Any]:
    if isinstance(block, str):
        return change(block)
    changed: dict[Any, Any] = {}
    text, inner = block.get("text"), block.get("content")
    if isinstance(text, str) and (new := change(text)) is not text:
        changed["text"] = new
    if depth and isinstance(inner, str | list) and (within := rewritten(inner, change, depth - 1)) is not inner:
        changed["content"] = within
    return {**block, **changed} if changed else block


def text_by_line(content: Content) -> str:
    """Returns the text of the content for models and excerpts, one line for each block.

    Clients show blocks without a break between them (`core.thread.messages.text_of`).
    """
    if isinstance(content, str):
        return content
    texts = [block if isinstance(block, str) else block.get("text") for block in content]
    return "\n".join(text for text in texts if isinstance(text, str))


def with_text(content: Content, text: str) -> Content:
    """Returns the content with its text replaced; other blocks stay."""
    if isinstance(content, str):
        return text
    others = [block for block in content if isinstance(block, dict) and not isinstance(block.get("text"), str)]
    return [{"type": "text", "text": text}, *others] if others else text


def without_images(message: BaseMessage) -> BaseMessage:
    """Returns the message with a placeholder for each image; the same object if it has none."""
    if isinstance(message.content, str):
        return message
    blocks = [UNSEEN if isinstance(b, dict) and b.get("type") in IMAGES else b for b in message.content]
    return message.model_copy(update={"content": blocks}) if UNSEEN in blocks else message


def messages_of(result: ToolMessage | Command[Any]) -> list[BaseMessage]:
    """Returns the messages in the result of a tool call."""
    if isinstance(result, ToolMessage):
        return [result]
    messages = result.update.get("messages") if isinstance(result.update, dict) else None
    return [m for m in messages if isinstance(m, BaseMessage)] if isinstance(messages, list | tuple) else []


def with_messages(
    result: ToolMessage | Command[Any], old: Sequence[BaseMessage], new: Sequence[BaseMessage]
) -> ToolMessage | Command[Any]:
    """Returns the result with each of its `old` messages replaced by the `new` one; the same object if none changed."""
    instead = {id(before): after for before, after in zip(old, new, strict=True) if before is not after}
    if not instead:
        return result
    if isinstance(result, ToolMessage):
        [changed] = new
        assert isinstance(changed, ToolMessage)
        return changed
    assert isinstance(result.update, dict)
    messages = [instead.get(id(message), message) for message in result.update["messages"]]
    return dataclasses.replace(result, update={**result.update, "messages": messages})
