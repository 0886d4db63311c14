"""A model server that answers from a recording, asked by clients of others."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from aiohttp import ClientSession
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from adapters.models.recorded import answering, recording, serving
from channels.cli.log.record import recorded
from core.errors import Invalid
from core.replay.exchanges import Mismatch, Recording
from core.replay.exchanges import Turn as Message
from core.replay.exports.archive import Archive
from core.replay.exports.exporting import write
from core.replay.exports.format import ExchangeLine
from tests.channels.terminal.test_share import file_of
from tests.support.model_server import ModelServer, Script, ToolCall, Turn

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """The base URL of a model that answers from a thread in which four commands were run."""
    archive = await Archive.open(await file_of("commands", tmp_path))
    async with serving(answering(await Recording.of(archive)), "127.0.0.1", 0) as url:
        yield url
    archive.close()


def client(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="any", base_url=url, api_key=SecretStr("none"), max_retries=0, **options)


async def ask(url: str, *messages: dict[str, Any], **more: Any) -> tuple[int, Any]:
    async with (
        ClientSession() as session,
        session.post(f"{url}/chat/completions", json={"model": "any", "messages": messages, **more}) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_gets_the_recorded_answers(url: str, streaming: bool) -> None:
    model = client(url, streaming=streaming, stream_usage=True)
    asked = [SystemMessage("any prompt"), HumanMessage("Today is Monday.\n\nrun: echo hi")]
    first = await model.ainvoke(asked)
    assert first.content == "I will run it."
    assert isinstance(first, AIMessage)
    [call] = first.tool_calls
    assert (call["name"], call["args"]["command"]) == ("bash", "echo hi")
    assert first.usage_metadata
    assert first.usage_metadata["input_tokens"] == 372
    second = await model.ainvoke([*asked, first, ToolMessage("hi", tool_call_id=call["id"])])
    assert "printed" in str(second.content)


async def test_another_conversation_is_a_conflict_with_the_nearest_difference(url: str) -> None:
    status, body = await ask(url, {"role": "user", "content": "run: echo ho"})
    assert status == 409
    assert body["error"]["nearest"]["message"] == 0
    assert body["error"]["nearest"]["sent"]["text"] == "run: echo ho"
    assert body["error"]["nearest"]["recorded"]["text"] == "run: echo hi"
    first = (await ask(url, {"role": "user", "content": "run: echo hi"}))[1]["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "ho"}
    status, body = await ask(url, {"role": "user", "content": "run: echo hi"}, first, result)
    assert status == 409
    assert "differs at message 2" in body["error"]["message"]


async def test_a_request_that_is_none_is_refused(url: str) -> None:
    assert (await ask(url, messages=None))[0] == 400
    status, body = await ask(url, {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "{"}}]})
    assert status == 400
    assert "messages[0].tool_calls: arguments" in body["error"]["message"]


async def test_a_client_is_recorded_and_gets_the_same_again(tmp_path: Path) -> None:
    turns = (Turn(text="I look.", tool_calls=(ToolCall("ls", {"path": "/"}),)), Turn(text="There is nothing."))
    send, receive = anyio.create_memory_object_stream[ExchangeLine](10)
    path = tmp_path / "model.jsonl"
    async with (
        ModelServer({"main": Script(turns)}) as server,
        serving(recording(server.url, send.send), "127.0.0.1", 0) as url,
        send,
    ):
        answers = [
            await _talk(ChatOpenAI(model="main", base_url=url, api_key=SecretStr("secret-key-1"), streaming=True))
        ]
    async with receive:
        await write(path, recorded(receive))
    assert b"secret-key-1" not in path.read_bytes()
    archive = await Archive.open(path)
    async with serving(answering(await Recording.of(archive)), "127.0.0.1", 0) as url:
        answers += [await _talk(client(url, streaming=False)), await _talk(client(url, streaming=True))]
    assert answers == [["I look.", "ls", "There is nothing."]] * 3
    archive.close()


async def _talk(model: ChatOpenAI) -> list[str]:
    first = await model.ainvoke([HumanMessage("Look.")])
    assert isinstance(first, AIMessage)
    [call] = first.tool_calls
    second = await model.ainvoke([HumanMessage("Look."), first, ToolMessage("nothing", tool_call_id=call["id"])])
    return [str(first.content), call["name"], str(second.content)]


async def test_the_same_conversation_twice_is_answered_in_order(tmp_path: Path) -> None:
    archive = await Archive.open(await file_of("commands", tmp_path))
    [first, *_] = (await Recording.of(archive)).exchanges
    other = msgspec.structs.replace(first, answer=msgspec.structs.replace(first.answer, text="other"))
    twice = Recording([first, other])
    texts = [getattr(twice.answer(first.conversation), "text", None) for _ in range(2)]
    assert texts == [first.answer.text, "other"]
    archive.close()


async def test_a_longer_and_a_shorter_conversation_differ_where_one_has_ended(tmp_path: Path) -> None:
    archive = await Archive.open(await file_of("commands", tmp_path))
    longest = max((await Recording.of(archive)).exchanges, key=lambda exchange: len(exchange.conversation))
    archive.close()
    alone, messages, more = Recording([longest]), longest.conversation, Message("user", "And then?")
    assert alone.answer([*messages, more]) == Mismatch(longest.place, len(messages), None, more)
    assert alone.answer(messages[:-1]) == Mismatch(longest.place, len(messages) - 1, messages[-1], None)


async def test_a_file_without_a_model_is_refused(tmp_path: Path) -> None:
    send, receive = anyio.create_memory_object_stream[ExchangeLine](0)
    send.close()
    async with receive:
        await write(tmp_path / "none.jsonl", recorded(receive))
    archive = await Archive.open(tmp_path / "none.jsonl")
    with pytest.raises(Invalid, match="no model was asked"):
        await Recording.of(archive)
    archive.close()


async def test_the_commands_record_and_serve(tmp_path: Path) -> None:
    path = tmp_path / "model.jsonl"

    def started(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "channels.cli", "log", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert isinstance(process.stdout, io.TextIOWrapper)
        return process, process.stdout.readline().split()[0]

    async with ModelServer({"main": Script((Turn(text="Hello."),))}) as server:
        process, url = await anyio.to_thread.run_sync(lambda: started("record", str(path), "--upstream", server.url))
        with process:
            status, body = await ask(url, {"role": "user", "content": "Hi"}, model="main")
            process.send_signal(signal.SIGINT)
            assert await anyio.to_thread.run_sync(process.wait) == 0
    assert (status, body["choices"][0]["message"]["content"]) == (200, "Hello.")
    process, url = await anyio.to_thread.run_sync(lambda: started("serve-recorded", str(path)))
    with process:
        assert (await ask(url, {"role": "user", "content": "Hi"}))[1]["choices"][0]["message"]["content"] == "Hello."
        process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 409),
        ({"Host": "localhost:9"}, 409),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
async def test_no_page_reads_a_recording(url: str, headers: dict[str, str], status: int) -> None:
    body = {"model": "x", "messages": [{"role": "user", "content": "x"}]}
    plain = {"Content-Type": "text/plain", **headers}
    async with (
        ClientSession() as session,
        session.post(f"{url}/chat/completions", data=msgspec.json.encode(body), headers=plain) as response,
    ):
        assert response.status == status
