"""Messages between the log (LangChain's flat dump, defaults left out) and LangChain's objects."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from core.events import Message

_CLASSES: Mapping[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "tool": ToolMessage,
    "system": SystemMessage,
    "remove": RemoveMessage,
}
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_DERIVED = ("type", "example", "tool_call_chunks", "chunk_position")
KEPT_THREADS = 128


def load(message: Message) -> BaseMessage:
    """The LangChain object of a recorded message. Unknown types are shown to the model as what a person said."""
    fields = {key: value for key, value in message.items() if key != "type"}
    fields.setdefault("content", "")
    if "tool_calls" in fields:
        fields["tool_calls"] = [{name: call[name] for name in ("name", "args", "id")} for call in fields["tool_calls"]]
    return _CLASSES.get(message["type"], HumanMessage)(**fields)


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


class Loaded:
    """The LangChain objects of threads at work: a message is converted once, not once per turn."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, tuple[list[Message], list[BaseMessage]]] = OrderedDict()

    def load(self, thread_id: str, messages: Sequence[Message]) -> list[BaseMessage]:
        known, objects = self._threads.pop(thread_id, ([], []))
        same = 0
        while same < len(known) and same < len(messages) and known[same] is messages[same]:
            same += 1
        fresh = [load(message) for message in messages[same:]]
        self._threads[thread_id] = ([*known[:same], *messages[same:]], [*objects[:same], *fresh])
        while len(self._threads) > KEPT_THREADS:
            self._threads.popitem(last=False)
        return list(self._threads[thread_id][1])


def key_of(messages: Sequence[BaseMessage]) -> list[Any]:
    """What of a conversation makes a request the same request: who said what and called what. No ids, no times."""
    return [
        (m.type, m.content, [(c["name"], c["args"]) for c in m.tool_calls] if isinstance(m, AIMessage) else None)
        for m in messages
    ]
