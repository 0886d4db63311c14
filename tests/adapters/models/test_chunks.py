"""Streams that we read ourselves say what they say when the OpenAI SDK reads them: chunk by chunk, and merged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import openai
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import SecretStr, model_validator

from adapters.models.chunks import Chunk, _Event
from adapters.models.dialects import VLLM, DeepSeek, Signed
from adapters.models.openai_compatible import OpenAICompatible
from tests.support.laws import EXAMPLES

CLASSES = (OpenAICompatible, VLLM, DeepSeek, Signed)


def plain(model_class: type[OpenAICompatible]) -> type[OpenAICompatible]:
    """The class with its streams read by the SDK."""

    class Sdk(model_class):  # type: ignore[misc, valid-type]
        @model_validator(mode="after")
        def _read_lean(self) -> Self:
            return self

    return Sdk


def chunk(delta: Any = None, finish: str | None = None, /, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta if delta is not None else {}, "finish_reason": finish}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": [choice]} | fields


def call(index: int, arguments: str, id: str | None = None, name: str | None = None, **more: Any) -> dict[str, Any]:
    head = {"id": id, "type": "function"} if id else {}
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"tool_calls": [{"index": index, **head, "function": function, **more}]}


USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
DETAILED = USAGE | {
    "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 3, "accepted_prediction_tokens": 0},
}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "openai": [
        chunk({"role": "assistant", "content": "", "refusal": None}, service_tier="default", obfuscation="x"),
        chunk({"content": "Hel"}, system_fingerprint="fp", service_tier="default"),
        chunk({"content": "lo"}, system_fingerprint="fp", service_tier="default"),
        chunk({}, "stop", system_fingerprint="fp", service_tier="default"),
        chunk(choices=[], usage=DETAILED, service_tier="priority"),
    ],
    "openai-tools": [
        chunk({"role": "assistant", "content": None}),
        chunk(call(0, "", "call_a", "search")),
        chunk(call(0, '{"q": "o')),
        chunk(call(0, 'tters"}')),
        chunk(call(1, "", "call_b", "read")),
        chunk(call(1, '{"path": ')),
        chunk({}, "tool_calls"),
        chunk(choices=[], usage=USAGE),
    ],
    "deepseek": [
        chunk({"role": "assistant", "content": None, "reasoning_content": "Let me"}, usage=None),
        chunk({"content": None, "reasoning_content": " think."}),
        chunk({"content": "Yes.", "reasoning_content": None}),
        chunk({"content": "", "reasoning_content": None}, "stop", usage=DETAILED | {"prompt_cache_hit_tokens": 5}),
    ],
    "vllm": [
        chunk({"role": "assistant", "content": ""}, prompt_token_ids=None),
        chunk({"reasoning": "Hm", "reasoning_content": "Hm"}),
        chunk({"reasoning": "m."}),
        chunk({"content": "No."}, None, usage=USAGE),
        chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": None, "token_ids": None}]),
    ],
    "gemini": [
        chunk({"role": "assistant", **call(0, "{}", "call_g", "ls", extra_content={"google": {"sig": "abc"}})}),
        chunk({"role": "assistant", "content": "x"}, "stop", usage=USAGE),
    ],
    "azure": [
        chunk(choices=[], prompt_filter_results=[{"prompt_index": 0}], model="", id=""),
        chunk({"role": "assistant", "content": "Hi"}),
        chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop", "content_filter_results": {"hate": {}}}]),
    ],
    "mistral": [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "", "tool_calls": [{"id": "D1", "function": {"name": "f", "arguments": "{}"}, "index": 0}]}),
        chunk({"content": ""}, "tool_calls", usage=USAGE, p="abc"),
    ],
    "openrouter": [
        chunk(
            {"role": "assistant", "content": "", "reasoning": "So", "reasoning_details": [{"text": "So"}]}, provider="x"
        ),
        chunk(choices=[{"delta": {"content": "ok"}, "finish_reason": None, "native_finish_reason": None}]),
        chunk({"content": ""}, "length", usage=DETAILED | {"cost": 0.1, "is_byok": False}),
    ],
    "logprobs": [
        chunk(
            choices=[{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": 0}]}}]
        )
    ],
    "two choices": [chunk(choices=[{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}])],
    "parallel calls in one delta": [
        chunk({"tool_calls": [*call(0, "{}", "a", "f")["tool_calls"], *call(1, "[", "b", "g")["tool_calls"]]})
    ],
    "a call without an index": [chunk({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]})],
    "a refusal": [chunk({"role": "assistant", "refusal": "I'm"}), chunk({"refusal": " sorry."}), chunk({}, "stop")],
    "a function call": [chunk({"function_call": {"name": None, "arguments": "{"}})],
    "a function call in pieces": [
        chunk({"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"path": '}}),
        chunk({"function_call": {"arguments": '"/"}'}}),
        chunk({}, "function_call"),
    ],
    "a function call beside tool calls": [
        chunk({"function_call": {"name": "ls", "arguments": "{}"}, **call(0, "{}", "call_a", "ls")})
    ],
    "a delta with an id": [chunk({"id": "msg-1", "content": "x"})],
    "another role": [chunk({"role": "user", "content": "x"}), chunk({"content": "y"})],
    "no delta": [chunk(choices=[{"index": 0, "finish_reason": "stop"}])],
    "an empty delta": [chunk(choices=[{"index": 0, "delta": None, "finish_reason": None}]), chunk({"content": "x"})],
    "content in parts": [chunk({"content": [{"type": "text", "text": "x"}]})],
    "null choices": [chunk(choices=None)],
    "an error": [chunk({"content": "x"}), {"error": {"message": "overloaded", "type": "server_error", "code": 503}}],
    "a chunk with an error": [chunk({"content": "x"}, error={"message": "late"})],
    "an empty error": [chunk({"content": "x"}, error=None, type=None), chunk({}, "stop", error={})],
    "nothing": [],
}


def sse(chunks: list[dict[str, Any]], *, end: str = "\n", comment: str = "") -> bytes:
    events = [f"{comment}data: {json.dumps(one, ensure_ascii=False)}{end}{end}" for one in chunks]
    return "".join([*events, f"data: [DONE]{end}{end}"]).encode()


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[str]:
    """A server that answers every request with a stream of these pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


