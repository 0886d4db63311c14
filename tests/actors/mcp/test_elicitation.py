"""Servers that ask a person during a call: the run pauses, and the answer reaches the server in the held call."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.approvals import Approvals
from actors.mcp.actor import Mcp
from core.bus.peers import Peers
from core.config.load import ConfigSource
from core.errors import Refused
from core.events import ApprovalResolved, Resume, RunRequested
from core.identity.seal import Seal
from core.ids import uuid7
from core.mcp.servers import Directory
from tests.actors.mcp.test_calls import DONE, calls, results
from tests.support.mcp import mcp_site, server, sessions_of
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.nats import eventually
from tests.support.workers import Client

pytestmark = pytest.mark.anyio
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "minimum": 18},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
    },
    "required": ["name", "age"],
}
ASK = {"text": json.dumps({"message": "Who are you?", "requestedSchema": FORM})}
URL = {"mode": "url", "message": "Log in", "url": "https://login.example/x?y=1", "elicitationId": "e1"}
LINK = {"text": json.dumps(URL)}
YES = {"text": json.dumps({"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}})}


async def resume(client: Client, answer: Any, thread: str = "t1", model: str | None = None) -> Any:
    run = uuid7()
    context = {"model_name": model} if model else {}
    await client.system.intake.request_run(thread, run, RunRequested(resume=Resume(value=answer), context=context))
    return await client.ended(thread, run)


async def question(client: Client, thread: str = "t1") -> dict[str, Any]:
    state = await client.state(thread)
    [asked] = [asked for questions in state.interrupts.values() for asked in questions]
    value: dict[str, Any] = asked["value"]
    return value


async def outcome(client: Client, thread: str = "t1") -> Any:
    [result] = results((await client.state(thread)).messages)
    return json.loads(result["content"])


async def ask(client: Client, thread: str = "t1", model: str | None = None) -> None:
    await client.ended(await client.thread(thread), await client.ask(thread, "Go", model))


async def test_the_answer_reaches_the_server(tmp_path: Path) -> None:
    """What does not fit the form is refused, and asked again; the call is made once."""
    marks = tmp_path / "marks"
    async with mcp_site(tmp_path, {"s": server("asking", f"marks={marks}")}, {"m": calls(("s_ask", ASK))}) as (
        client,
        _,
    ):
        await ask(client)
        asked = await question(client)
        assert asked["form"] == FORM
        assert asked["question"] == "The MCP server s asks: Who are you?"
        assert asked["action_requests"][0]["args"] == {"server": "s", "request": 1}
        await resume(client, {"action": "accept", "content": {"name": "Ada", "age": 17}})
        assert "between 18" in (await question(client))["error"]
        await resume(client, {"action": "accept", "content": {"name": "Ada", "age": 36}})
        assert await outcome(client) == {"action": "accept", "content": {"name": "Ada", "age": 36, "color": "red"}}
        [resolved] = [record.event for record in await client.records("t1", ApprovalResolved)]
        assert isinstance(resolved, ApprovalResolved)
        assert (resolved.decision, resolved.by) == ("edit", "ada")
    assert marks.read_text().split().count("ask") == 1


ANSWERS = (
    (ASK, "name: Ada\nage: 36", {"action": "accept", "content": {"name": "Ada", "age": 36, "color": "red"}}),
    (ASK, "decline", {"action": "decline"}),
    (ASK, {"decision": "reject"}, {"action": "decline"}),
    (YES, {"decisions": [{"type": "approve"}]}, {"action": "accept", "content": {}}),
    (LINK, "approve", {"action": "accept"}),
)


async def test_answers_that_clients_send(tmp_path: Path) -> None:
    """A question without fields is approved, and so is a link, which is shown with the server's name."""
    scripts = {f"m{number}": calls(("s_ask", asked)) for number, (asked, *_) in enumerate(ANSWERS)}
    async with mcp_site(tmp_path, {"s": server("asking")}, scripts) as (client, _):
        for number, (_, answer, expected) in enumerate(ANSWERS):
            await ask(client, thread := f"t{number}", f"m{number}")
            asked = await question(client, thread)
            await resume(client, answer, thread, f"m{number}")
            assert await outcome(client, thread) == expected
    assert asked["action_requests"][0]["args"]["url"] == URL["url"]
    assert "server s asks you to open a page of login.example yourself" in asked["action_requests"][0]["description"]


