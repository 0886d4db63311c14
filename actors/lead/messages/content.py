"""The texts of messages and of what tools give, wherever they are in them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command

Content = str | list[str | dict[Any, Any]]
"""Of a message: a text, or blocks."""
IMAGES = ("image", "image_url")
"""Types of blocks: LangChain's own, and OpenAI's."""
UNSEEN = {"type": "text", "text": "[an image, which you cannot see]"}
DEPTH = 3
"""Blocks within blocks that are looked into; no provider takes more."""
_THOUGHTS = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


def without_thoughts(text: str) -> str:
    """A text without what a model thought in it, also where the thought does not end."""
    return _THOUGHTS.sub("", text)


def rewritten(content: Content, change: Callable[[str], str], depth: int = DEPTH) -> Content:
    """The content with its texts changed; the same object if no text does."""
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
    """Returns all text of the content, each block on a line of its own: for what reads it, or cuts it. People are
    shown blocks without a break between them (`core.thread.previews.text_of`).
    """
    if isinstance(content, str):
        return content
    texts = [block if isinstance(block, str) else block.get("text") for block in content]
    return "\n".join(text for text in texts if isinstance(text, str))


def with_text(content: Content, text: str) -> Content:
    """The content with this instead of all its text; what is no text stays."""
    if isinstance(content, str):
        return text
    others = [block for block in content if isinstance(block, dict) and not isinstance(block.get("text"), str)]
    return [{"type": "text", "text": text}, *others] if others else text


def without_images(message: BaseMessage) -> BaseMessage:
    """The message with a remark in the place of each image; the same object if it has none."""
    if isinstance(message.content, str):
        return message
    blocks = [UNSEEN if isinstance(one, dict) and one.get("type") in IMAGES else one for one in message.content]
    return message.model_copy(update={"content": blocks}) if UNSEEN in blocks else message


def messages_of(result: ToolMessage | Command[Any]) -> list[BaseMessage]:
    """The messages in what a tool call gave."""
    if isinstance(result, ToolMessage):
        return [result]
    found = result.update.get("messages") if isinstance(result.update, dict) else None
    return [one for one in found if isinstance(one, BaseMessage)] if isinstance(found, list | tuple) else []


def with_messages(
    result: ToolMessage | Command[Any], old: Sequence[BaseMessage], new: Sequence[BaseMessage]
) -> ToolMessage | Command[Any]:
    """The result with its messages, which are `old`, replaced one by one; the same object if none is another."""
    instead = {id(before): after for before, after in zip(old, new, strict=True) if before is not after}
    if not instead:
        return result
    if isinstance(result, ToolMessage):
        [changed] = new
        assert isinstance(changed, ToolMessage)
        return changed
    assert isinstance(result.update, dict)
    messages = [instead.get(id(one), one) for one in result.update["messages"]]
    return dataclasses.replace(result, update={**result.update, "messages": messages})
