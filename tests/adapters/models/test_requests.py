"""Requests that we encode ourselves are what the SDK would send; events have a deadline; what fails is an error of the
SDK.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from aiohttp import web
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, StreamChunkTimeoutError
from pydantic import SecretStr

from adapters.models import connections
from adapters.models import openai_compatible as compatible
from adapters.models.openai_compatible import OpenAICompatible, joined
from core.ports.models import CallPiece, Piece
from tests.support.answers import body_of, load
from tests.support.applications import running

pytestmark = pytest.mark.anyio

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
PROVIDERS = load("providers")
AZURE, OPENAI = body_of(PROVIDERS["azure"]), body_of(PROVIDERS["openai"])
WHOLE = (
    b'{"choices": [{"message": {"role": "assistant", "content": "MARK-42"}, "finish_reason": "stop"}], '
    b'"usage": {"prompt_tokens": 9, "completion_tokens": 4}}'
)


@asynccontextmanager
async def answering(*bodies: bytes, pause: asyncio.Event | None = None, status: int = 200) -> AsyncIterator[Any]:
    """A server that keeps requests, and answers each with the next body, the last one from then on. With `pause`, only
    the first event of a body comes, and comments until then.
    """
    requests: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.append((request.path_qs, dict(request.headers), json.loads(await request.read())))
        body = bodies[min(len(requests), len(bodies)) - 1]
        response = web.StreamResponse(status=status, headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if pause is None:
            await response.write(body)
            return response
        await response.write(body[: body.index(b"\n\n") + 2])
        while not pause.is_set():
            await response.write(b"\n\n: keep-alive\n\n")
            await asyncio.sleep(0.02)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with serving(app) as url:
        try:
            yield f"{url}/v1", requests
        finally:
            if pause is not None:
                pause.set()


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Yields the URL of an application."""
    async with running(app) as url:
        try:
            yield url
        finally:
            await connections.shared()._transport.aclose()


def model(url: str, cls: type[ChatOpenAI] = OpenAICompatible, **fields: Any) -> Any:
    return cls(model="m-1", base_url=url, api_key=SecretStr("k"), max_retries=0, **fields)


async def pieces(model: OpenAICompatible) -> list[Piece]:
    return [piece async for piece in model.pieces([HumanMessage("Hi")])]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream_usage": True, "temperature": 0.3, "max_tokens": 7},
        {"extra_body": {"top_k": 4}, "model_kwargs": {"user": "u", "extra_headers": {"x-own": "1"}}},
        {"default_headers": {"x-a": "b"}, "default_query": {"v": "2"}, "stop": ["END"], "timeout": 30},
    ],
)
async def test_the_request_is_the_one_of_the_sdk(fields: dict[str, Any]) -> None:
    async with answering(AZURE) as (url, requests):
        ours = model(url, **fields).bind_tools([TOOL])
        [chunk async for chunk in ours.astream(CONVERSATION)]
        assert [piece async for piece in ours.bound.pieces(CONVERSATION, **ours.kwargs)]
        sdk = model(url, ChatOpenAI, http_async_client=connections.shared(), http_socket_options=(), **fields)
        [chunk async for chunk in sdk.bind_tools([TOOL]).astream(CONVERSATION)]
    assert requests[0] == requests[1] == requests[2]
    assert requests[0][2]["stream"] is True
    assert [message["role"] for message in requests[0][2]["messages"]] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize("fault", [400, 401, 404, 429, 500, 503, 307, "cut", "silent"])
