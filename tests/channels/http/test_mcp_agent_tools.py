"""The agent's tools over `/mcp`, called by the SDK's client: a call is a run, with its approvals and policies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession

from actors.wiring import compose, parts
from channels.http.app import Services, serve
from core.config.load import ConfigSource
from core.events import ApprovalRequested, ToolCompleted, ToolRequested
from tests.channels.http.test_mcp_server import _text, client, tool
from tests.support.model_server import ModelServer
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio
APPROVE = [{"tool": "str_replace", "when": "always"}]
TOOLS = ["write_file", "read_file", "str_replace", "no_such_tool"]


@asynccontextmanager
async def served(home: Path, **sections: Any) -> AsyncIterator[tuple[ClientSession, Client, ModelServer]]:
    async with site(home, {"m": []}, **sections) as (worker, models):
        source = ConfigSource(home / "config.yaml")
        services = Services.of(worker.system, source.current, home)
        tools = partial(compose.tool_listings, parts.Toolset(source.current()), source)
        async with (
            serve(replace(services, tools=tools), "127.0.0.1", 0) as port,
            client(f"http://127.0.0.1:{port}") as session,
        ):
            yield session, worker, models


async def test_chosen_tools_are_called_in_runs(tmp_path: Path) -> None:
    offer = {"tools": TOOLS}
    async with served(tmp_path, mcp_server=offer, approvals=APPROVE) as (session, worker, models):
        listed = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert {"chat", "write_file", "read_file", "str_replace"} <= listed.keys()
        assert not {"bash", "no_such_tool"} & listed.keys()
        assert {"path", "thread_id"} <= listed["read_file"].inputSchema["properties"].keys()
        assert listed["read_file"].annotations.readOnlyHint is True  # type: ignore[union-attr]

        path = {"path": "/mnt/user-data/workspace/a.txt"}
        written = await session.call_tool("write_file", {"description": "d", **path, "content": "one two"})
        assert not written.isError
        assert written.meta is not None
        thread = written.meta["thread_id"]
        events = [record.event for record in await worker.records(thread)]
        assert [type(event) for event in events if isinstance(event, ToolRequested | ToolCompleted)] == [
            ToolRequested,
            ToolCompleted,
        ]
        read = await session.call_tool("read_file", {"description": "d", **path, "thread_id": thread})
        assert "one two" in _text(read)

        change = {"description": "d", **path, "old_str": "one", "new_str": "three", "thread_id": thread}
        waits = await session.call_tool("str_replace", change)
        assert not waits.isError
        assert "chat_answer" in _text(waits)
        assert len(await worker.records(thread, ApprovalRequested)) == 1
        turn = await tool(session, "chat_answer", thread_id=thread, answer={"decision": "reject", "message": "no"})
        assert "rejected" in turn["messages"][0]["text"]
        read = await session.call_tool("read_file", {"description": "d", **path, "thread_id": thread})
        assert "one two" in _text(read)
    assert models.requests == []


async def test_what_is_refused(tmp_path: Path) -> None:
    offer = {"tools": ["read_file"]}
    async with served(tmp_path, mcp_server=offer) as (session, _, _):
        for name, arguments, reason in (
            ("bash", {"command": "ls"}, "Unknown tool"),
            ("read_file", {"path": "/etc/passwd", "description": "d"}, "Error"),
            ("read_file", {"path": "x", "description": "d", "thread_id": "not-there"}, "not"),
            ("read_file", {"path": "x", "description": "d", "thread_id": "../../x"}, "thread_id"),
            ("read_file", {"wrong": 1}, "path"),
        ):
            result = await session.call_tool(name, arguments)
            assert result.isError, name
            assert reason in _text(result)


async def test_wrong_arguments_are_answered_in_words(tmp_path: Path) -> None:
    async with served(tmp_path, mcp_server={"tools": TOOLS}) as (session, _, _):
        offered = [listed for listed in (await session.list_tools()).tools if listed.name in TOOLS]
        assert len(offered) == 3
        for listed in offered:
            names = [*listed.inputSchema["properties"].keys() - {"thread_id"}]
            for name in names:
                result = await session.call_tool(listed.name, {**dict.fromkeys(names, "x"), name: {"a": 1}})
                assert result.isError, (listed.name, name)
                assert name in _text(result)
                assert "pydantic" not in _text(result)
                assert "http" not in _text(result)


async def test_none_are_offered_by_default(tmp_path: Path) -> None:
    async with served(tmp_path) as (session, _, _):
        assert "read_file" not in {tool.name for tool in (await session.list_tools()).tools}
