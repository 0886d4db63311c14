"""`sika mcp serve` as the SDK's client starts it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.stdio import stdio_client
from pydantic import AnyUrl

from channels.cli.extend.mcp_serve import Relay
from tests.channels.http.conftest import Worker
from tests.support.nats import eventually


async def test_a_client_that_starts_a_command(url: str, worker: Worker) -> None:
    command = StdioServerParameters(command=sys.executable, args=["-m", "channels.cli", "mcp", "serve", "--url", url])
    async with stdio_client(command) as (read, write), ClientSession(read, write) as session:
        welcome = await session.initialize()
        assert welcome.serverInfo.name == "sika"
        result = await session.call_tool("chat", {"message": "Hello?", "wait_seconds": 0})
        assert result.structuredContent
        thread, run = result.structuredContent["thread_id"], result.structuredContent["run_id"]
        answers = [session.call_tool("chat_read", {"thread_id": thread, "run_id": run}) for _ in range(3)]
        waiting = asyncio.gather(*answers)
        await worker.perform(thread, run, "Good day")
        for answer in await waiting:
            assert answer.structuredContent
            assert answer.structuredContent["messages"][0]["text"] == "Good day"
        with pytest.raises(McpError, match="Unknown resource"):
            await session.read_resource(AnyUrl("sika://nothing"))


async def test_lines_that_are_no_messages(url: str) -> None:
    """Each gets an answer that says what is wrong, and the next is served."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "channels.cli", "mcp", "serve", "--url", url, stdin=PIPE, stdout=PIPE, env={**os.environ}
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"\nnonsense\n[1]\n" + json.dumps(INITIALIZE).encode() + b"\n")
    answers = [json.loads(await asyncio.wait_for(process.stdout.readline(), 60)) for _ in range(3)]
    assert [answer.get("error", {}).get("code") for answer in answers] == [-32700, -32700, None]
    assert answers[2]["result"]["serverInfo"]["name"] == "sika"
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 60) == 0


@pytest.mark.parametrize("kind", ["file", "pipe"])
async def test_an_input_that_ends_with_its_last_message(url: str, tmp_path: Path, kind: str) -> None:
    """Every message is answered, `initialize` first."""
    calls = [{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in range(2, 6)]
    lines = b"".join(json.dumps(message).encode() + b"\n" for message in (INITIALIZE, *calls))
    (tmp_path / "in").write_bytes(lines)
    with (tmp_path / "in").open("rb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "channels.cli", "mcp", "serve", "--url", url),
            stdin=file if kind == "file" else PIPE,
            stdout=PIPE,
        )
    async with asyncio.timeout(60):
        out, _ = await process.communicate(None if kind == "file" else lines)
    answers = [json.loads(line) for line in out.splitlines()]
    assert answers[0]["id"] == 1
    assert sorted(answer["id"] for answer in answers) == [1, 2, 3, 4, 5]
    assert process.returncode == 0


async def test_a_server_that_is_gone_and_a_call_that_is_cancelled(url: str, worker: Worker) -> None:
    lines, written = asyncio.StreamReader(), list[dict[str, Any]]()
    place: list[str | None] = [url]

    async def write(line: bytes) -> None:
        written.append(json.loads(line))

    async def answered(count: int) -> bool:
        return len(written) >= count

    def send(message: dict[str, Any]) -> None:
        lines.feed_data(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    relay = asyncio.create_task(Relay(lambda: place[0], {}, write).run(lines))
    send({"id": 1, "method": "tools/call", "params": {"name": "chat", "arguments": {"message": "x", "thread_id": "t"}}})
    run = await worker.requested("t")
    send({"method": "notifications/cancelled", "params": {"requestId": 1}})
    send({"id": 2, "method": "ping"})
    await eventually(lambda: answered(1))
    assert written == [{"jsonrpc": "2.0", "id": 2, "result": {}}], "a call that was cancelled has no answer"
    assert run.status == "pending"
    for gone in (None, "http://127.0.0.1:1"):
        place[0] = gone
        send({"id": 3, "method": "ping"})
        await eventually(lambda: answered(2))
        assert "the server is out of reach" in written.pop()["error"]["message"]
    lines.feed_eof()
    async with asyncio.timeout(120):
        await relay


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}
