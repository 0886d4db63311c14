"""Reads an answer of a Chat Completions endpoint: bytes in, pieces out.

Theory of operation
-------------------
Rule 1: whatever a provider may send is read here and in `chunks`, by tables. Rule 2: this file does no input or output,
so a stream that went wrong somewhere can be given to it, cut anywhere, in a test.

The body's first character tells its form, whatever was asked for and whatever its content type says:

| begins with | is | becomes |
|---|---|---|
| `data:`, `event:`, `id:`, `retry:`, `:` | a stream of events | a piece an event |
| `{`, `[` | a whole answer, or one object a line | its pieces at the end |
| anything else (HTML, text) | no answer | `Refused`, with its beginning |
| nothing, or nothing but `[DONE]` | no answer | `Empty` |

A stream ends as follows. The first row that fits counts:

| event | becomes |
|---|---|
| an error, in any form that `chunks` knows | `Refused` |
| an event that is not JSON | `Garbled` |
| the end of the body after a finish reason or `[DONE]` | a whole answer |
| the end of the body before | `Garbled`: half of an answer is none |

Token counts: some providers report in each event what was used so far. The largest value of each count is reported, as
the growth since the report before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from langchain_openai.chat_models.base import _create_usage_metadata

from adapters.models.chunks import QUOTED, Chunk, Delta, Garbled, Refused, counts, mended, read, text_of
from core.ports.models import CUT, CallPiece, Piece

_FIELD = re.compile(rb"(?:data|event|id|retry)?[ \t]*:")
_DONE = b"[DONE]"
_MARK = b"\xef\xbb\xbf"
_TAGS = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)

Extras = Callable[[Delta], Mapping[str, Any]]


class Empty(Exception):
    """The body has nothing of an answer: some servers refuse so what is too long for them."""


def reasoning_of(delta: Delta) -> str:
    """Returns the reasoning in a delta: `reasoning_content` (DeepSeek and others) or `reasoning` (vLLM)."""
    reasoning = delta.reasoning_content or delta.reasoning
    return reasoning if isinstance(reasoning, str) else text_of(reasoning)


def no_extras(delta: Delta) -> Mapping[str, Any]:
    return {}


class Reader:
    """Reads one body. Errors: `Refused` and `Garbled` of `chunks`, and `Empty`."""

    def __init__(self, extras: Extras = no_extras) -> None:
        self._extras = extras
        self._form: Literal["events", "whole", "other"] | None = None
        self._waiting: list[bytes] = []
        self._usage: dict[str, Any] = {}
        self.events = 0
        """Events of the answer that were read."""
        self._fresh = True
        self._finished = False
        self._done = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yields the pieces of the events that end in these bytes."""
        self._waiting.append(data)
        if self._form is None:
            self._form = _form(b"".join(self._waiting))
        if self._form == "events" and (b"\n" in data or b"\r" in data):
            blocks, self._waiting = _blocks(b"".join(self._waiting))
            for block in blocks:
                yield from self._event(block)

    def end(self) -> Iterator[Piece]:
        """Yields the rest, as the body is at its end."""
        body = b"".join(self._waiting)
        self._waiting = []
        if self._form == "events":
            yield from self._event(_lines(body))
        elif body.strip():
            yield from self._whole(body)
        if not self.events:
            raise Empty
        if not (self._finished or self._done):
            raise Garbled(CUT)

    def _event(self, block: bytes) -> Iterator[Piece]:
        if block.startswith(b"data: ") and b"\n" not in block:
            data, name = block[6:], b""
        else:
            data, name = _parsed(block)
        if self._done or not data:
            return
        if data.endswith(_DONE):
            data, self._done = data.removesuffix(_DONE), True
        for chunk in read(data, failed=name == b"error", fresh=self._fresh):
            if (piece := self._piece(chunk)) is not None:
                yield piece

    def _whole(self, body: bytes) -> Iterator[Piece]:
        text = body.decode("utf-8", "replace").removeprefix("\ufeff")
        if self._form != "whole":
            words = " ".join(_TAGS.sub(" ", text).split())
            raise Refused(f"The model's server did not answer with JSON or a stream of events: {words[:QUOTED]}")
        try:
            values = [json.loads(text, strict=False)]
        except (ValueError, RecursionError):
            yield from self._event(body)  # an object a line, or a part of one
            return
        for chunk in mended(values):
            if chunk.choices:
                self._finished = True
            if (piece := self._piece(chunk)) is not None:
                yield piece
        if not self._finished:
            raise Refused(f"The model's server answered with JSON that is no answer: {text[:QUOTED]}")

    def _piece(self, chunk: Chunk) -> Piece | None:
        self.events += 1
        if not chunk.choices:
            return Piece(usage=self._growth(chunk)) if chunk.usage else None
        choice = chunk.choices[0] if len(chunk.choices) == 1 else next((c for c in chunk.choices if not c.index), None)
        if choice is None or choice.index:
            return None
        delta = choice.delta
        calls = [_call(call) for call in delta.tool_calls] if delta.tool_calls else ()
        text, reasoning = delta.content or "", ""
        if delta.reasoning_content or delta.reasoning:
            reasoning = reasoning_of(delta)
        self._fresh = self._fresh and not (text or reasoning or calls or delta.refusal)
        about: Mapping[str, Any] = {}
        if choice.finish_reason and choice.finish_reason != "null":
            self._finished, about = True, self._metadata(chunk, choice.finish_reason)
        return Piece(text, reasoning, calls, self._extras(delta), self._growth(chunk) if chunk.usage else {}, about)

    def _metadata(self, chunk: Chunk, reason: str) -> dict[str, Any]:
        fields = {"finish_reason": reason, "model_name": chunk.model, "model_provider": "openai"}
        fields |= {"system_fingerprint": chunk.system_fingerprint, "service_tier": chunk.service_tier}
        return {name: value for name, value in fields.items() if value}

    def _growth(self, chunk: Chunk) -> dict[str, Any]:
        usage: Any = _create_usage_metadata(counts(chunk.usage or {}), chunk.service_tier)
        before, self._usage = self._usage, _largest(self._usage, usage)
        sent = self._usage["input_tokens"] + self._usage["output_tokens"]
        self._usage["total_tokens"] = max(self._usage["total_tokens"], sent)
        return _difference(self._usage, before)


