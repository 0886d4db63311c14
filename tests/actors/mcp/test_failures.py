"""Servers that hang, crash, flood, lie and change: each costs nothing but itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.cli.extend import mcp as terminal
from core.config.settings import Config
from core.events import Aggregate, ToolRequested
from core.identity.seal import Seal
from core.mcp.servers import KIND, SCOPE, Directory, McpForgotten, McpListed, aggregates
from tests.actors.mcp.test_calls import calls, results
from tests.support.mcp import installed, mcp_site, server
from tests.support.model_server import ToolCall, Turn
from tests.support.nats import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]
UNKNOWN = "outcome of the call is unknown"

HOSTILE = [
    ("crash", "exit code 3"),
    ("hang", "no answer within 20 s"),
    ("flood", "a line of more than 8 MB"),
    ("flood_lines", "lines in a row that are no messages"),
    ("junk", "what is not a message"),
    ("memory", "MB of memory, more than 256"),
]


async def test_a_bad_server_costs_nothing_but_itself(tmp_path: Path) -> None:
    """Every hostile call fails with its reason, and the next one finds a working server; the other server works."""
    marks = tmp_path / "marks"
    steps = [step for name, _ in HOSTILE for step in ((f"bad_{name}", {}), ("bad_echo", {"text": f"back {name}"}))]
    more = [("bad_latin", {}), ("bad_hostile", {}), ("bad_stderr", {}), ("good_echo", {"text": "fine"})]
    servers = {
        "bad": server(f"marks={marks}", tool_call_timeout=20),
        "good": server(),
        "hanging": server("hang-start", session_init_timeout=3),
        "crashing": server("crash-start"),
        "missing": {"command": "no-such-program", "trusted": True},
        "confined": {"command": "true"},
    }
    turns = calls(*steps, *more)
    async with mcp_site(tmp_path, servers, {"m": turns}, mcp={"memory_mb": 256, "list_seconds": 60}) as (
        client,
        models,
    ):
        messages = await client.said(await client.thread(), "Go")
        state = await installed(client)
    hostile, rest = results(messages)[: len(steps)], results(messages)[len(steps) :]
    for (name, reason), lost, back in zip(HOSTILE, hostile[::2], hostile[1::2], strict=True):
        assert lost["status"] == "error"
        assert reason in lost["content"], (name, lost["content"])
        assert UNKNOWN in lost["content"]
        assert back["content"] == f"echo back {name}", (name, back)
    latin, injection, stderr, good = rest
    assert latin["content"] == "caf\ufffd"
    assert "<system-reminder>" not in injection["content"]
    assert (stderr["content"], good["content"]) == ("wrote much", "echo fine")
    words = marks.read_text().split()
    assert all(words.count(name) == 1 for name, _ in HOSTILE)  # nothing was repeated
    assert any(word.startswith("cancelled-") for word in words)
    reasons = {name: known.failure.reason for name, known in state.known.items() if known.failure}
    assert sorted(reasons) == ["confined", "crashing", "hanging", "missing"]
    assert "within 3 s" in reasons["hanging"]
    assert "no database at" in reasons["crashing"]
    assert "hunter2" not in str(reasons)
    assert "no-such-program" in reasons["missing"]
    assert "trusted: true" in reasons["confined"]
    prompt = models.requests[0].body["messages"][0]["content"]
    assert "<unavailable_tools>" in prompt
    assert "- hanging: hanging: it did not answer" in prompt


async def test_an_idempotent_call_is_repeated(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    async with mcp_site(tmp_path, {"s": server(f"marks={marks}")}, {"m": calls(("s_crash_once", {}))}) as (client, _):
        messages = await client.said(await client.thread(), "Go")
        [requested] = await client.records("t1", ToolRequested)
    assert isinstance(requested.event, ToolRequested)
    assert requested.event.effect == "idempotent"
    assert results(messages)[0]["content"] == "survived"
    assert marks.read_text().split().count("crash_once") == 2


async def test_a_stopped_run_cancels_its_call(tmp_path: Path) -> None:
    """The server is told, and what it had started ends with the session."""
    marks = tmp_path / "marks"
    turns = calls(("s_spawn", {"text": "1000"}), ("s_hang", {}))
    async with mcp_site(tmp_path, {"s": server(f"marks={marks}")}, {"m": turns}) as (client, _):
        run = await client.ask(await client.thread(), "Go")

        async def hangs() -> bool:
            return "hang" in marks.read_text().split() if marks.exists() else False

        await eventually(hangs)
        await client.system.intake.cancel("t1", run)

        async def cancelled() -> bool:
            return "cancelled-" in marks.read_text()

        await eventually(cancelled)
        pid = int(results((await client.state("t1")).messages)[0]["content"])
        assert Path(f"/proc/{pid}").exists()

    async def dead() -> bool:
        return not Path(f"/proc/{pid}").exists()

    await eventually(dead)


async def test_changed_tools_are_listed_again(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(ToolCall("s_echo", {"text": "1"}),)), Turn(text="One"), Turn(text="Two")]
    async with mcp_site(tmp_path, {"s": server("changing")}, {"m": turns}) as (client, models):
        await client.said(await client.thread(), "Go")

        async def listed() -> bool:
            records = [r async for r in client.system.log.read(Aggregate(KIND, SCOPE))]
            return sum(isinstance(record.event, McpListed) for record in records) == 2

        await eventually(listed)
        await client.said("t1", "And now?")
        states = aggregates(client.system.log)
        changed = list((await states.load(SCOPE)).seen["s"].changed)
        named = [finding.text for finding in await terminal.changes(states)]
        servers = Directory(client.system.log, Config, Seal(tmp_path))
        accepted = await terminal.accept(servers, "s")
        seen = (await states.load(SCOPE)).seen["s"]
    names = [[tool["function"]["name"] for tool in request.body["tools"]] for request in models.requests]
    assert "s_new_1" not in names[0]
    assert "s_new_1" in names[-1]
    assert changed[0] == "new_1"
    assert named == [f"s describes tools otherwise than when they were seen: {', '.join(changed)}"]
    assert accepted.startswith("s: accepted new_1")
    assert list(seen.changed) == []


async def test_a_reset_ends_sessions_and_lists_again(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    turns = calls(("s_echo", {"text": "1"}))
    async with mcp_site(tmp_path, {"s": server(f"marks={marks}")}, {"m": [*turns, *turns]}) as (client, _):
        await client.said(await client.thread(), "Go")
        before = marks.read_text().split()
        await aggregates(client.system.log).decide(SCOPE, lambda _: [McpForgotten()], actor="http")
        await client.said("t1", "Again")
    assert before == ["list", "list", "echo"]
    assert marks.read_text().split() == before * 2


async def test_progress_is_shown(tmp_path: Path) -> None:
    async with mcp_site(tmp_path, {"s": server()}, {"m": calls(("s_slow", {}))}) as (client, _):
        shown: list[str] = []

        async def progress(text: str) -> None:
            shown.append(text)

        request = {"op": "call", "server": "s", "tool": "slow", "user": "ada", "thread": "t1"}
        answer: Any = await client.system.call("mcp", request, progress)
    assert answer["text"] == "slow but done"
    assert "step 1" in "".join(shown)
    assert "step 3" in "".join(shown)