async def heard(model_class: type[OpenAICompatible], url: str, **fields: Any) -> list[Any]:
    """What the model says: each chunk, all together, and the error at the end."""
    model = model_class(model="m-1", base_url=url, api_key=SecretStr("k"), max_retries=0, **fields)
    found: list[Any] = []
    merged: AIMessageChunk | None = None
    try:
        async for message in model.astream("Hi"):
            found.append({**message.model_dump(), "id": None if message.id and "lc_run" in message.id else message.id})
            merged = message if merged is None else merged + message
    except Exception as error:
        found.append((type(error), str(error)))
    await model.root_async_client._client._transport.aclose()
    return [*found, merged and merged.model_dump(exclude={"id"})]


@pytest.mark.anyio
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("model_class", CLASSES)
async def test_a_stream_says_the_same(name: str, model_class: type[OpenAICompatible]) -> None:
    async with answering(sse(STREAMS[name])) as url:
        assert await heard(model_class, url) == await heard(plain(model_class), url)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "ending", [chunk({}, "stop"), chunk(choices=[{"delta": {}, "finish_reason": "stop", "logprobs": {}}]), None, ()]
)
async def test_a_stream_that_is_closed_in_the_middle_is_no_answer(ending: Any) -> None:
    """Without chunked encoding, a closed connection looks like the end of the body."""
    body = sse([chunk({"content": "Half of"}), *([ending] if ending else [])])
    if ending != ():
        body = body.removesuffix(b"data: [DONE]\n\n")
    async with answering(body) as url:
        last = (await heard(OpenAICompatible, url))[-2]
    assert (isinstance(last, tuple) and issubclass(last[0], openai.APIConnectionError)) is (ending is None)


