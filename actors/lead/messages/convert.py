"""Messages between the log (LangChain's flat dump, defaults left out) and LangChain's objects."""

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
"""Of messages, as JSON, that are kept converted (which takes some three times as much), and of conversations whose
hashes are.
"""


def load(message: Message) -> BaseMessage:
    """The LangChain object of a recorded message. Unknown types are shown to the model as what a person said."""
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
    """A message as it is recorded: `type`, `id`, `content`, and whatever else is not empty."""
    fields = message.model_dump(exclude=set(_DERIVED))
    kind = "ai" if isinstance(message, AIMessage) else message.type
    kept: Message = {"type": kind, "id": fields.pop("id"), "content": fields.pop("content")}
    if fields.get("status") == "success":
        del fields["status"]
    for call in fields.get("tool_calls") or ():
        call.pop("type", None)
    kept.update((key, value) for key, value in fields.items() if value not in _EMPTY)
    return kept


@dataclass(slots=True)
class _Known:
    """A thread's messages, their objects, and whether any of them made several calls at once."""

    messages: list[Message] = field(default_factory=list)
    objects: list[BaseMessage] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    several: bool = False


class MessageCache:
    """The LangChain objects of threads at work: a message is converted once, not once per turn."""

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._threads: ByteCache[str, _Known] = ByteCache(kept)
        self.hashes = ConversationHashes(kept)

    def load(self, thread_id: str, messages: Sequence[Message]) -> list[BaseMessage]:
        known = self._threads.get(thread_id) or _Known()
        same = 0
        for before, now in zip(known.messages, messages, strict=False):
            if before is not now:
                break
            same += 1
        fresh = [load(message) for message in messages[same:]]
        several = known.several or any(isinstance(m, AIMessage) and len(m.tool_calls) > 1 for m in fresh)
        sizes = [*known.sizes[:same], *(len(msgspec.json.encode(message)) for message in messages[same:])]
        known = _Known([*known.messages[:same], *messages[same:]], [*known.objects[:same], *fresh], sizes, several)
        self._threads.put(thread_id, known, sum(sizes))
        return in_order(known.objects) if several else list(known.objects)


class ConversationHashes:
    """Short hashes of conversations, without the system prompt. What was hashed before is not hashed again."""

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._threads: ByteCache[str, tuple[Sequence[BaseMessage], Any, int]] = ByteCache(kept)

    def of(self, thread_id: str, messages: Sequence[BaseMessage]) -> str:
        known, digest, size = self._threads.get(thread_id) or ((), None, 0)
        if len(known) > len(messages) or any(map(operator.is_not, known, messages)):
            known, digest, size = (), None, 0
        digest = hashlib.blake2b(b"[", digest_size=8) if digest is None else digest.copy()
        parts = [msgspec.json.encode(key_of(message)) for message in messages[len(known) :]]
        digest.update(b",".join([b"", *parts] if known and parts else parts))
        size += sum(map(len, parts))
        self._threads.put(thread_id, (messages, digest, size), size)
        whole = digest.copy()
        whole.update(b"]")
        return str(whole.hexdigest())


def in_order(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Results of calls that were made at the same time in the order of the calls, whichever was done first."""
    found = list(messages)
    start = 0
    while start < len(found):
        message = found[start]
        start += 1
        if isinstance(message, AIMessage) and len(message.tool_calls) > 1:
            end = start
            while end < len(found) and isinstance(found[end], ToolMessage):
                end += 1
            places = {call["id"]: place for place, call in enumerate(message.tool_calls)}
            found[start:end] = sorted(found[start:end], key=lambda m: places.get(getattr(m, "tool_call_id", ""), end))
            start = end
    return found


def key_of(message: BaseMessage) -> Any:
    """What of a message makes a request the same request: who said what and called what. No ids, no times."""
    calls = [(c["name"], c["args"]) for c in message.tool_calls] if isinstance(message, AIMessage) else None
    return (message.type, message.content, calls)
