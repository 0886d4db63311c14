"""Requests that we send past the SDK's transformation are what the SDK would send; chunks have a deadline each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Self

import pytest
from aiohttp import web
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import StreamChunkTimeoutError
from pydantic import SecretStr, model_validator

from adapters.models import connections, requests
from adapters.models.openai_compatible import OpenAICompatible
from adapters.models.requests import Completions
from tests.adapters.models.test_chunks import STREAMS, sse

CALL = {"name": "read", "args": {"path": "/é\u2028"}, "id": "c1", "type": "tool_call"}
CONVERSATION: list[BaseMessage] = [
    SystemMessage("Be kind."),
    HumanMessage(
        [{"type": "text", "text": "Hi 😀"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    ),
    AIMessage("", tool_calls=[CALL]),
    ToolMessage("there", tool_call_id="c1"),
]
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}


class Sdk(OpenAICompatible):
    """Sends by the SDK."""

    @model_validator(mode="after")
    def _send_lean(self) -> Self:
        return self


@asynccontextmanager
async def recording(pause: asyncio.Event | None = None) -> AsyncIterator[tuple[str, list[Any]]]:
    """A server that keeps requests, and answers with a stream whose second half waits for `pause`."""
    requests: list[Any] = []
    whole = sse(STREAMS["openai"])

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.append((request.path_qs, dict(request.headers), json.loads(await request.read())))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(whole[:600])
        if pause is not None:
            await pause.wait()
        await response.write(whole[600:])
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", requests
    finally:
        await connections.shared()._transport.aclose()
        await runner.cleanup()


def model(cls: type[OpenAICompatible], url: str, **fields: Any) -> OpenAICompatible:
    return cls(model="m-1", base_url=url, api_key=SecretStr("k"), max_retries=0, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.1, "max_tokens": 7, "stop": ["x"], "seed": 3, "timeout": 9.0, "reasoning_effort": "low"},
        {"extra_body": {"thinking": {"type": "enabled"}, "since": datetime(2026, 1, 2)}},
        {"default_headers": {"x-a": "b"}, "default_query": {"v": "1"}, "organization": "o"},
        {"model_kwargs": {"user": "u", "extra_headers": {"x-c": "d"}, "extra_query": {"w": "2"}}},
        {"include_response_headers": True},
    ],
    ids=["plain", "options", "body", "headers", "kwargs", "raw"],
)
async def test_the_request_is_the_one_of_the_sdk(fields: dict[str, Any]) -> None:
    async with recording() as (url, requests):
        for cls in (OpenAICompatible, Sdk):
            bound = model(cls, url, **fields).bind_tools([TOOL])
            assert "".join([str(chunk.content) async for chunk in bound.astream(CONVERSATION)]) == "Hello"
    ours, sdks = requests
    assert ours == sdks
    assert isinstance(model(OpenAICompatible, url).async_client, Completions)
    assert ours[2]["stream"] is True
    assert [message["role"] for message in ours[2]["messages"]] == ["system", "user", "assistant", "tool"]


async def test_what_only_the_sdk_can_encode_goes_its_way() -> None:
    async with recording() as (url, requests):
        with pytest.raises(TypeError, match="not JSON serializable"):
            [chunk async for chunk in model(OpenAICompatible, url, extra_body={"a": object()}).astream("hi")]
    assert requests == []


async def test_a_chunk_has_a_deadline() -> None:
    pause = asyncio.Event()
    async with recording(pause) as (url, _):
        chunks = model(OpenAICompatible, url, stream_chunk_timeout=0.2).astream("hi")
        try:
            assert await anext(chunks)
            with pytest.raises(StreamChunkTimeoutError, match="m-1"):
                [chunk async for chunk in chunks]
        finally:
            pause.set()


async def test_others_have_their_turn_while_chunks_are_there() -> None:
    async def burst() -> AsyncIterator[int]:
        for number in range(200):
            deadline = time.perf_counter() + 0.001  # a chunk's own work; nothing is waited for
            while time.perf_counter() < deadline:
                pass
            yield number

    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    assert [number async for number in requests.timed(burst(), 5.0)] == list(range(200))
    task.cancel()
    assert turns >= 10