@pytest.mark.anyio
@pytest.mark.parametrize("model_class", [OpenAICompatible, plain(OpenAICompatible)])
async def test_the_words_of_a_refusal_are_kept(model_class: type[OpenAICompatible]) -> None:
    async with answering(sse(STREAMS["a refusal"])) as url:
        assert (await heard(model_class, url))[-1]["additional_kwargs"] == {"refusal": "I'm sorry."}


@pytest.mark.anyio
@pytest.mark.parametrize("model_class", [OpenAICompatible, plain(OpenAICompatible)])
async def test_a_function_call_is_a_tool_call(model_class: type[OpenAICompatible]) -> None:
    async with answering(sse(STREAMS["a function call in pieces"])) as url:
        merged = (await heard(model_class, url))[-1]
    assert [(call["name"], call["args"]) for call in merged["tool_calls"]] == [("ls", {"path": "/"})]
    assert merged["additional_kwargs"] == {}


@pytest.mark.parametrize(
    ("arguments", "calls", "invalid"),
    [('{"path": "/"}', [("ls", {"path": "/"})], []), ('{"path": ', [], [("ls", '{"path": ')]), ("", [("ls", {})], [])],
)
def test_a_whole_function_call_is_a_tool_call(arguments: str, calls: Any, invalid: Any) -> None:
    model = OpenAICompatible(model="m-1", base_url="http://localhost/v1", api_key=SecretStr("k"))
    message = {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": arguments}}
    choice = {"index": 0, "message": message, "finish_reason": "function_call"}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m-1", "choices": [choice]}
    for response in (body, ChatCompletion.model_validate(body)):
        answer = model._create_chat_result(response).generations[0].message
        assert isinstance(answer, AIMessage)
        assert [(call["name"], call["args"]) for call in answer.tool_calls] == calls
        assert [(call["name"], call["args"]) for call in answer.invalid_tool_calls] == invalid
        assert "function_call" not in answer.additional_kwargs


@pytest.mark.anyio
@pytest.mark.parametrize(
    "pieces",
    [
        (sse(STREAMS["openai"], end="\r\n"),),
        (sse(STREAMS["openai"], comment=": PROCESSING\n\n"),),
        (sse(STREAMS["openai"], comment="event: message\nid: 7\nretry: 10\n"),),
        tuple(sse([chunk({"content": "añ€😀"}), chunk({}, "stop")])[n : n + 1] for n in range(400)),
        (sse(STREAMS["openai"])[:-30],),
        (b"data: not json\n\n",),
        (b'data: {"choices": [{"delta": {"content": "NaN"}}], "x": NaN}\n\ndata: [DONE]\n\n',),
        (b'data: {"choices":\ndata: [{"delta": {"content": "two lines"}}]}\n\ndata: [DONE]\n\n',),
        (b'data: {"choices": [{"delta": {"content": "\\ud800"}}]}\n\ndata: [DONE]\n\n',),
    ],
    ids=["crlf", "comments", "events", "bytes", "cut", "text", "nan", "lines", "surrogate"],
)
async def test_a_stream_of_another_form_says_the_same(pieces: tuple[bytes, ...]) -> None:
    async with answering(*pieces) as url:
        assert await heard(OpenAICompatible, url) == await heard(plain(OpenAICompatible), url)


@pytest.mark.anyio
@pytest.mark.parametrize("fields", [{"output_version": "v1"}, {"include_response_headers": True}])
async def test_settings_of_langchain_work_the_same(fields: dict[str, Any]) -> None:
    async with answering(sse(STREAMS["openai"])) as url:
        lean, sdk = await heard(OpenAICompatible, url, **fields), await heard(plain(OpenAICompatible), url, **fields)
    assert lean == sdk


@pytest.mark.anyio
async def test_the_sdk_gives_us_the_events_to_read() -> None:
    read: list[Chunk] = []

    class Watched(OpenAICompatible):
        def _generation(self, chunk: Chunk, base: dict[str, Any] | None) -> ChatGenerationChunk:
            read.append(chunk)
            return super()._generation(chunk, base)

    async with answering(sse(STREAMS["openai-tools"])) as url:
        await heard(Watched, url)
    assert len(read) == len(STREAMS["openai-tools"]) - 1  # not the one with the usage


@pytest.mark.parametrize("name", ["openai", "openai-tools", "deepseek", "vllm", "azure", "mistral", "openrouter"])
def test_usual_streams_are_read_without_the_sdk(name: str) -> None:
    events = [_Event(data=json.dumps(one)).json() for one in STREAMS[name]]
    assert [type(event) for event in events] == [Chunk] * len(events)


# ── any chunk ───────────────────────────────────────────────────────────────────────────────────────────────────────

odd = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.just(0.5), st.just([]), st.just({}), st.just("x"))
text = st.sampled_from(["", "a", "stop", "reasoning"])
number = st.integers(0, 9)


