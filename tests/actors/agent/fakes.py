"""Models without a provider: one that answers at once, one that does with tool calls what providers should not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable


class Fake(BaseChatModel):
    """A model without a provider; it takes any tools."""

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return self

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError


class Instant(Fake):
    """Answers at once."""

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content="Done."))])

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content="Done."))


class Halves(Fake):
    """Sends halves of a character: one in the middle of a call's arguments, two of them in two pieces of the answer."""

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        if isinstance(messages[-1], HumanMessage):
            part = tool_call_chunk(index=0, id="call_0", name="echo", args='{"text": "a\\ud83d"}')
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))
            return
        for piece in ("Done \ud83d", "\ude00."):
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))


class Odd(Fake):
    """Plays `turns`: the calls of each message since the question as (id, name, raw arguments); none is the answer."""

    model: str = "odd"
    turns: tuple[tuple[tuple[str | None, str, str], ...], ...] = ()

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        start = max(n for n, message in enumerate(messages) if isinstance(message, HumanMessage))
        calls = self.turns[sum(isinstance(message, AIMessage) for message in messages[start:])]
        for place, (identity, name, arguments) in enumerate(calls):
            for part in (
                tool_call_chunk(index=place, id=identity, name=name, args=""),
                tool_call_chunk(index=place, id=None, name=None, args=arguments),
            ):
                yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))
        if not calls:
            yield ChatGenerationChunk(message=AIMessageChunk(content="Done."))