async def test_what_is_not_asked(tmp_path: Path) -> None:
    """What is no question, what a server may not ask, and what a subagent's call asks."""
    bad = [
        {"message": "x", "requestedSchema": {"type": "object", "properties": {"a": {"type": "object"}}}},
        {"message": "x", "requestedSchema": {"type": "object", "properties": {}, "required": ["b"]}},
        {**URL, "url": "javascript:alert(1)"},
        {**URL, "url": "https://bank.example@evil.example/"},
    ]
    task = {"description": "d", "prompt": "p", "subagent_type": "general-purpose"}
    scripts: dict[str, Script | Sequence[Turn]] = {
        "m": calls(*(("s_ask", {"text": json.dumps(params)}) for params in bad), ("off_ask", ASK)),
        "lead": Script((Turn(tool_calls=(ToolCall("task", task),)), DONE)),
        "sub": calls(("s_ask", ASK)),
    }
    servers = {"s": server("asking"), "off": server("asking", elicitation=False)}
    agents = {"agents": {"general-purpose": {"model": "sub"}}}
    async with mcp_site(tmp_path, servers, scripts, mcp={"direct_tools": 100}, subagents=agents) as (client, models):
        await ask(client)
        refused = [str(m["content"]) for m in results((await client.state("t1")).messages)]
        own = {"model_name": "lead", "subagent_enabled": True}
        await client.said(await client.thread("t2"), "Go", context=own)
    assert all("refused: " in text for text in refused[:4]), refused
    assert all("http address" in text for text in refused[2:4])
    assert "not supported" in refused[4]
    [answer] = [r.body["messages"][-1]["content"] for r in models.requests if r.body["model"] == "sub"][1:]
    assert json.loads(answer) == {"action": "decline"}


async def test_nobody_answers_in_time(tmp_path: Path) -> None:
    """The server is told that it was cancelled, and the run goes on by itself."""
    own = {"s": server("asking", elicitation_timeout=1)}
    others = [lambda running, _: Approvals(running.intake)]
    async with mcp_site(tmp_path, own, {"m": calls(("s_ask", ASK))}, others=others) as (client, _):
        await ask(client)

        async def over() -> bool:
            return (await client.state("t1")).status == "idle"

        await eventually(over)
        assert await outcome(client) == {"action": "cancel"}
        with pytest.raises(Refused):
            await resume(client, "late")


async def test_the_server_ends_while_a_person_is_asked(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    own = {"s": server("asking", f"marks={marks}")}
    async with mcp_site(tmp_path, own, {"m": calls(("s_ask", ASK))}) as (client, _):
        await ask(client)
        [pid] = [word.removeprefix("pid=") for word in marks.read_text().split() if word.startswith("pid=")]

        os.kill(int(pid), signal.SIGKILL)
        await resume(client, {"name": "Ada", "age": 36})
        [result] = results((await client.state("t1")).messages)
    assert result["status"] == "error"
    assert "outcome of the call is unknown" in result["content"]


async def test_the_process_ends_while_a_person_is_asked(tmp_path: Path) -> None:
    """A call that may be repeated is made again, with the recorded answer; another one is reported as unknown."""
    marks = tmp_path / "marks"
    scripts = {"m": calls(("s_ask", ASK)), "again": calls(("s_ask_again", ASK))}
    own = {"s": server("asking", f"marks={marks}")}
    with capture_logs() as logs:
        async with mcp_site(tmp_path, own, scripts) as (client, _):
            await ask(client)
            await ask(client, "t2", "again")
    assert not [line for line in logs if line["log_level"] in ("error", "critical")]
    async with mcp_site(tmp_path, own, scripts) as (client, _):
        await resume(client, {"name": "Ada", "age": 36})
        [unknown] = results((await client.state("t1")).messages)
        assert "outcome of the call is unknown" in unknown["content"]
        await resume(client, {"name": "Ada", "age": 36}, "t2", "again")
        assert (await outcome(client, "t2"))["action"] == "accept"
    assert marks.read_text().split().count("ask") == 1
    assert marks.read_text().split().count("ask_again") == 2


async def test_the_conversation_goes_on_without_an_answer(tmp_path: Path) -> None:
    """The server is told that its call is cancelled."""
    marks = tmp_path / "marks"
    own = {"s": server("asking", f"marks={marks}")}
    async with mcp_site(tmp_path, own, {"m": calls(("s_ask", ASK)), "other": [DONE]}) as (client, _):
        await ask(client)
        await client.said("t1", "Never mind", "other")

        async def cancelled() -> bool:
            return "cancelled-" in marks.read_text()

        await eventually(cancelled)


async def test_the_answer_arrives_in_another_process(tmp_path: Path) -> None:
    """It reaches the one that holds the call, which is made once."""
    marks = tmp_path / "marks"
    async with (
        mcp_site(tmp_path, {"s": server("asking", f"marks={marks}")}, {"m": [DONE]}) as (client, _),
        sessions_of(tmp_path) as sessions,
        sessions_of(tmp_path) as others,
    ):
        source, running = ConfigSource(tmp_path / "config.yaml"), client.system
        holder, other = (
            Mcp(
                running.log, own, Directory(running.log, source.current, Seal(tmp_path)), Peers(running.bus, pause=0.05)
            )
            for own in (sessions, others)
        )
        await client.thread()
        request = {
            "op": "call",
            "server": "s",
            "tool": "ask",
            "arguments": ASK,
            "user": "ada",
            "thread": "t1",
            "key": "k",
        }

        async def show(_: str) -> None:
            """Nobody looks."""

        asks = (await holder.answer(request, show))["asks"]
        answers = {asks["id"]: {"accepted": True, "content": {"name": "Ada", "age": 36}}}
        outcome = await other.answer({**request, "resumed": True, "answers": answers}, show)
        assert json.loads(outcome["text"])["action"] == "accept", outcome
        gone = await other.answer({**request, "key": "gone", "resumed": True}, show)
        assert "outcome of the call is unknown" in gone["text"]
    assert marks.read_text().split().count("ask") == 1