def some(needed: dict[str, st.SearchStrategy[Any]], **others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A mapping with what is needed, any of the others or null instead, and something that nobody knows."""
    optional = {name: st.one_of(value, st.none()) for name, value in others.items()} | {"unknown": odd}
    return st.fixed_dictionaries(needed, optional=optional)


function = some({}, name=text, arguments=text)
calls = st.lists(some({"index": number, "function": function}, id=text, type=text), max_size=2)
details = some({}, cached_tokens=number, reasoning_tokens=number, audio_tokens=number, cache_write_tokens=number)
counts = some(
    {},
    prompt_tokens=number,
    completion_tokens=number,
    total_tokens=number,
    prompt_tokens_details=details,
    completion_tokens_details=details,
)
role = st.just("assistant")
delta = some({}, content=text, role=role, reasoning=text, reasoning_content=text, tool_calls=calls, refusal=text)
choice = some({"delta": delta}, index=number, finish_reason=text)
chunks = some(
    {"choices": st.lists(choice, max_size=2)},
    id=text,
    model=text,
    usage=counts,
    service_tier=st.sampled_from(["default", "flex"]),
    system_fingerprint=text,
    error=st.none(),
    chunk=odd,
)


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(chunks, st.sampled_from([{}, {"headers": {"a": "b"}}]))
def test_any_chunk_means_the_same(data: dict[str, Any], info: dict[str, Any]) -> None:
    event = _Event(data=json.dumps(data)).json()
    assume(type(event) is Chunk)
    assert converted(event, info) == converted(constructed(data), info)


MODEL = OpenAICompatible(model="m-1", base_url="http://127.0.0.1:1/v1", api_key=SecretStr("k"))


def constructed(data: dict[str, Any]) -> dict[str, Any]:
    made: ChatCompletionChunk = MODEL.root_async_client._process_response_data(
        data=data, cast_to=ChatCompletionChunk, response=None
    )
    return made.model_dump(warnings=False)


def converted(data: Any, info: dict[str, Any]) -> Any:
    try:
        found = MODEL._convert_chunk_to_generation_chunk(data, AIMessageChunk, info)
    except Exception as error:
        return type(error)
    assert isinstance(found, ChatGenerationChunk)
    return found.model_dump()


def test_wire_forms_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.models.openai_compatible.CACHED_CHARACTERS", 20_000)
    conversation = [HumanMessage("x" * 5000, id=str(number)) for number in range(10)]
    for _ in range(2):
        payload = MODEL._get_request_payload(conversation)
        assert [len(wire["content"]) for wire in payload["extra_body"]["messages"]] == [5000] * 10
        assert 0 < MODEL._wires._size <= 20_000
        assert len(MODEL._wires._cache) == 3


@pytest.mark.parametrize(
    "data", [{"message": "boom", "code": "x"}, {"error": {"message": "boom"}}, {"error": "boom"}, "boom"], ids=range(4)
)
def test_an_event_named_error_is_one(data: Any) -> None:
    event = _Event(event="error", data=json.dumps(data))
    assert event.json() == {"error": data["error"] if isinstance(data, dict) and "error" in data else data}
