"""Pieces of an assistant message as LangChain dumps them: deltas to be concatenated, or the message so far."""

from __future__ import annotations

from channels.http.protocols.langgraph import dumps
from core.events import Json, Message
from core.runs.previews import Piece, Preview, Reader

_HEAD = b'[{"content":%b,"additional_kwargs":%b,"response_metadata":{},"type":"AIMessageChunk","name":null,"id":%b,'
_TAIL = b'"tool_calls":[],"invalid_tool_calls":[],"tool_call_chunks":%b},%b]'
_CHUNK = _HEAD + _TAIL


def chunk(message: str, piece: Piece, metadata: bytes) -> bytes:
    """`[chunk, metadata]`: the delta alone. Made once per preview, so the JSON is put together by hand.

    No `usage_metadata`: clients that add chunks up take null for zero tokens.
    """
    content, kwargs, calls = b'""', b"{}", b"[]"
    text = dumps.encode(piece.text)
    match piece.part:
        case "text":
            content = text
        case "reasoning":
            kwargs = b'{"reasoning_content":%b}' % text
        case "call":
            calls = dumps.encode([call_chunk(piece)])
    return _CHUNK % (content, kwargs, dumps.encode(message), calls, metadata)


def last_chunk(message: Message, metadata: bytes, number: int | None = None) -> bytes:
    """The chunk after the text: what is only known at the end, as its number."""
    kwargs = {k: v for k, v in message.get("additional_kwargs", {}).items() if k != "reasoning_content"}
    dump: Json = {
        "content": "",
        "additional_kwargs": kwargs,
        "response_metadata": message.get("response_metadata", {}),
        "type": "AIMessageChunk",
        "name": message.get("name"),
        "id": message.get("id"),
        "tool_calls": [],
        "invalid_tool_calls": [],
        "tool_call_chunks": [],
        "chunk_position": "last",
    }
    if usage := message.get("usage_metadata"):
        dump["usage_metadata"] = usage
    return place(dumps.encode(dumps.with_number(dump, number)), metadata)


def unfinished(message: Message, *calls: Json) -> Json:
    """A message that is being made: its usage is not known, which is not the same as none."""
    dump = dumps.full({"type": "ai", **message})
    del dump["usage_metadata"]
    return {**dump, "type": "AIMessageChunk", "tool_call_chunks": list(calls)}


def place(message: bytes, metadata: bytes) -> bytes:
    return b"[%b,%b]" % (message, metadata)


def call_chunk(piece: Piece) -> Json:
    named = {"index": piece.index, "id": piece.call_id, "name": piece.name, "args": piece.text}
    return {**named, "type": "tool_call_chunk"}


class Cumulative:
    """A message so far, for clients that replace instead of append.

    Reads previews on its own, from the message's beginning.
    """

    def __init__(self) -> None:
        self._reader = Reader()
        self._text = ""
        self._reasoning = ""
        self._calls: dict[int, Json] = {}

    @property
    def end(self) -> int:
        return self._reader.offset

    def take(self, preview: Preview) -> None:
        if self._reader.message is None and preview.offset:
            return
        piece = self._reader.take(preview)
        if piece is None:
            return
        match piece.part:
            case "text":
                self._text += piece.text
            case "reasoning":
                self._reasoning += piece.text
            case "call":
                call = {
                    "index": piece.index,
                    "id": piece.call_id,
                    "name": piece.name,
                    "args": "",
                    "type": "tool_call_chunk",
                }
                self._calls.setdefault(piece.index, call)["args"] += piece.text

    def message(self, identity: str) -> Json:
        kwargs = {"reasoning_content": self._reasoning} if self._reasoning else {}
        return unfinished({"id": identity, "content": self._text, "additional_kwargs": kwargs}, *self._calls.values())
