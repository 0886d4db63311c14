"""Assembles an answer from what a model sends: our own pieces, or LangChain's chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import add_usage
from langchain_core.messages.tool import tool_call_chunk

from actors.agent.model.calls import Calls
from core.bus.rpc import encoded
from core.control import sendable
from core.ports.models import ANSWER_BYTES, CUT, AnswerTooLong, CallPiece, Piece
from core.runs.previews import Previewer
from core.thread.messages import text_of

PIECE_BYTES = 64
"""What a piece counts for besides its text."""
_BROKEN = re.compile(
    r"error|abort|fail|insufficient|unavailable|timed?.?out|cancel|disconnect|malformed", re.IGNORECASE
)
"""Reasons for an answer's end by which a provider says that it could not go on: `error` (OpenRouter), `network_error`
(GLM), `insufficient_system_resource` (DeepSeek), `abort` (SGLang), `MALFORMED_FUNCTION_CALL` (Gemini).
"""


_REASONS = {"anthropic": "stop_reason", "google_genai": "finish_reason"}
"""Where LangChain's classes keep the reason for an answer's end, which every whole answer of these providers has. They
do not look for it: Amazon's class does.
"""


class AnswerBroken(Exception):
    """The answer is not whole: the provider says so, or its stream was cut. It is asked again."""


class Halves:
    """Joins the halves of a character that came in two texts. A half alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}

    def join(self, key: str, text: str) -> str:
        """Returns the text of a part so far, without a first half at its end, which waits for the second."""
        if key in self._waiting:
            text = self._waiting.pop(key) + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._waiting[key], text = text[-1], text[:-1]
        return sendable(text)

    def rest(self, key: str) -> str:
        return "\ufffd" if self._waiting.pop(key, "") else ""


