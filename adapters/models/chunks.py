"""Reads streamed chat completions without the OpenAI SDK's models, which cost more than the rest of a stream.

The SDK's own loop stays in charge of the end of a stream, of errors in it, of timeouts and of the connection. Only its
callback for each event is replaced: a chunk of the usual shape becomes a `Chunk`, any other goes the SDK's way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Self, cast

import msgspec
import openai
from openai import AsyncStream
from openai._streaming import ServerSentEvent, SSEDecoder
from openai.types.chat import ChatCompletionChunk


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    index: int
    function: Function
    id: str | None = None
    extra_content: None = None


class Delta(msgspec.Struct):
    """The delta of a usual chunk. Fields of type `None` must be absent in it."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    role: Literal["assistant"] | None = None
    id: None = None
    function_call: None = None


class Choice(msgspec.Struct):
    delta: Delta
    finish_reason: str | None = None
    logprobs: None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: dict[str, int | None] | None = None
    completion_tokens_details: dict[str, int | None] | None = None


class Chunk(msgspec.Struct):
    """A chunk with all the fields that LangChain needs."""

    choices: list[Choice]
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    usage: Usage | None = None
    error: None = None
    type: None = None
    chunk: msgspec.UnsetType | None = msgspec.UNSET

    def model_dump(self) -> Self:
        """Returns the chunk itself: LangChain calls this on objects that are not a dict."""
        return self


_decode = msgspec.json.Decoder(Chunk).decode


class _Event(ServerSentEvent):
    """An event whose data is a `Chunk`, if it has the usual shape."""

    def json(self) -> Any:
        if self.event == "error":  # the SDK knows an error by its key
            data = super().json()
            return data if isinstance(data, dict) and data.get("error") else {"error": data}
        try:
            return _decode(self.data)
        except msgspec.DecodeError:
            return super().json()


class _Decoder(SSEDecoder):
    done = False

    def decode(self, line: str) -> ServerSentEvent | None:
        event = super().decode(line)
        self.done = self.done or (event is not None and event.data.startswith("[DONE]"))
        return None if event is None else _Event(event=event.event, data=event.data, id=event.id, retry=event.retry)


class Stream(AsyncStream[ChatCompletionChunk]):
    """The SDK's stream, but that an answer ends with a finish reason or `[DONE]`, not where a connection is closed."""

    async def __stream__(self) -> AsyncIterator[ChatCompletionChunk]:
        finished = False
        async for chunk in super().__stream__():
            finished = finished or any(choice.finish_reason for choice in chunk.choices or ())
            yield chunk
        if not finished and not getattr(self._decoder, "done", True):
            raise openai.APIConnectionError(
                message="The stream ended before the answer did.", request=self.response.request
            )


def read_lean(client: openai.AsyncOpenAI) -> None:
    """Patches the client so that its streams yield `Chunk`s where possible."""
    construct = client._process_response_data

    def process(*, data: object, **rest: Any) -> Any:
        return data if type(data) is Chunk else construct(data=data, **rest)

    patched = cast(Any, client)
    patched._make_sse_decoder = _Decoder
    patched._process_response_data = process
