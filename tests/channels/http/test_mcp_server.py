"""`/mcp` as the SDK's client uses it: conversations, files, scopes, and clients that leave."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents
from pydantic import AnyUrl

from channels.http.app import Services
from core.events import Interrupt, ModelCompleted, RunPaused, StatePatched
from core.runtime.system import System
from core.thread.state import ThreadState
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.people import ADA, BOB, Place, WithAccounts, place
from tests.channels.http.story import ai, call, started

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
async def here(system: System, tmp_path: Path) -> AsyncIterator[Place]:
    """A server with accounts."""
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        yield here


@asynccontextmanager
async def client(url: str, key: str = "", **headers: str) -> AsyncIterator[ClientSession]:
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(f"{url}/mcp", http_client=http) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        welcome = await session.initialize()
        assert welcome.serverInfo.version == version("sika")
        yield session


async def tool(session: ClientSession, name: str, **arguments: Any) -> Any:
    """The structured result of a tool, or the text of its error."""
    result = await session.call_tool(name, arguments)
    assert not result.isError, _text(result)
    return result.structuredContent


async def error(session: ClientSession, name: str, **arguments: Any) -> str:
    result = await session.call_tool(name, arguments)
    assert result.isError
    return _text(result)


def _text(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


async def test_a_chat(api: Api, url: str, worker: Worker) -> None:
    async with client(url) as session:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert set(tools) == {
            "chat", "chat_answer", "chat_cancel", "chat_read",
            "threads_list", "thread_read", "artifacts_list", "artifact_read",
        }  # fmt: skip
        assert all(tools[name].annotations.readOnlyHint for name in tools if name.endswith(("read", "list")))  # type: ignore[union-attr]
        turn = await tool(session, "chat", message="Hello?", wait_seconds=0)
        assert (turn["status"], turn["messages"]) == ("pending", [])
        thread, run = turn["thread_id"], turn["run_id"]
        assert "chat_read" in turn["advice"]
        waiting = asyncio.create_task(tool(session, "chat_read", thread_id=thread, run_id=run, after=turn["position"]))
        await worker.perform(thread, run, "Good day")
        done = await waiting
    assert done["status"] == "success"
    assert [(m["role"], m["text"]) for m in done["messages"]] == [("agent", "Good day")]
    async with client(url) as session:  # another connection: nothing is lost
        again = await tool(session, "chat_read", thread_id=thread, run_id=run)
        assert again == done
        assert (await tool(session, "chat_read", thread_id=thread, run_id=run, after=done["position"]))[
            "messages"
        ] == []
        read = await tool(session, "thread_read", thread_id=thread)
        assert [m["role"] for m in read["messages"]] == ["person", "agent"]
        assert (await tool(session, "thread_read", thread_id=thread, offset=1))["messages"] == read["messages"][1:]
        listed = await tool(session, "threads_list")
        assert [t["thread_id"] for t in listed["threads"]] == [thread]


@pytest.mark.parametrize("wait", [0, 30])
async def test_a_run_that_ends_while_it_is_read(
    api: Api, url: str, worker: Worker, services: Services, monkeypatch: pytest.MonkeyPatch, wait: int
) -> None:
    """Between its messages and its status: a success has all that was said."""
    thread = await api.thread()
    run = await api.run(thread)
    state, asked = services.commands.state, itertools.count()

    async def racing(user: str, thread_id: str) -> ThreadState:
        if next(asked) == 1:
            await worker.perform(thread, run, "Good day")
        return await state(user, thread_id)

    monkeypatch.setattr(services.commands, "state", racing)
    async with client(url) as session:
        turn = await tool(session, "chat_read", thread_id=thread, run_id=run, wait_seconds=wait)
    assert (turn["status"], [m["text"] for m in turn["messages"]]) == ("success", ["Good day"])


async def test_a_question(url: str, worker: Worker) -> None:
    async with client(url) as session:
        turn = await tool(session, "chat", message="Book it", wait_seconds=0)
        thread, run = turn["thread_id"], turn["run_id"]
        question = Interrupt(id="q1", value="Which day?", call_id="c1")
        await worker.write(
            thread,
            run,
            started(),
            ModelCompleted(message=ai("m1", "", call("c1", "ask_clarification", question="Which day?"))),
            RunPaused(next=["tools"], interrupts=[question]),
        )
        turn = await tool(session, "chat_read", thread_id=thread, run_id=run)
        assert (turn["status"], turn["questions"]) == ("waiting", [{"id": "q1", "value": "Which day?"}])
        assert "chat_answer" in turn["advice"]
        assert turn["messages"][0]["calls"] == ["ask_clarification"]
        going = await tool(session, "chat_answer", thread_id=thread, answer="Monday", wait_seconds=0)
        resumed = await worker.requested(thread, 2)
        assert (resumed.id, resumed.request.resume.value) == (going["run_id"], "Monday")  # type: ignore[union-attr]
        assert "already has an active run" in await error(session, "chat", message="x", thread_id=thread)


async def test_a_cancel(url: str, worker: Worker) -> None:
    async with client(url) as session:
        turn = await tool(session, "chat", message="Hello?", wait_seconds=0)
        thread, run = turn["thread_id"], turn["run_id"]
        await worker.start(thread, run)
        await tool(session, "chat_cancel", thread_id=thread, run_id=run)
        assert await worker.cancelled(thread) == "interrupt"


async def test_artifacts(url: str, worker: Worker, tmp_path: Path) -> None:
    async with client(url) as session:
        turn = await tool(session, "chat", message="Draw", wait_seconds=0)
        thread, run = turn["thread_id"], turn["run_id"]
        await worker.perform(thread, run)
        path = "/mnt/user-data/outputs/a b.txt"
        await worker.write(thread, run, StatePatched(values={"artifacts": [path]}))
        folder = tmp_path / "users" / "default" / "threads" / thread / "user-data" / "outputs"
        folder.mkdir(parents=True)
        (folder / "a b.txt").write_text("drawn")
        listed = await session.call_tool("artifacts_list", {"thread_id": thread})
        [link] = [block for block in listed.content if isinstance(block, ResourceLink)]
        [content] = (await session.read_resource(link.uri)).contents
        assert isinstance(content, TextResourceContents)
        assert content.text == "drawn"
        result = await session.call_tool("artifact_read", {"thread_id": thread, "path": path})
        [block] = result.content
        assert isinstance(block, EmbeddedResource)
        assert isinstance(block.resource, TextResourceContents)
        assert (block.resource.text, block.resource.mimeType) == ("drawn", "text/plain; charset=utf-8")
        with pytest.raises(McpError, match=r"nothing\.txt: not found"):
            await session.read_resource(AnyUrl(str(link.uri).replace("a%20b", "nothing")))
        assert "'..' is not allowed" in await error(session, "artifact_read", thread_id=thread, path="/mnt/../etc")


async def test_errors_name_what_is_wrong(url: str) -> None:
    async with client(url) as session:
        assert "not found" in await error(session, "thread_read", thread_id="nobody")
        assert "must be 1 to 128 characters" in await error(session, "thread_read", thread_id="../x")
        assert "message" in await error(session, "chat")
        assert "Unknown tool" in await error(session, "nothing")


async def test_keys_see_their_own_and_do_what_they_may(here: Place) -> None:
    for email in (ADA, BOB):
        await here.person(email)
    ada, bob, reader = await here.key(ADA), await here.key(BOB), await here.key(ADA, ["threads:read"])
    async with client(here.url, ada) as session:
        thread = (await tool(session, "chat", message="Mine", wait_seconds=0))["thread_id"]
    async with client(here.url, bob) as session:
        assert "not found" in await error(session, "thread_read", thread_id=thread)
        assert (await tool(session, "threads_list"))["total"] == 0
    async with client(here.url, reader) as session:
        assert (await tool(session, "thread_read", thread_id=thread))["total"] == 0
        assert "not granted runs:create" in await error(session, "chat", message="x")
        assert "not granted files:read" in await error(session, "artifacts_list", thread_id=thread)


async def test_without_a_key(here: Place) -> None:
    """A client learns where the authorisation is described."""
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{here.url}/mcp", json=INITIALIZE, headers=ACCEPT) as response:
            assert response.status == 401
            challenge = response.headers["WWW-Authenticate"]
        described = f"{here.url}/.well-known/oauth-protected-resource/mcp"
        assert challenge == f'Bearer realm="sika", resource_metadata="{described}"'
        async with session.get(described) as response:
            assert (await response.json())["resource"] == f"{here.url}/mcp"


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
async def test_pages_of_others_are_refused(header: dict[str, str], url: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/mcp", json=INITIALIZE, headers={**ACCEPT, **header}) as response,
    ):
        assert response.status == 403


@pytest.mark.parametrize(
    ("method", "body", "headers", "status"),
    [
        ("GET", None, ACCEPT, 405),
        ("DELETE", None, ACCEPT, 405),
        ("POST", b"{", ACCEPT, 400),
        ("POST", b"[]", ACCEPT, 400),
        ("POST", b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", ACCEPT, 400),
        ("POST", b'{"a": "\xff"}', ACCEPT, 400),
        ("POST", b'{"jsonrpc": "2.0", "method": "ping", "id": ' + b"9" * 5000 + b"}", ACCEPT, 400),
        ("POST", b'{"jsonrpc": "2.0", "method": "ping", "id": "\\ud800"}', ACCEPT, 400),
        ("POST", b"{}", {"Accept": "text/plain"}, 406),
        ("POST", b"x" * 100_001, ACCEPT, 413),
    ],
)
async def test_odd_requests(method: str, body: bytes | None, headers: dict[str, str], status: int, url: str) -> None:
    headers = {**headers, "Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{url}/mcp", data=body, headers=headers) as response,
    ):
        assert response.status == status, await response.text()


async def test_a_client_that_leaves_ends_its_call_and_not_the_run(
    url: str, worker: Worker, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from channels.http.protocols.mcp import turns

    ended = asyncio.Event()
    turn = turns.read_turn

    async def watched(*arguments: Any) -> Any:
        try:
            return await turn(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(turns, "read_turn", watched)
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    body["params"] = {"name": "chat", "arguments": {"message": "Hello?", "thread_id": "left"}}
    async with aiohttp.ClientSession() as session:
        request = asyncio.create_task(session.post(f"{url}/mcp", json=body, headers=ACCEPT))
        run = await _run_of(worker, "left")
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    async with asyncio.timeout(120):
        await ended.wait()
    await worker.perform("left", run)
    async with client(url) as again:
        assert (await tool(again, "chat_read", thread_id="left", run_id=run))["status"] == "success"


async def _run_of(worker: Worker, thread: str) -> str:
    return (await worker.requested(thread)).id