async def test_a_later_request_fares_as_the_first_does(fault: int | str) -> None:
    """A first request is built by the SDK, the ones after it are like it."""
    well, paths = True, list[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        if well or request.path == "/elsewhere":
            return web.Response(body=AZURE, content_type="text/event-stream")
        if fault == "cut":
            request.transport.close()  # type: ignore[union-attr]
        if fault == "silent":
            await asyncio.sleep(2.5)
        status = fault if isinstance(fault, int) else 200
        return web.json_response({"error": {"message": "no"}}, status=status, headers={"location": "/elsewhere"})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with serving(app) as url:
        used, fresh = (model(f"{url}/v1", timeout=1 if fault == "silent" else 60) for _ in range(2))
        assert await pieces(used)
        well = False
        ends = [await _end(used), await _end(fresh)]
    assert ends[0] == ends[1]
    assert paths[1:].count("/v1/chat/completions") == len(paths[1:]) - 2 * (fault == 307)


async def _end(model: OpenAICompatible) -> Any:
    """How a request ends: what it says, or the error."""
    try:
        return await pieces(model)
    except openai.OpenAIError as error:
        return type(error), str(error), getattr(error, "body", None), getattr(error, "status_code", None)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_langchains_ways_and_ours_say_the_same(name: str) -> None:
    case = PROVIDERS[name]
    async with answering(body_of(case)) as (url, _):
        chunks = [chunk async for chunk in model(url).astream("Hi")]
        whole = await model(url).ainvoke("Hi")
        read = await pieces(model(url))
    merged = chunks[0] + chunks[1:]
    assert merged.text == whole.text == "".join(piece.text for piece in read) == case.get("text", "")
    assert merged.tool_calls == whole.tool_calls
    assert [[call["name"], call["args"]] for call in whole.tool_calls] == case.get("calls", [])
    assert whole.additional_kwargs.get("reasoning_content") == case.get("reasoning")
    assert merged.additional_kwargs == whole.additional_kwargs
    assert merged.usage_metadata["input_tokens"] == case["tokens"][0]


@pytest.mark.parametrize("fields", [{"output_version": "v1"}, {"include_response_headers": True}])
async def test_settings_of_langchain_work(fields: dict[str, Any]) -> None:
    async with answering(AZURE) as (url, _):
        chunks = [chunk async for chunk in model(url, **fields).astream("Hi")]
    assert "".join(chunk.text for chunk in chunks) == "MARK-42"
    assert not model(url, **fields).in_pieces({})


@pytest.mark.parametrize(
    "settings", [{"response_format": {"type": "json_object"}}, {"tools": [{"type": "web_search"}]}]
)
def test_other_requests_are_left_to_langchain(settings: dict[str, Any]) -> None:
    own = model("http://127.0.0.1:1/v1")
    assert own.in_pieces({"tools": [TOOL]})
    assert not own.in_pieces(settings)


async def test_what_is_empty_is_asked_for_once_more_and_whole() -> None:
    """Some servers answer nothing to a streamed request that is too long, and say why to another."""
    async with answering(b"", WHOLE) as (url, requests):
        read = await pieces(model(url, stream_usage=True))
    assert "".join(piece.text for piece in read) == "MARK-42"
    first, second = [request[2] for request in requests]
    assert second == {name: value for name, value in first.items() if name != "stream_options"} | {"stream": False}


async def test_what_stays_empty_is_an_error_that_is_tried_again() -> None:
    async with answering(b"") as (url, requests):
        with pytest.raises(openai.APIConnectionError, match="empty body"):
            await pieces(model(url))
    assert len(requests) == 2


async def test_a_whole_answer_to_a_streamed_request_is_taken() -> None:
    async with answering(WHOLE) as (url, requests):
        read = await pieces(model(url))
    assert "".join(piece.text for piece in read) == "MARK-42"
    assert len(requests) == 1


@pytest.mark.parametrize("way", ["astream", "ainvoke", "pieces"])
async def test_an_error_in_an_answer_is_one_of_the_sdk_in_every_way(way: str) -> None:
    async with answering(b'{"code": 1113, "msg": "balance is not enough", "success": false}') as (url, requests):
        own = model(url)
        with pytest.raises(openai.APIError, match="balance is not enough"):
            await {"astream": _streamed, "ainvoke": _invoked, "pieces": pieces}[way](own)
    assert len(requests) == 1


async def _streamed(model: OpenAICompatible) -> Any:
    return [chunk async for chunk in model.astream("Hi")]


async def _invoked(model: OpenAICompatible) -> Any:
    return await model.ainvoke("Hi")


async def test_an_object_that_cannot_be_sent_is_named() -> None:
    async with answering(AZURE) as (url, requests):
        with pytest.raises(TypeError, match="a request cannot have a object"):
            await pieces(model(url, extra_body={"a": object()}))
    assert requests == []


async def test_an_event_has_a_deadline_and_comments_are_none() -> None:
    pause = asyncio.Event()
    async with answering(AZURE, pause=pause) as (url, _):
        with pytest.raises(StreamChunkTimeoutError, match="m-1"):
            await pieces(model(url, stream_chunk_timeout=0.3))


async def test_others_have_their_turn_while_pieces_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatible, "TURN_EVENTS", 0)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    kinds = [b'data: {"choices": [{"delta": {"%b": "x"}}]}\n\n' % kind for kind in (b"content", b"reasoning")]
    many = b"".join(kinds * 150) + b"data: [DONE]\n\n"
    async with answering(many) as (url, _):
        own = model(url)
        stream = own.pieces([HumanMessage("Hi")])
        await anext(stream)
        task = asyncio.create_task(other())
        assert len([piece async for piece in stream]) == 299
        task.cancel()
    assert turns >= 200


R, T, MADE = Piece(reasoning="r"), Piece("t"), Piece(calls=[CallPiece(0, "c1", "read", "{}")])
END = Piece("e", about={"finish_reason": "stop"})


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ([T, T, T], [Piece("ttt")]),
        ([R, R, T, T, R], [Piece(reasoning="rr"), Piece("tt"), R]),
        ([T, T, END, T], [Piece("tt"), END, T]),
        ([Piece("t", "r"), T, T], [Piece("t", "r"), Piece("tt")]),
        ([MADE, MADE], [MADE, MADE]),
        ([T, Piece(usage={"output_tokens": 1}), T], [T, Piece(usage={"output_tokens": 1}), T]),
        ([], []),
    ],
)
def test_neighbours_with_nothing_but_text_are_one(pieces: list[Piece], whole: list[Piece]) -> None:
    assert list(joined(pieces)) == whole

    def broken() -> Iterator[Piece]:
        yield from pieces
        raise ValueError("cut")

    seen: list[Piece] = []
    with pytest.raises(ValueError, match="cut"):  # noqa: PT012  what came before the error is seen
        for piece in joined(broken()):
            seen.append(piece)
    assert seen == whole


def test_wire_forms_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.models.openai_compatible.CACHED_CHARACTERS", 20_000)
    own = model("http://127.0.0.1:1/v1")
    conversation = [HumanMessage("x" * 5000, id=str(number)) for number in range(10)]
    for _ in range(2):
        payload = own._get_request_payload(conversation)
        assert [len(wire["content"]) for wire in payload["messages"]] == [5000] * 10
        assert 0 < own._wires._size <= 20_000
        assert len(own._wires._cache) == 3
