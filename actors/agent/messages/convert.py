"""Converts messages between the log (LangChain's flat dump without defaults) and LangChain's objects."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from core.cache import ByteCache
from core.events import Json, Message

_CLASSES: Mapping[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "tool": ToolMessage,
    "system": SystemMessage,
    "remove": RemoveMessage,
}
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_DERIVED = ("type", "example", "tool_call_chunks", "chunk_position")
KEPT_BYTES = 32 << 20
"""Limit of each cache, in bytes of the messages as JSON. Converted messages take about three times as much memory."""


def load(message: Message) -> BaseMessage:
    """Returns the LangChain object of a recorded message. Unknown types become messages of a person."""
    fields = {key: value for key, value in message.items() if key != "type"}
    if fields.get("content") is None:
        fields["content"] = ""
    if "tool_calls" in fields:
        fields["tool_calls"] = [_call(call) for call in fields["tool_calls"] if isinstance(call, dict)]
    if "invalid_tool_calls" in fields:
        fields["invalid_tool_calls"] = [call for call in fields["invalid_tool_calls"] if isinstance(call, dict)]
    if message["type"] == "tool":
        fields.setdefault("tool_call_id", "")
    return _CLASSES.get(message["type"], HumanMessage)(**fields)


def _call(call: Json) -> Json:
    args = call.get("args")
    return {"name": call.get("name") or "", "args": args if isinstance(args, dict) else {}, "id": call.get("id")}


def dump(message: BaseMessage) -> Message:
    """Returns a message as it is recorded: `type`, `id`, `content`, and the other fields that are not empty."""
    fields = message.model_dump(exclude=set(_DERIVED))
    kind = "ai" if isinstance(message, AIMessage) else message.type
    dumped: Message = {"type": kind, "id": fields.pop("id"), "content": fields.pop("content")}
    if fields.get("status") == "success":
        del fields["status"]
    for call in fields.get("tool_calls") or ():
        call.pop("type", None)
    dumped.update((key, value) for key, value in fields.items() if value not in _EMPTY)
    return dumped


@dataclass(slots=True)
class _Entry:
    """A thread's messages, their objects and sizes; `several` if any of them makes several calls."""

    messages: list[Message] = field(default_factory=list)
    objects: list[BaseMessage] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    several: bool = False


class MessageCache:
    """A cache of LangChain objects by thread: a message is converted once, not once per request."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._threads: ByteCache[str, _Entry] = ByteCache(limit)
        self.hashes = ConversationHashes(limit)

    def load(self, thread_id: str, messages: Sequence[Message]) -> list[BaseMessage]:
        entry = self._threads.get(thread_id) or _Entry()
        same = 0
        for before, now in zip(entry.messages, messages, strict=False):
            if before is not now:
                break
            same += 1
        fresh = [load(message) for message in messages[same:]]
        several = entry.several or any(isinstance(m, AIMessage) and len(m.tool_calls) > 1 for m in fresh)
        sizes = [*entry.sizes[:same], *(len(msgspec.json.encode(message)) for message in messages[same:])]
        entry = _Entry([*entry.messages[:same], *messages[same:]], [*entry.objects[:same], *fresh], sizes, several)
        self._threads.put(thread_id, entry, sum(sizes))
        return in_order(entry.objects) if several else list(entry.objects)


class ConversationHashes:
    """Short hashes of conversations without the system prompt, computed incrementally."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._threads: ByteCache[str, tuple[Sequence[BaseMessage], Any, int]] = ByteCache(limit)

    def of(self, thread_id: str, messages: Sequence[BaseMessage]) -> str:
        hashed, digest, size = self._threads.get(thread_id) or ((), None, 0)
        if len(hashed) > len(messages) or any(map(operator.is_not, hashed, messages)):
            hashed, digest, size = (), None, 0
        digest = hashlib.blake2b(b"[", digest_size=8) if digest is None else digest.copy()
        parts = [msgspec.json.encode(key_of(message)) for message in messages[len(hashed) :]]
        digest.update(b",".join([b"", *parts] if hashed and parts else parts))
        size += sum(map(len, parts))
        self._threads.put(thread_id, (messages, digest, size), size)
        whole = digest.copy()
        whole.update(b"]")
        return str(whole.hexdigest())


def in_order(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Returns the messages with the results of parallel calls in the order of the calls."""
    ordered = list(messages)
    start = 0
    while start < len(ordered):
        message = ordered[start]
        start += 1
        if isinstance(message, AIMessage) and len(message.tool_calls) > 1:
            end = start
            while end < len(ordered) and isinstance(ordered[end], ToolMessage):
                end += 1
            places = {call["id"]: place for place, call in enumerate(message.tool_calls)}
            ordered[start:end] = sorted(
                ordered[start:end], key=lambda m: places.get(getattr(m, "tool_call_id", ""), end)
            )
            start = end
    return ordered


def key_of(message: BaseMessage) -> Any:
    """Returns the parts of a message that identify a request: type, content and calls. No ids, no times."""
    calls = [(c["name"], c["args"]) for c in message.tool_calls] if isinstance(message, AIMessage) else None
    return (message.type, message.content, calls)
