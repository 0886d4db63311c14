"""A hostile MCP server beside a whole server: its good tool works, and each bad one is named where people look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.servers import browser, serving
from tests.e2e.test_secrets import command
from tests.support.mcp import server as settings
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import configure, reaching

pytestmark = [pytest.mark.anyio, pytest.mark.long]

OBJECT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
LEFT_OUT: list[tuple[Any, str, str]] = [
    ({"name": "a_list", "inputSchema": []}, "a_list", "its schema is a list instead of an object"),
    ({"name": "a_text", "inputSchema": {"type": "string"}}, "a_text", "its arguments are of the type string instead"),
    ({"name": "big", "inputSchema": {**OBJECT, "description": "x" * 5_000_000}}, "big", "its schema has "),
    ({"name": "echo", "inputSchema": OBJECT}, "echo", "another tool has its name"),
    ({"name": "n" * 250, "inputSchema": OBJECT}, "n" * 79 + "…", "its name has more than 200 characters"),
    ({"name": " ", "inputSchema": OBJECT}, "tool 7", "it has no name"),
    ({"name": 3, "inputSchema": OBJECT}, "tool 8", "it has no name"),
    ("text", "tool 9", "it is no object"),
]
"""A tool, its name where people look, and the beginning of the reason."""
GOOD = {"name": "echo", "description": "Says it again.", "inputSchema": OBJECT}
PRUNED = {"name": "odd", "inputSchema": {"type": "object", "properties": {"x": {"$ref": "#/$defs/Missing"}}}}
NOTE = "left out of its schema: a reference that leads nowhere (#/$defs/Missing)"


async def test_each_fault_is_named_in_words(tmp_path: Path) -> None:
    lists = tmp_path / "tools.json"
    lists.write_text(json.dumps([GOOD, *(tool for tool, _, _ in LEFT_OUT), PRUNED]))
    servers = {
        "bad": settings(f"lists={lists}"),
        "crashing": settings("crash-start"),
        "fine": settings(),
        "lacking": {"type": "http"},
        "off": settings(enabled=False),
    }
    turns = [Turn(tool_calls=(ToolCall("bad_echo", {"text": "hi"}),)), Turn(text="Done.")]
    async with ModelServer({"m": turns}) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models, mcp={"servers": servers, "list_seconds": 60})
        async with serving(tmp_path / "home", config) as server:
            before = await statuses(client, server)
            untried = (await command(server, config, "doctor")).decode()
            thread = await client.thread(server)
            run = await client.run(server, thread, "Go", "m")
            await reaching(lambda: client.status(server, thread, run), lambda status: status in ("success", "error"))
            [answer] = [m["content"] for m in await client.messages(server, thread) if m["type"] == "tool"]
            after = await statuses(client, server)
            tried = (await command(server, config, "doctor")).decode()
            assert await server.terminate() == 0
            stopped = (await command(server, config, "doctor")).decode()
    assert answer == "echo hi"
    assert {name: status["state"] for name, status in before.items()} == dict.fromkeys(servers, "untried") | {
        "off": "off"
    }
    assert {name: status["state"] for name, status in after.items()} == {
        "bad": "partly",
        "crashing": "failed",
        "fine": "fine",
        "lacking": "failed",
        "off": "off",
    }
    left_out = [problem for problem in after["bad"]["problems"] if problem["left_out"]]
    for (_, name, reason), problem in zip(LEFT_OUT, left_out, strict=True):
        assert problem["tool"].startswith(name.removesuffix("…"))
        assert problem["reason"].startswith(reason)
        assert f"bad: {name} is left out: {reason}" in tried
    assert f"bad: odd: {NOTE}" in tried
    assert {"tool": "odd", "reason": NOTE, "left_out": False} in after["bad"]["problems"]
    assert "bad is partly: 2 tools" in tried
    assert "fine is fine: 19 tools" in tried
    assert "crashing failed: " in tried
    assert "no database at" in tried
    assert "not tried" not in tried
    for text in (untried, stopped):
        assert [f"{name} was not tried yet" in text for name in servers] == [True, True, True, False, False]
        assert "lacking cannot be started: url: a server of type http needs it" in text
        assert "is fine" not in text


async def statuses(client: Any, server: Any) -> dict[str, Any]:
    return {status["name"]: status for status in (await client.get(server, "/mcp/servers"))["servers"]}