def _call(call: Any) -> CallPiece:
    return CallPiece(call.index, call.id or "", call.function.name or "", call.function.arguments or "")


def _form(body: bytes) -> Literal["events", "whole", "other"] | None:
    """Returns the form of a body by its beginning; None if that is too short to tell."""
    start = body.removeprefix(_MARK).lstrip()
    if not start:
        return None
    if start[:1] in (b"{", b"["):
        return "whole"
    if _FIELD.match(start):
        return "events"
    line, end, _ = start.partition(b"\n")
    return "other" if end or len(line) > len("event: ") else None


def _lines(block: bytes) -> bytes:
    return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _blocks(body: bytes) -> tuple[list[bytes], list[bytes]]:
    """Returns the events that are whole, and the rest. A carriage return at the end waits for what follows."""
    carriage = b"\r" if body.endswith(b"\r") else b""
    if b"\r" in body:
        body = _lines(body[: len(body) - len(carriage)])
    *blocks, rest = body.split(b"\n\n")
    return blocks, [part for part in (rest, carriage) if part]


def _parsed(block: bytes) -> tuple[bytes, bytes]:
    """Returns the data of an event and its name (WHATWG's event streams). An object without a field's name is data."""
    data, name = [], b""
    for line in block.removeprefix(_MARK).split(b"\n"):
        if line[:1] in (b"{", b"["):
            data.append(line)
            continue
        field, _, value = line.partition(b":")
        match field.strip():
            case b"data":
                data.append(value.removeprefix(b" "))
            case b"event":
                name = value.strip()
            case _:
                pass
    return b"\n".join(data).strip(), name


def _largest(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the larger of each count, at any depth."""
    merged = dict(one)
    for name, value in other.items():
        before = merged.get(name)
        merged[name] = _largest(before or {}, value) if isinstance(value, Mapping) else max(value, before or 0)
    return merged


def _difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the growth of each count, at any depth."""
    return {
        name: _difference(value, before.get(name) or {})
        if isinstance(value, Mapping)
        else value - (before.get(name) or 0)
        for name, value in now.items()
    }
