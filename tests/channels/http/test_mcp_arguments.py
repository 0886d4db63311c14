"""Wrong arguments of the tools of `/mcp`: every tool, every argument, every wrong type is answered in words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from channels.http.protocols.mcp import handlers
from channels.http.protocols.mcp.registry import TOOLS as DECLARED
from core.events import ModelCompleted, ToolCompleted, ToolRequested
from tests.channels.http.conftest import Worker
from tests.channels.http.story import ai, answer, call, started
from tests.channels.http.test_mcp_server import ACCEPT, client, error, tool

pytestmark = pytest.mark.anyio
assert handlers
TOOLS = {name: declared.listed for name, declared in DECLARED.items()}
RIGHT: dict[str, Any] = {"string": "x", "integer": 1, "number": 1.0}
WORDS = {"string": "a text", "integer": "an integer", "number": "a number", "null": "null"}
VALUES: dict[str, list[Any]] = {
    "string": ["words that mean no number"],
    "integer": [7],
    "number": [1.5],
    "boolean": [True],
    "null": [None],
    "array": [[1]],
    "object": [{"a": 1}],
}
TAKEN = {("number", "integer"), ("number", "boolean"), ("integer", "boolean")}
"""Types of arguments, and what else is taken for them."""


def kinds(schema: Any) -> list[Any]:
    return list(schema.get("anyOf", [schema]))


def wrong(schema: Any) -> Iterator[Any]:
    """Yields values of every type that an argument does not have, and those beyond its limits."""
    every = kinds(schema)
    if "type" not in every[0]:
        return
    types = {kind["type"] for kind in every}
    for name, values in VALUES.items():
        if name not in types and not any((kind, name) in TAKEN for kind in types):
            yield from values
    for kind in every:
        if "maximum" in kind:
            yield kind["maximum"] + 1
        if "minimum" in kind:
            yield kind["minimum"] - 1
        if "maxLength" in kind and kind["maxLength"] < 10_000:
            yield "x" * (kind["maxLength"] + 1)
        if kind.get("minLength"):
            yield ""


def cases() -> Iterator[Any]:
    for name, listed in TOOLS.items():
        properties = listed.inputSchema.get("properties", {})
        required = listed.inputSchema.get("required", [])
        right = {key: RIGHT[kinds(properties[key])[0].get("type", "string")] for key in required}
        for key, schema in properties.items():
            for value in wrong(schema):
                words = f"{key}: expected {WORDS[kinds(schema)[0]['type']]}"
                yield pytest.param(name, {**right, key: value}, words, id=f"{name}-{key}-{str(value)[:20]}")
            if key in right:
                rest = {other: value for other, value in right.items() if other != key}
                yield pytest.param(name, rest, f"{key}: ", id=f"{name}-{key}-missing")
        yield pytest.param(name, {**right, "zebra": 1}, f"zebra: {name} has no such argument", id=f"{name}-zebra")


async def test_every_wrong_argument(url: str) -> None:
    every = [case.values for case in cases()]
    assert {name for name, *_ in every} == TOOLS.keys()
    assert len(every) > 60
    async with client(url) as session:
        for name, arguments, words in every:
            text = await error(session, name, **arguments)
            assert words in text, (name, arguments, text)
            assert "pydantic" not in text
            assert "http" not in text
            assert "Arguments" not in text
            assert len(text) < 500
        assert (await tool(session, "threads_list"))["threads"] == []


@pytest.mark.parametrize("arguments", [[], "x", 7, True])
async def test_arguments_that_are_no_object(url: str, arguments: Any) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "chat", "arguments": arguments}}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/mcp", json=call, headers=ACCEPT) as response,
    ):
        text = await response.text()
    assert "pydantic" not in text
    assert "-32602" in text


class Heard:
    """The progress that a call reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, str | None]] = []
        self._news = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.reports.append((progress, message))
        self._news.set()

    async def until(self, words: str, count: int = 1) -> None:
        async with asyncio.timeout(60):
            while sum(message == words for _, message in self.reports) < count:
                self._news.clear()
                await self._news.wait()


@pytest.mark.parametrize(("seconds", "lives"), [(3600, 1), (0.05, 3)])
async def test_progress(url: str, worker: Worker, monkeypatch: pytest.MonkeyPatch, seconds: float, lives: int) -> None:
    """A call with a token hears at once that the run has begun, what the agent does, and that it lives."""
    monkeypatch.setattr("channels.http.protocols.mcp.turns.PROGRESS_SECONDS", seconds)
    heard = Heard()
    async with client(url) as session:
        chat = asyncio.create_task(
            session.call_tool("chat", {"message": "Hello?", "thread_id": "t"}, progress_callback=heard)
        )
        await heard.until("the agent is at work", lives)
        run = (await worker.requested("t")).id
        await worker.write("t", run, started(), ModelCompleted(message=ai("m1", "", call("c1", "ls"))))
        await worker.write("t", run, ToolRequested(call_id="c1", name="ls", effect="pure"))
        await heard.until("the agent calls ls")
        await worker.write("t", run, ToolCompleted(call_id="c1", message=answer("c1", "ls", "a")))
        await worker.finish("t", run)
        assert not (await chat).isError
        numbers = [progress for progress, _ in heard.reports]
        assert numbers == sorted(set(numbers))
        count = len(numbers)
        assert not (await session.call_tool("chat_read", {"thread_id": "t", "run_id": run})).isError
        assert len(heard.reports) == count
