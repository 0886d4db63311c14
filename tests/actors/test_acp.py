"""A run that gives work to another agent: its permission is an approval, and it stops with the run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.acp import Acp
from actors.agent.setup.acp import TOOL
from adapters.acp import agents as module
from adapters.acp.agents import LocalAgents
from core.bus.peers import Peers
from core.config.acp import AcpAgent
from core.events import ApprovalRequested, ApprovalResolved, Json, Resume, RunRequested
from core.ids import uuid7
from core.ports.agents import Permission, Report, Work
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.workers import Client, site, wait_for

pytestmark = pytest.mark.anyio

CODE = (Path(__file__).parents[1] / "support" / "acp_agent.py").read_text()
HELPER = {"command": sys.executable, "args": ["-c", CODE, "of-a-run"], "trusted": True, "description": "Does it all."}
TWO = "permission allow_once,reject_once allow_once,reject_once"


def calls(*prompts: str, agent: str = "helper") -> Script:
    turns = [Turn(tool_calls=(ToolCall(TOOL, {"agent": agent, "prompt": prompt}),)) for prompt in prompts]
    return Script((*turns, Turn(text="Done.")), count="total")


TASK = {"description": "d", "prompt": "p", "subagent_type": "general-purpose"}
SCRIPTS = {
    "say": calls("say hello"),
    "two": calls(TWO),
    "hang": calls("hang"),
    "see": calls("see"),
    "unknown": calls("say x", agent="nobody"),
    "lead": Script((Turn(tool_calls=(ToolCall("task", TASK),)), Turn(text="Done."))),
    "sub": calls("permission allow_once,reject_once"),
}


@asynccontextmanager
async def at_work(home: Path, agents: Json | None = None, **more: Any) -> AsyncIterator[tuple[Client, Any]]:
    others = [lambda running, config: Acp(config, LocalAgents(home, None, Peers(running.bus)), running.log, home)]
    async with site(
        home, SCRIPTS, others=others, acp_agents={"helper": HELPER} if agents is None else agents, **more
    ) as (client, models):
        await client.thread()
        try:
            yield client, models
        finally:
            await module.close()


def results(messages: Sequence[Json]) -> list[tuple[str, str]]:
    return [(m["content"], m.get("status", "success")) for m in messages if m["type"] == "tool"]


async def test_a_call(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (client, models):
        assert results(await client.said("t1", "Go", "say")) == [("hello", "success")]
        [(text, status)] = results(await client.said(await client.thread("t2"), "Go", "unknown"))
        assert (status, "there is no 'nobody'; there are: helper" in text) == ("error", True)
    [tool] = [t["function"] for t in models.requests[0].body["tools"] if t["function"]["name"] == TOOL]
    assert tool["description"].endswith("Agents:\n- helper: Does it all.")


async def test_no_tool_without_agents(tmp_path: Path) -> None:
    async with at_work(tmp_path, {}) as (client, models):
        await client.said("t1", "Go", "say")
    assert TOOL not in [tool["function"]["name"] for tool in models.requests[0].body["tools"]]


async def events(client: Client, kind: Any) -> list[Any]:
    return [record.event for record in await client.records("t1", kind)]


async def go_on(client: Client, answer: Any) -> Any:
    run_id = uuid7()
    request = RunRequested(context={"model_name": "two"}, resume=Resume(value=answer))
    await client.system.intake.request_run("t1", run_id, request)
    return await client.ended("t1", run_id)


async def test_permissions_are_approvals(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (client, _):
        await client.ended("t1", await client.ask("t1", "Go", "two"))
        [request] = await events(client, ApprovalRequested)
        assert request.tool == TOOL
        assert request.text == "The agent helper asks for permission: Delete all"
        assert request.args["input"] == "{'command': 'rm -r x'}"
        [question] = [q for questions in (await client.state("t1")).interrupts.values() for q in questions]
        assert question["value"]["review_configs"][0]["allowed_decisions"] == ["approve", "reject"]
        await go_on(client, {"decisions": [{"type": "approve"}]})
        assert (await client.state("t1")).status == "interrupted"
        await go_on(client, {"decisions": [{"type": "reject"}]})
        state = await client.state("t1")
        assert state.status == "idle"
        assert results(state.messages) == [("id-allow_once id-reject_once", "success")]
        decided = [event.decision for event in await events(client, ApprovalResolved)]
        assert decided == ["approve", "reject"]


async def test_another_process_passes_the_decision_on(tmp_path: Path) -> None:
    """A run may be resumed anywhere: the process with the session gets the decision, and a stop."""
    settings = msgspec.convert(HELPER, AcpAgent)
    async with at_work(tmp_path) as (client, _):
        holder, other = (LocalAgents(tmp_path, None, Peers(client.system.bus)) for _ in range(2))
        shown = list[str]()

        async def show(text: str) -> None:
            shown.append(text)

        work = Work(user="ada", thread="t1", key="k", agent="helper", prompt=TWO)
        first = await holder.advance(work, settings, {}, show)
        assert isinstance(first, Permission)
        assert await other.advance(work, settings, {}, show) == first
        second = await other.advance(work, settings, {first.id: True}, show)
        assert isinstance(second, Permission)
        report = await other.advance(work, settings, {first.id: True, second.id: False}, show)
        assert report == Report(text="id-allow_once id-reject_once")
        assert "id-allow_once" in "".join(shown)
        hanging = msgspec.structs.replace(work, key="h")
        await holder.advance(hanging, settings, {}, show)
        await other.stop("ada", "t1", "h")
        stopped = await other.advance(hanging, settings, {}, show)
        assert isinstance(stopped, Report)
        assert "cancelled" in stopped.text


async def test_a_subagent_cannot_ask(tmp_path: Path) -> None:
    own = {"agents": {"general-purpose": {"model": "sub"}}}
    async with at_work(tmp_path, subagents=own) as (client, models):
        context = {"model_name": "lead", "subagent_enabled": True}
        await client.said("t1", "Go", context=context)
        assert await client.records("t1", ApprovalRequested) == []
    [last] = [r.body["messages"][-1] for r in models.requests if r.body["model"] == "sub"][1:]
    assert last["content"] == "id-reject_once"


def alive() -> list[str]:
    words = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words.append(Path(f"/proc/{name}/cmdline").read_bytes())
        except OSError:
            continue
    return [str(word) for word in words if b"of-a-run" in word.split(b"\0")]


async def test_cancelling_a_run_ends_the_agent(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (client, _):
        run = await client.ask("t1", "Go", "hang")

        async def begun() -> bool:
            return bool(alive())

        async def gone() -> bool:
            return not alive()

        await wait_for(begun)
        await client.system.intake.cancel("t1", run, "interrupt")
        ended = await client.ended("t1", run)
        assert ended.status == "interrupted"
        await wait_for(gone)


async def test_enabled_mcp_servers_are_passed_on(tmp_path: Path) -> None:
    servers = {
        "files": {"command": "npx", "args": ["x"], "env": {"TOKEN": "t"}},
        "off": {"command": "npx", "enabled": False},
        "web": {"type": "http", "url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": "k"}},
    }
    async with at_work(tmp_path, mcp={"servers": servers}) as (client, _):
        [(text, _)] = results(await client.said("t1", "Go", "see"))
    passed = json.loads(text)["session"]["mcpServers"]
    assert [server["name"] for server in passed] == ["files"]  # it says that it speaks no HTTP
    assert (passed[0]["command"], passed[0]["args"]) == ("npx", ["x"])
    assert [variable["name"] for variable in passed[0]["env"]] == ["TOKEN"]