class Assembly:
    """One answer while it comes. Shows it as previews."""

    def __init__(self, previewer: Previewer | None) -> None:
        self.calls = Calls()
        self._previewer = previewer
        self._halves = Halves()
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._extras: dict[str, Any] = {}
        self._usage: Any = None
        self._about: dict[str, Any] = {}
        self._chunks: list[AIMessageChunk] = []
        self._size = 0
        self._pieces = 0

    def __bool__(self) -> bool:
        return bool(self._pieces or self._chunks)

    async def add(self, part: Piece | AIMessage) -> None:
        """Adds what came. Raises `AnswerTooLong`."""
        if isinstance(part, Piece):
            await self._add_piece(part)
        else:
            await self._add_chunk(part if isinstance(part, AIMessageChunk) else _whole(part))

    async def _add_piece(self, piece: Piece) -> None:
        text = self._halves.join("text", piece.text)
        reasoning = self._halves.join("reasoning", piece.reasoning)
        arguments = sum(len(call.arguments) for call in piece.calls)
        self._count(PIECE_BYTES + len(text) + len(reasoning) + arguments)
        self._pieces += 1
        self._texts.append(text)
        self._reasoning.append(reasoning)
        if piece.extras:
            self._extras = _merged(self._extras, piece.extras)
        if piece.usage:
            self._usage = add_usage(self._usage, piece.usage)  # type: ignore[arg-type]
        self._about.update(piece.about)
        await self._show(text, reasoning)
        for call in piece.calls:
            await self._call(call)

    async def _add_chunk(self, chunk: AIMessageChunk) -> None:
        if isinstance(chunk.content, str) and chunk.content and not chunk.content.isascii():
            chunk = chunk.model_copy(update={"content": self._halves.join("text", chunk.content)})
        calls = chunk.tool_call_chunks
        if calls:
            chunk = chunk.model_copy(update={"tool_call_chunks": [], "tool_calls": [], "invalid_tool_calls": []})
        clean, raw = encoded({"content": chunk.content, "additional_kwargs": chunk.additional_kwargs})
        self._count(len(raw) + sum(len(call["args"] or "") for call in calls))
        chunk = chunk.model_copy(update=clean)
        self._chunks.append(chunk)
        reasoning = str(chunk.additional_kwargs.get("reasoning_content") or "") or _thinking(chunk.content)
        self._reasoning.append(reasoning)
        await self._show(text_of(chunk.content), reasoning)
        for call in calls:
            index = call["index"] if isinstance(call["index"], int) else None
            await self._call(CallPiece(index, call["id"] or "", call["name"] or "", call["args"] or ""))

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > ANSWER_BYTES:
            raise AnswerTooLong(ANSWER_BYTES)

    async def _show(self, text: str, reasoning: str) -> None:
        if self._previewer is not None:
            if reasoning:
                await self._previewer.add("reasoning", reasoning)
            if text:
                await self._previewer.add("text", text)

    async def _call(self, call: CallPiece) -> None:
        call = call._replace(arguments=self._halves.join(f"call {call.number}", call.arguments))
        place, call_id, name = self.calls.add(call)
        if self._previewer is not None:
            await self._previewer.add("call", call.arguments, index=place, call_id=call_id or None, name=name or None)

    async def finish(self) -> None:
        """Ends the answer. Raises `AnswerBroken` if it is not whole."""
        text, reasoning = self._halves.rest("text"), self._halves.rest("reasoning")
        if text or reasoning:
            await self._add_piece(Piece(text, reasoning))
        about = self.message().response_metadata
        place = _REASONS.get(str(about.get("model_provider")))
        reason = about.get(place or "finish_reason") or blocked(about)
        if place and not reason:
            raise AnswerBroken(CUT)
        if isinstance(reason, str) and _BROKEN.search(reason):
            raise AnswerBroken(f"The provider ended the answer with {reason!r}.")

    def message(self) -> AIMessageChunk:
        """Returns the answer so far, without its calls."""
        reasoning = "".join(self._reasoning)
        if not self._chunks:
            extras = {**({"reasoning_content": reasoning} if reasoning else {}), **self._extras}
            return AIMessageChunk(
                content="".join(self._texts),
                additional_kwargs=extras,
                response_metadata=self._about,
                usage_metadata=self._usage,
            )
        first, *others = self._chunks
        merged = first + others if others else first
        if self._texts and isinstance(merged.content, str):
            merged.content += "".join(self._texts)
        if reasoning:
            merged.additional_kwargs["reasoning_content"] = reasoning
        return merged


def blocked(about: Mapping[str, Any]) -> str:
    """Returns the reason for which Google did not let the model see a request, "" if it did."""
    feedback = about.get("prompt_feedback")
    reason = feedback.get("block_reason") if isinstance(feedback, Mapping) else None
    return reason if isinstance(reason, str) else ""


def _thinking(content: Any) -> str:
    """Returns the reasoning among the blocks of a chunk, as Anthropic, Google and Amazon have it."""
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return "".join(
        str(part.get("thinking") or part.get("reasoning") or part.get("text") or "")
        for block in blocks
        if block.get("type") in ("thinking", "reasoning", "reasoning_content")
        for part in [block.get("reasoning_content") or block]
    )


def _merged(extras: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a provider, put together: texts and lists add up, of other values the last counts."""
    merged = dict(extras)
    for name, value in more.items():
        before = merged.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            value = _merged(before, value)
        elif type(value) is type(before) and isinstance(value, str | list):
            value = before + value  # type: ignore[operator]
        merged[name] = value
    return merged


def _whole(message: AIMessage) -> AIMessageChunk:
    """Returns the answer of a model class that does not stream as one chunk."""
    texts = [
        *((call, json.dumps(call["args"])) for call in message.tool_calls),
        *((call, call["args"]) for call in message.invalid_tool_calls),
    ]
    calls = [
        tool_call_chunk(name=call["name"], args=text, id=call["id"], index=index)
        for index, (call, text) in enumerate(texts)
    ]
    return AIMessageChunk(
        **message.model_dump(exclude={"type", "tool_calls", "invalid_tool_calls"}), tool_call_chunks=calls
    )
