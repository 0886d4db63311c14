"""Tools of MCP servers in a run: a real server process, sessions in processes of their own, a real bus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.wiring import compose
from adapters.sandboxes.bubblewrap import Bubblewrap
from core.events import Aggregate, ToolRequested
from core.mcp.servers import KIND, SCOPE, McpListed
from core.ports.sandbox import SandboxSetup
from tests.support.mcp import SERVER, installed, mcp_site, server
from tests.support.model_server import ToolCall, Turn
from tests.support.replays import replay

pytestmark = pytest.mark.anyio
DONE = Turn(text="Done.")


def calls(*tools: tuple[str, dict[str, Any]]) -> list[Turn]:
    return [*(Turn(tool_calls=(ToolCall(name, arguments),)) for name, arguments in tools), DONE]


def results(messages: Any) -> list[Any]:
    return [message for message in messages if message["type"] == "tool"]


async def test_a_tool_is_called(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    turns = calls(("files_echo", {"text": "hello"}), ("files_rich", {}), ("files_fails", {}), ("files_refuse", {}))
    async with mcp_site(tmp_path, {"files": server(f"marks={marks}")}, {"m": [*turns, *turns]}) as (client, models):
        messages = await client.said(await client.thread(), "Go")
        effects = [r.event.effect for r in await client.records("t1", ToolRequested)]  # type: ignore[union-attr]
        again = await client.said("t1", "Again")
        state = await installed(client)
    echo, rich, fails, refuse = results(messages)
    assert echo["content"] == "echo hello"
    assert rich["artifact"]["structured_content"] == {"answer": 42}
    lines = rich["content"].splitlines()
    assert lines[0] == "see"
    kept = [file["path"] for file in rich["artifact"]["files"]]
    for path, content, line in zip(kept, (b"\x89PNG data", b"RIFF data"), lines[1:], strict=False):
        file = tmp_path / "users/ada/threads/t1/user-data" / path.removeprefix("/mnt/user-data/")
        assert file.read_bytes() == content
        assert path in line
    assert "inner text" in lines[3]
    assert "test://more" in lines[4]
    assert (fails["status"], fails["content"]) == ("error", "it went wrong")
    assert (refuse["status"], refuse["content"]) == ("error", "these arguments are refused")
    assert effects == ["pure", "once", "once", "once"]
    assert len(results(again)) == 8
    shown = [tool["function"]["name"] for tool in models.requests[0].body["tools"]]
    assert [name for name in shown if name.startswith("files_")] == sorted(f"files_{n.name}" for n in tools_of(state))
    assert marks.read_text().split().count("list") == 2  # one for the catalogue, one for the thread's session


def tools_of(state: Any) -> Any:
    return state.known["files"].listing.tools


async def test_what_a_message_names_is_read_and_recorded(tmp_path: Path) -> None:
    """A resource, a prompt, and a resource that is not there: the model is told each, and so it is in a replay."""
    async with mcp_site(tmp_path, {"files": server()}, {"m": [DONE, DONE, DONE]}) as (client, models):
        await client.said(await client.thread(), "Read @files:notes, and @files:test://gone.")
        await client.said("t1", "/files:greet who=Ada")
        named = await client.state("t1")
        options = compose.Options(tmp_path, config=tmp_path / "config.yaml")
        report = await replay(client.system, "t1", None, options)
    first, second = (
        "\n".join(str(message["content"]) for message in request.body["messages"][1:]) for request in models.requests
    )
    assert '<reference name="@files:test://notes">' in first
    assert "@files:test://gone, which could not be read" in first
    assert '<reference name="/files:greet">' in second
    recorded = [
        message["additional_kwargs"].get("references") for message in named.messages if message["type"] == "human"
    ]
    assert [[entry["name"] for entry in entries] for entries in recorded if entries] == [
        ["@files:test://notes", "@files:test://gone"],
        ["/files:greet"],
    ]
    assert (report.divergence, report.runs) == (None, 2)


async def test_many_tools_are_searched(tmp_path: Path) -> None:
    select = ("tool_search", {"query": "select:big_tool_7"})
    turns = calls(select, ("big_tool_7", {}), ("big_tool_8", {}))
    async with mcp_site(tmp_path, {"big": server("many=100")}, {"m": turns}) as (client, models):
        messages = await client.said(await client.thread(), "Go")
        listed = [r async for r in client.system.log.read(Aggregate(KIND, SCOPE)) if isinstance(r.event, McpListed)]
    assert "Tool number 7 of many" in results(messages)[0]["content"]
    assert results(messages)[1]["content"] == "called tool_7"
    assert "do not know the arguments" in results(messages)[2]["content"]
    first = models.requests[0].body
    assert not [tool for tool in first["tools"] if tool["function"]["name"].startswith("big_")]
    assert "big_* (119 tools)" in first["messages"][0]["content"]
    assert len(listed) == 1


@pytest.mark.parametrize("query", ["say something again", "echoing texts"])
async def test_few_tools_are_searched_where_that_is_configured(tmp_path: Path, query: str) -> None:
    """As in DeerFlow: with `tool_search` the model knows the tools of servers by name until it finds them by words."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}, "loudness": {"type": "integer"}}}
    echo = {"name": "echo", "description": "Says a text again.", "inputSchema": schema}
    lists = tmp_path / "tools.json"
    lists.write_text(json.dumps([echo, {"name": "crash", "description": "Ends the process."}]))
    turns = calls(("s_echo", {"text": "blind"}), ("tool_search", {"query": query}), ("s_echo", {"text": "hi"}))
    more = {"tool_search": {"enabled": True}}
    async with mcp_site(tmp_path, {"s": server(f"lists={lists}")}, {"m": turns}, **more) as (client, models):
        blind, search, found = results(await client.said(await client.thread(), "Go"))
    names = [{tool["function"]["name"] for tool in request.body["tools"]} for request in models.requests]
    assert ["s_echo" in some for some in names] == [False, False, True, True]
    assert not any("s_crash" in some for some in names)
    assert {"tool_search", "read_file"} <= names[0]
    assert "loudness" not in json.dumps(models.requests[0].body)
    assert "s_echo" in models.requests[0].body["messages"][0]["content"]
    assert (blind["status"], "tool_search" in blind["content"]) == ("error", True)
    assert "loudness" in search["content"]
    assert "Ends the process" not in search["content"]
    assert found["content"] == "echo hi"


async def test_a_server_in_the_sandbox(tmp_path: Path) -> None:
    """It sees the files of its conversation, and neither the server's environment nor its files."""
    home = tmp_path / "home"
    home.mkdir()
    provider = Bubblewrap(SandboxSetup(home=home))
    if problem := await provider.check():
        pytest.skip(problem)
    source = {"command": "python3", "args": ["-c", Path(SERVER).read_text()], "env": {"TOKEN": "hush-hush-hush"}}
    turns = calls(("s_environment", {}), ("s_roots", {}))
    async with mcp_site(home, {"s": source}, {"m": turns}, provider=provider) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    environment, roots = (message["content"] for message in results(messages))
    assert json.loads(environment)["TOKEN"] == "***"
    assert "PYTEST_CURRENT_TEST" not in environment
    assert "SIKA" not in environment
    assert "hush" not in environment
    assert roots == "file:///mnt/user-data/workspace"
