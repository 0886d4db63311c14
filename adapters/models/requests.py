"""Sends streamed chat completions without the SDK's walk through their bodies, and bounds the wait for each chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, cast

import msgspec
from langchain_openai import StreamChunkTimeoutError
from langchain_openai.chat_models import base
from openai import NOT_GIVEN
from openai._base_client import make_request_options
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion

from adapters.models.chunks import Stream

T = TypeVar("T")

TURN_SECONDS = 0.005
"""Time for which chunks that are there already are taken in a row; then other tasks have their turn."""


class Completions:
    """The SDK's chat completions, but that a streamed request's body is encoded as it is.

    The SDK transforms each part by its type and encodes the whole in Python, which takes 10 ms per 1 000 messages.
    """

    def __init__(self, sdk: AsyncCompletions) -> None:
        self._sdk = sdk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sdk, name)

    async def create(
        self,
        *,
        extra_headers: Mapping[str, Any] | None = None,
        extra_query: Mapping[str, Any] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout: Any = NOT_GIVEN,
        **fields: Any,
    ) -> Any:
        extras: dict[str, Any] = {"extra_headers": extra_headers, "extra_query": extra_query, "timeout": timeout}
        try:
            body = msgspec.json.encode({**fields, **(extra_body or {})}) if fields.get("stream") else None
        except TypeError:  # an object that only the SDK can encode
            body = None
        if body is None:
            return await self._sdk.create(**fields, **extras, extra_body=extra_body)
        return await self._sdk._client.post(
            "/chat/completions",
            content=body,
            options=make_request_options(**extras, security={"bearer_auth": True}),
            cast_to=ChatCompletion,
            stream=True,
            stream_cls=Stream,
        )


async def timed(source: AsyncIterable[T], timeout: float | None, *, model_name: str | None = None) -> AsyncIterator[T]:
    """Yields the chunks of a stream. Raises `StreamChunkTimeoutError` if one takes longer than so many seconds.

    LangChain's own uses `asyncio.wait_for`, which needs a task for each chunk before Python 3.12.
    """
    received, clock = 0, asyncio.get_running_loop().time
    turn = clock() + TURN_SECONDS
    async with aclosing(cast(AsyncGenerator[T], aiter(source))) as chunks:
        while True:
            try:
                async with asyncio.timeout(timeout if timeout and timeout > 0 else None) as deadline:
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                if timeout is None or not deadline.expired():
                    raise
                raise StreamChunkTimeoutError(timeout, model_name=model_name, chunks_received=received) from error
            received += 1
            if clock() > turn:
                await asyncio.sleep(0)
                turn = clock() + TURN_SECONDS
            yield chunk


base._astream_with_chunk_timeout = timed  # type: ignore[attr-defined]
