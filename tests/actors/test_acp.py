"""A run that gives work to another agent: its permission is an approval, and it stops with the run."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.acp import Acp
from actors.lead.setup.acp import TOOL
from adapters.acp import agents as module
from adapters.acp.agents import LocalAgents
from core.events import ApprovalRequested, ApprovalResolved, Json, Resume, RunRequested
from core.ids import uuid7
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.workers import Client, site, wait_for

pytestmark = pytest.mark.anyio

CODE = (Path(__file__).parents[1] / "support" / "acp_agent.py").read_text()
HELPER = {"command": sys.executable, "args": ["-c", CODE, "of-a-run"], "trusted": True, "description": "Does it all."}
TWO = "permission allow_once,reject_once allow_once,reject_once"


def calls(*prompts: str, agent: str = "helper") -> Script:
    turns = [Turn(tool_calls=(ToolCall(TOOL, {"agent": agent, "prompt": prompt}),)) for prompt in prompts]
    return Script([*turns, Turn(text="Done.")], count="total")


SCRIPTS = {
    "say": calls("say hello"),
    "two": calls(TWO),
    "hang": calls("hang"),
    "unknown": calls("say x", agent="nobody"),
    "lead": Script(
        [
            Turn(
                tool_calls=(ToolCall("task", {"description": "d", "prompt": "p", "subagent_type": "general-purpose"}),)
            ),
            Turn(text="Done."),
        ]
    ),
    "sub": calls("permission allow_once,reject_once"),
}


@asynccontextmanager
async def at_work(home: Path, agents: Json | None = None, **more: Any) -> AsyncIterator[tuple[Client, Any]]:
    others = [lambda _, config: Acp(config, LocalAgents(home, None))]
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


async def go_on(client: Client, answer: Any) -> Any:
    run_id = uuid7()
    request = RunRequested(context={"model_name": "two"}, resume=Resume(value=answer))
    await client.system.intake.request_run("t1", run_id, request)
    return await client.ended("t1", run_id)


async def test_permissions_are_approvals(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (client, _):
        await client.ended("t1", await client.ask("t1", "Go", "two"))
        [request] = [record.event for record in await client.records("t1", ApprovalRequested)]
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
        decided = [record.event.decision for record in await client.records("t1", ApprovalResolved)]
        assert decided == ["approve", "reject"]


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
