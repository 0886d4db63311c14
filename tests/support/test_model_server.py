"""The scripted model server, driven by the clients that the product uses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn, words

pytestmark = pytest.mark.anyio

SEARCH = ToolCall("search", {"query": "otters in winter", "limit": 3})
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
FLAKY_STEPS = [Turn(text=f"step-{n}", error=Failure(status=503), times=1) for n in (1, 2)]
SCRIPTS: dict[str, Script | list[Turn]] = {
    "agent": [Turn(text="Let me look.", tool_calls=(SEARCH, ToolCall("ls"))), Turn(text="Otters swim.")],
    "total": Script((Turn(text="first"), Turn(text="second")), count="total"),
    "marked": Script((Turn(tool_calls=(ToolCall("echo", {"text": "step-0"}),)), *FLAKY_STEPS), count="marker"),
    "thinker": [Turn(reasoning="Hmm, well.", text="42")],
    "busy": [Turn(error=Failure(status=429, message="slow down", code="rate_limit", headers={"retry-after": "7"}))],
    "flaky": [Turn(text="fine", error=Failure(status=503), times=2)],
    "broken": [Turn(text="one two three four", disconnect_after=2)],
    "gated": [Turn(text="one two three", gate="door", gate_after=1)],
    "closed": [Turn(text="late", gate="hall")],
}


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(SCRIPTS) as server:
        yield server


@pytest.fixture
async def client(server: ModelServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def chat(server: ModelServer, model: str) -> ChatOpenAI:
    key = SecretStr("none")
    return ChatOpenAI(model=model, base_url=server.url, api_key=key, stream_usage=True, max_retries=0)


async def stream(client: openai.AsyncOpenAI, model: str, seen: list[str]) -> None:
    async for chunk in await client.chat.completions.create(model=model, messages=HELLO, stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            seen.append(chunk.choices[0].delta.content)


async def get(server: ModelServer, path: str, method: str = "GET") -> Any:
    def fetch() -> Any:
        request = urllib.request.Request(server.url + path, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    return await asyncio.to_thread(fetch)


@pytest.mark.parametrize("model", ["tokens-5", "tokens-5-delay-1"])
async def test_tokens_arrive_one_by_one_with_usage(server: ModelServer, model: str) -> None:
    chunks = [chunk async for chunk in chat(server, model).astream([HumanMessage("hi")])]
    assert [chunk.text for chunk in chunks if chunk.text] == ["the ", "quick ", "brown ", "fox ", "jumps"]
    usage = [chunk.usage_metadata for chunk in chunks if isinstance(chunk, AIMessageChunk) and chunk.usage_metadata]
    assert usage == [{"input_tokens": 1, "output_tokens": 5, "total_tokens": 6} | usage[0]]


async def test_without_streaming(server: ModelServer) -> None:
    answer = await chat(server, "tokens-5").ainvoke([HumanMessage("hi")])
    assert answer.text == words(5)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 5


@pytest.mark.parametrize("streaming", [True, False])
async def test_tool_calls_then_answer_by_position(server: ModelServer, streaming: bool) -> None:
    model = chat(server, "agent").model_copy(update={"streaming": streaming})
    history: list[Any] = [HumanMessage("otters?")]
    first = await model.ainvoke(history)
    assert first.text == "Let me look."
    assert [(c["name"], c["args"], c["id"]) for c in first.tool_calls] == [
        ("search", SEARCH.args, "call_0_0"),
        ("ls", {}, "call_0_1"),
    ]
    history += [first, ToolMessage("they do", tool_call_id="call_0_0"), ToolMessage("x", tool_call_id="call_0_1")]
    assert (await model.ainvoke(history)).text == "Otters swim."
    assert (await model.ainvoke(history)).text == "Otters swim."
    assert server.answered("agent") == [0, 1, 1]


async def test_arguments_are_streamed_in_pieces(server: ModelServer) -> None:
    chunks = [chunk async for chunk in chat(server, "agent").astream([HumanMessage("otters?")])]
    pieces = [p for c in chunks if isinstance(c, AIMessageChunk) for p in c.tool_call_chunks if p["index"] == 0]
    assert len(pieces) > 3
    assert json.loads("".join(piece["args"] or "" for piece in pieces)) == SEARCH.args


async def test_turns_restart_with_each_question_unless_counted_in_total(server: ModelServer) -> None:
    history = [HumanMessage("a"), AIMessage("first"), HumanMessage("b")]
    assert (await chat(server, "agent").ainvoke(history)).tool_calls[0]["id"] == "call_1_0"
    assert (await chat(server, "total").ainvoke(history)).text == "second"


@pytest.mark.parametrize("streaming", [True, False])
async def test_turns_by_marker_survive_that_messages_go(server: ModelServer, streaming: bool) -> None:
    model = chat(server, "marked").model_copy(update={"streaming": streaming})
    first = await model.ainvoke([HumanMessage("Go")])
    assert first.tool_calls[0]["id"] == "call_0_0"
    summary = HumanMessage("You did step-0, and then some.")
    histories: list[list[Any]] = [[HumanMessage("Go"), first, ToolMessage("ok", tool_call_id="call_0_0")], [summary]]
    with pytest.raises(openai.InternalServerError):
        await model.ainvoke(histories[0])
    assert [(await model.ainvoke(history)).text for history in histories] == ["step-1", "step-1"]
    later = [summary, AIMessage("step-1"), HumanMessage("Go on")]
    with pytest.raises(openai.InternalServerError):
        await model.ainvoke(later)
    assert (await model.ainvoke(later)).text == "step-2"
    assert server.answered("marked") == [0, 1, 1, 2]


async def test_reasoning(client: openai.AsyncOpenAI) -> None:
    thoughts, texts = [], []
    async for chunk in await client.chat.completions.create(model="thinker", messages=HELLO, stream=True):
        delta = chunk.choices[0].delta
        thoughts.append((delta.model_extra or {}).get("reasoning_content", ""))
        texts.append(delta.content or "")
    assert ("".join(thoughts), "".join(texts)) == ("Hmm, well.", "42")


async def test_error_with_headers(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.RateLimitError, match="slow down") as caught:
        await client.chat.completions.create(model="busy", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.code == "rate_limit"


async def test_fault_that_strikes_twice(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    for _ in range(2):
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="flaky", messages=HELLO)
    seen: list[str] = []
    await stream(client, "flaky", seen)
    assert seen == ["fine"]
    assert [record.outcome for record in server.requests] == ["failed", "failed", "answered"]


async def test_disconnect_in_the_middle(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    seen: list[str] = []
    with pytest.raises(openai.APIConnectionError):
        await stream(client, "broken", seen)
    assert seen == ["one ", "two "]
    with pytest.raises(openai.APIConnectionError):
        await client.chat.completions.create(model="broken", messages=HELLO)
    assert [record.outcome for record in server.requests] == ["disconnected", "disconnected"]


async def test_gate_in_the_middle(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    seen: list[str] = []
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(stream(client, "gated", seen))
        await server.reached("door")
        assert await get(server, "/control/waiting") == {"door": 1}
        assert server.requests[0].outcome == "open"
        await get(server, "/control/release/door", "POST")
    assert "".join(seen) == "one two three"
    assert server.answered("gated") == [0]


async def test_gate_seen_from_outside_and_left_by_its_client(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    request = asyncio.create_task(stream(client, "closed", []))
    assert await get(server, "/control/waiting/hall") == {"hall": 1}
    request.cancel()
    await asyncio.wait([request, *server.tasks], timeout=60)
    assert await get(server, "/control/waiting") == {}
    assert server.requests[0].outcome == "abandoned"
    server.release("hall")
    seen: list[str] = []
    await stream(client, "closed", seen)
    assert seen == ["late"]


async def test_what_is_not_scripted_is_an_error(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'nobody'"):
        await client.chat.completions.create(model="nobody", messages=HELLO)
    done: list[Any] = [*HELLO, {"role": "assistant", "content": "42"}]
    with pytest.raises(openai.BadRequestError, match="no turn 1"):
        await client.chat.completions.create(model="thinker", messages=done)


async def test_models_and_requests(server: ModelServer, client: openai.AsyncOpenAI) -> None:
    assert "agent" in [model.id async for model in client.models.list()]
    await client.chat.completions.create(model="tokens-1", messages=HELLO)
    report = await get(server, "/control/requests")
    assert (report["count"], report["by_model"]) == (1, {"tokens-1": 1})
    assert report["requests"][0]["body"]["messages"] == HELLO


def test_as_a_process(tmp_path: Path) -> None:
    path = tmp_path / "scripts.json"
    turn = {"text": "Hi there", "tool_calls": [{"name": "ls", "args": {"path": "/"}}]}
    path.write_text(json.dumps({"hello": {"turns": [turn]}}))
    command = [sys.executable, "-m", "tests.support.model_server", "--scripts", str(path), "--count-only"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
                message = client.chat.completions.create(model="hello", messages=HELLO).choices[0].message
            with urllib.request.urlopen(url + "/control/requests", timeout=60) as response:
                report = json.load(response)
        finally:
            process.terminate()
    assert message.content == "Hi there"
    assert message.tool_calls
    assert report == {"count": 1, "by_model": {"hello": 1}, "requests": []}


async def test_a_coroutine_answers_the_whole_request_with_ids_and_usage_of_its_own() -> None:
    async def live(body: dict[str, Any]) -> Turn:
        call = ToolCall("echo", {"text": body["messages"][-1]["content"] * 200}, "mine-1")
        return Turn(tool_calls=(call,), piece=512, prompt_tokens=4711)

    async with ModelServer(live={"live": live}) as server:
        chunks = [chunk async for chunk in chat(server, "live").astream("hello")]
    whole = sum(chunks[1:], chunks[0])
    assert isinstance(whole, AIMessageChunk)
    assert [(call["id"], call["args"]) for call in whole.tool_calls] == [("mine-1", {"text": "hello" * 200})]
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["input_tokens"] == 4711
    assert len(chunks) < 10
