"""Translator of a run's stream frames to the events of the client. Pure: it depends on the frames only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from channels.client.sse import Frame

Json = dict[str, Any]

MODES = ("values", "messages-tuple", "updates", "custom")
"""The stream modes that the client requests."""
INTERRUPT = "__interrupt__"


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of a run.

    | type | data |
    |---|---|
    | `messages-tuple` | a piece of an answer: `{type: "ai", content, id, usage_metadata?, additional_kwargs?}` |
    | `messages-tuple` | its complete tool calls: `{type: "ai", content: "", id, tool_calls: [{name, args, id}]}` |
    | `messages-tuple` | the result of a call: `{type: "tool", content, name, tool_call_id, id, status?}` |
    | `values` | the state after a step: `{title, messages, artifacts, todos?}`; `interrupts` if it has questions |
    | `custom` | reports of tools and of the agent, unchanged |
    | `end` | the last event: `{usage: {input_tokens, output_tokens, total_tokens}}` |
    """

    type: Literal["values", "messages-tuple", "custom", "end"]
    data: Json
    thread_id: str = ""
    run_id: str = ""


class Translator:
    """Translator of a run. It emits every text, tool call, tool result and usage once, whichever frames bring it."""

    def __init__(self, thread_id: str = "") -> None:
        self.thread_id = thread_id
        self.run_id = ""
        self.usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        self.failure: Json | None = None
        """The error of the run."""
        self._reported: set[str] | None = None
        """Ids of messages from before the run, or emitted since; None before the first state."""
        self._streamed: dict[str, int] = {}
        """Emitted characters of the texts of messages."""
        self._calls: set[str] = set()
        self._results: set[str] = set()
        self._counted: set[str] = set()

    def take(self, frame: Frame) -> Iterator[StreamEvent]:
        data = frame.data
        match frame.event:
            case "metadata" if isinstance(data, dict):
                self.run_id = str(data.get("run_id") or self.run_id)
            case "messages" if isinstance(data, list) and data:
                yield from self._message(data[0])
            case "updates" if isinstance(data, dict):
                for update in data.values():
                    for message in _messages(update):
                        yield from self._call_events(message)
            case "values" if isinstance(data, dict):
                yield from self._values(data)
            case "custom" if isinstance(data, dict):
                yield self._event("custom", data)
            case "error":
                self.failure = data if isinstance(data, dict) else {"message": str(data)}
            case "end" if self.failure is None:
                yield self._event("end", {"usage": dict(self.usage)})

    def _message(self, message: Json) -> Iterator[StreamEvent]:
        match message.get("type"):
            case "AIMessageChunk":
                yield from self._text_event(message, text_of(message.get("content")))
            case "ai":
                yield from self._message_events(message)
            case "tool":
                yield from self._result_event(message)

    def _values(self, values: Json) -> Iterator[StreamEvent]:
        messages = _messages(values)
        if self._reported is None:
            self._reported = {str(message.get("id")) for message in messages}
        for message in messages:
            if str(message.get("id")) in self._reported:
                continue
            self._reported.add(str(message.get("id")))
            if message.get("type") == "ai":
                yield from self._message_events(message)
            elif message.get("type") == "tool":
                yield from self._result_event(message)
        fields = {"title": values.get("title"), "messages": messages, "artifacts": values.get("artifacts") or []}
        if todos := values.get("todos"):
            fields["todos"] = todos
        if INTERRUPT in values:
            fields["interrupts"] = values[INTERRUPT]
        yield self._event("values", fields)

    def _message_events(self, message: Json) -> Iterator[StreamEvent]:
        """Emits the part of an answer that was not streamed, and its tool calls."""
        streamed = self._streamed.get(str(message.get("id")))
        text = text_of(message.get("content"))
        if streamed is None:
            yield from self._text_event(message, text)
        elif len(text) > streamed:
            yield from self._text_event({"id": message.get("id")}, text[streamed:])
        yield from self._call_events(message)

    def _text_event(self, message: Json, text: str) -> Iterator[StreamEvent]:
        identity = str(message.get("id"))
        self._streamed[identity] = self._streamed.get(identity, 0) + len(text)
        data: Json = {"type": "ai", "content": text, "id": message.get("id")}
        if usage := self._count(message):
            data["usage_metadata"] = usage
        if kwargs := message.get("additional_kwargs"):
            data["additional_kwargs"] = kwargs
        if data["content"] or len(data) > 3:
            yield self._event("messages-tuple", data)

    def _call_events(self, message: Json) -> Iterator[StreamEvent]:
        calls = [
            {"name": call.get("name"), "args": call.get("args"), "id": call.get("id")}
            for call in message.get("tool_calls") or ()
            if str(call.get("id")) not in self._calls
        ]
        if message.get("type") == "ai" and calls:
            self._calls.update(str(call["id"]) for call in calls)
            data = {"type": "ai", "content": "", "id": message.get("id"), "tool_calls": calls}
            yield self._event("messages-tuple", data)

    def _result_event(self, message: Json) -> Iterator[StreamEvent]:
        call = str(message.get("tool_call_id"))
        if call in self._results:
            return
        self._results.add(call)
        data: Json = {"type": "tool", "content": text_of(message.get("content"))}
        data |= {key: message.get(key) for key in ("name", "tool_call_id", "id")}
        if message.get("status") == "error":
            data["status"] = "error"
        yield self._event("messages-tuple", data)

    def _count(self, message: Json) -> Json | None:
        """Returns the usage of a message, at the first time."""
        usage, identity = message.get("usage_metadata"), str(message.get("id"))
        if not isinstance(usage, Mapping) or identity in self._counted:
            return None
        self._counted.add(identity)
        for key in self.usage:
            self.usage[key] += int(usage.get(key) or 0)
        return dict(usage)

    def _event(self, kind: Literal["values", "messages-tuple", "custom", "end"], data: Json) -> StreamEvent:
        return StreamEvent(kind, data, self.thread_id, self.run_id)


def text_of(content: Any) -> str:
    """Returns the text of a message's content: a string, or blocks of which some are text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(
        part if isinstance(part, str) else str(part.get("text", ""))
        for part in parts
        if isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text")
    )


def _messages(state: Any) -> list[Json]:
    messages = state.get("messages") if isinstance(state, dict) else None
    return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
