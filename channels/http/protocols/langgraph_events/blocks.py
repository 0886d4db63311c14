"""Messages as content blocks and deltas, which are the same wherever and however often they are sent.

Theory of operation
-------------------
Clients put a message together from its deltas and know a delta by its id. One that was cut off in the middle gets the
message again, from another replica, perhaps when it is finished: if the text were then cut elsewhere, the client would
have some of it twice, or not at all. So where a text is cut depends on nothing but the text before: a delta that begins
at character `n` of its block has `n / 16` characters, at least 4 and at most 32 (the first come quickly, and long
messages are not all envelope), unless the model goes over to another block before. How previews were cut, and which of
them came, does not matter; text waits until its delta is full, or its block is left, or the message is finished.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.events import Json, Message, ModelCompleted
from core.runs.previews import Part, Piece
from core.thread.messages import text_of

LEAST, MOST, GROWTH = 4, 32, 16

MessageEvent = tuple[str, Json]
"""The id of an event of the `messages` channel, and its data."""


class _Block:
    def __init__(self, index: int, piece: Piece) -> None:
        self.index = index
        self.sent = 0
        """Characters that were sent."""
        self.blank = piece.part == "call" and piece.call_id is None and piece.name is None
        """A call that the model began and that is not part of what it said: it only keeps its index."""


class Body:
    """One message, as far as it is known. `events` is all that was sent of it, after `before`."""

    def __init__(self, message: str, before: Sequence[MessageEvent] = ()) -> None:
        self.message = message
        self.events = list(before)
        self.begun = False
        self._blocks: dict[tuple[Part, int], _Block] = {}
        self._current: tuple[Part, int] | None = None
        self._waiting = ""

    def feed(self, piece: Piece) -> list[MessageEvent]:
        """The next characters of the message's line."""
        before = len(self.events)
        self._begin()
        key = (piece.part, piece.index)
        if key != self._current:
            self._leave()
            self._current = key
            if key not in self._blocks:
                self._enter(key, piece)
        block = self._blocks[key]
        self._waiting += piece.text
        while len(self._waiting) >= (size := min(max(block.sent // GROWTH, LEAST), MOST)):
            self._delta(block, piece.part, size)
        return self.events[before:]

    def finish(self, event: ModelCompleted) -> list[MessageEvent]:
        """Everything that was not sent yet of a message whose line was fed; the last one is `message-finish`."""
        before = len(self.events)
        message = event.message
        self._begin()
        self._leave()
        for (part, index), block in self._blocks.items():
            content = _content(part, index, event, blank=block.blank)
            if content is not None:
                self._block(block, "finish", content)
        self.events.append((f"{self.message}:finish", {**self._named("message-finish"), **_summary(message)}))
        return self.events[before:]

    def abandon(self) -> list[MessageEvent]:
        """The message is not going to be finished."""
        text = "the model's answer broke off"
        return [(f"{self.message}:error", {**self._named("error"), "message": text, "code": "aborted"})]

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            self.events.append((f"{self.message}:start", {"event": "message-start", "role": "ai", "id": self.message}))

    def _enter(self, key: tuple[Part, int], piece: Piece) -> None:
        block = self._blocks[key] = _Block(len(self._blocks), piece)
        self._block(block, "start", _beginning(piece, blank=block.blank))

    def _leave(self) -> None:
        if self._waiting and self._current is not None:
            self._delta(self._blocks[self._current], self._current[0], len(self._waiting))

    def _delta(self, block: _Block, part: Part, size: int) -> None:
        text, self._waiting = self._waiting[:size], self._waiting[size:]
        if not block.blank:
            data = {**self._named("content-block-delta"), "index": block.index, **_addition(part, text)}
            self.events.append((f"{self.message}:{block.index}:{block.sent}", data))
        block.sent += size

    def _block(self, block: _Block, what: str, content: Json) -> None:
        data = {**self._named(f"content-block-{what}"), "index": block.index, "content": content}
        self.events.append((f"{self.message}:{block.index}:{what}", data))

    def _named(self, event: str) -> Json:
        return {"event": event, "id": self.message}


def tool_message(message: Message) -> list[MessageEvent]:
    """A tool's answer: text, known at once and sent at once."""
    identity, text = str(message.get("id")), text_of(message.get("content", ""))
    begun = {"role": "tool", "id": identity, "tool_call_id": message.get("tool_call_id")}
    block: Json = {"id": identity, "index": 0}
    return [
        (f"{identity}:start", {"event": "message-start", **begun}),
        (f"{identity}:0:start", {"event": "content-block-start", **block, "content": {"type": "text", "text": ""}}),
        (f"{identity}:0:0", {"event": "content-block-delta", **block, **_addition("text", text)}),
        (f"{identity}:0:finish", {"event": "content-block-finish", **block, "content": {"type": "text", "text": text}}),
        (f"{identity}:finish", {"event": "message-finish", "id": identity}),
    ]


def _beginning(piece: Piece, *, blank: bool) -> Json:
    match piece.part:
        case "text":
            return {"type": "text", "text": ""}
        case "reasoning":
            return {"type": "reasoning", "reasoning": ""}
        case "call" if blank:
            return {"type": "non_standard", "value": {}}
        case "call":
            return {
                "type": "tool_call_chunk",
                "id": piece.call_id,
                "name": piece.name,
                "args": "",
                "index": piece.index,
            }


def _addition(part: Part, text: str) -> Json:
    """A delta. That of a call is there twice: older JavaScript clients break at `tool-call-delta`, and all of them
    look for `content` first.
    """
    match part:
        case "text":
            return {"delta": {"type": "text-delta", "text": text}}
        case "reasoning":
            return {"delta": {"type": "reasoning-delta", "reasoning": text}}
        case "call":
            delta = {"type": "tool-call-delta", "args": text}
            return {"delta": delta, "content": {"type": "tool_call_chunk", "args": text}}


def _content(part: Part, index: int, event: ModelCompleted, *, blank: bool) -> Json | None:
    """The finished block; None if it is no part of what the model said in the end."""
    message = event.message
    match part:
        case "text":
            return {"type": "text", "text": text_of(message.get("content", ""))}
        case "reasoning":
            reasoning = message.get("additional_kwargs", {}).get("reasoning_content")
            return {"type": "reasoning", "reasoning": str(reasoning)} if reasoning else None
        case "call" if blank:
            return {"type": "non_standard", "value": {}}
        case "call":
            calls = message.get("tool_calls", ())
            return _call(calls[index], event) if index < len(calls) else None


def _call(call: Json, event: ModelCompleted) -> Json:
    named = {"id": call["id"], "name": call["name"]}
    if "error" not in call:
        return {"type": "tool_call", **named, "args": call["args"]}
    raw = event.call_texts.get(call["id"], "")
    return {"type": "invalid_tool_call", **named, "args": raw, "error": call["error"]}


def _summary(message: Message) -> Json:
    found = {
        "usage": message.get("usage_metadata"),
        "metadata": message.get("response_metadata"),
        "additional_kwargs": message.get("additional_kwargs"),
    }
    return {name: value for name, value in found.items() if value}
