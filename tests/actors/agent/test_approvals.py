"""Tool calls that wait for a person, end to end: a worker, the bus, the API; and what a replay makes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from langgraph.types import interrupt
from langgraph_sdk import get_client

from actors.approvals import Approvals
from actors.lead import Lead
from actors.wiring import discovery
from adapters.models.configured import Silent
from channels.http.app import Services, serve
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.config.load import ConfigSource
from core.events import ApprovalRequested, ApprovalResolved, Json, Resume, RunRequested, StatePatched, ToolRequested
from core.ids import uuid7
from core.replay.source import LogSource
from core.runs.commands import Commands
from core.runs.replay import replay
from core.runtime import system
from core.runtime.system import System
from core.tools import ToolContext, tool
from tests.actors.agent.test_tools import assert_well_formed, tool_texts
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.workers import Client, configure, site, worker

pytestmark = pytest.mark.anyio

sent: list[str] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


@tool(effect="once")
async def mail(ctx: ToolContext, to: str) -> str:
    """Mail."""
    sent.append(to)
    return f"mailed {to}"


@tool(effect="once")
async def call(ctx: ToolContext, to: str) -> str:
    """Call, at a time that a person says."""
    return f"called {to} at {interrupt('when?')}"


TOOLS = [mail, call]
RULE: Json = {"tool": "mail", "text": "Mail them?"}
ONE = (Turn(tool_calls=(ToolCall("mail", {"to": "eve"}),)), Turn(text="Done."))
TWO = (Turn(tool_calls=(ToolCall("mail", {"to": "eve"}), ToolCall("mail", {"to": "bob"}))), Turn(text="Done."))
ASKS = ToolCall("ask_clarification", {"question": "Which Eve?", "clarification_type": "missing_info"})
BESIDE = (Turn(tool_calls=(*ONE[0].tool_calls, ASKS)), Turn(text="Done."))
AGAIN = (ONE[0], Turn(tool_calls=(ToolCall("mail", {"to": "bob"}),)), Turn(text="Done."))
SCRIPTS = {
    "one": Script(ONE, count="total"),
    "two": Script(TWO, count="total"),
    "again": Script(AGAIN, count="total"),
    "beside": Script(BESIDE, count="total"),
}


@asynccontextmanager
async def at_work(home: Path, *, rules: Sequence[Json] = (RULE,), **more: Any) -> AsyncIterator[tuple[Client, Any]]:
    async with site(home, SCRIPTS, tools=TOOLS, approvals=list(rules), **more) as (client, models):
        await client.thread()
        yield client, models


async def parked(client: Client, model: str = "one") -> list[Json]:
    """Ask for a run that pauses at calls; the questions."""
    run = await client.ended("t1", await client.ask("t1", "Go", model))
    state = await client.state("t1")
    assert (run.status, state.status) == ("success", "interrupted")
    return [question for questions in state.interrupts.values() for question in questions]


async def go_on(client: Client, answer: Any, model: str = "one") -> None:
    run_id = uuid7()
    request = RunRequested(context={"model_name": model}, resume=Resume(value=answer))
    await client.system.intake.request_run("t1", run_id, request)
    run = await client.ended("t1", run_id)
    assert run.status == "success", run.error


async def assert_replays(client: Client, home: Path) -> None:
    toolset = [*discovery.load_tools(), *TOOLS]
    lead = Lead(
        ConfigSource(home / "config.yaml"), Silent(), lambda _: toolset, client.system.call, client.system.log, home
    )
    report = await replay(LogSource(client.system.log).read, "t1", None, lead.execute)
    assert report.divergence is None
    assert report.steps


ANSWERS: dict[str, tuple[Any, list[str], str, str]] = {
    "approve": ({"decisions": [{"type": "approve"}]}, ["eve"], "mailed eve", "approved"),
    "edit": ({"decision": "edit", "args": {"to": "al"}}, ["al"], "mailed al", "edited"),
    "reject": ({"type": "reject", "message": "Too late"}, [], "They said: Too late", "rejected"),
}


@pytest.mark.parametrize(("answer", "made", "text", "action"), ANSWERS.values(), ids=ANSWERS)
async def test_a_call_waits(tmp_path: Path, answer: Any, made: list[str], text: str, action: str) -> None:
    async with at_work(tmp_path) as (client, models):
        [question] = await parked(client)
        assert question["value"]["action_requests"] == [
            {"name": "mail", "args": {"to": "eve"}, "description": "Mail them?"}
        ]
        assert (sent, await client.records("t1", ToolRequested)) == ([], [])
        await client.idle()

        await go_on(client, answer)
        state = await client.state("t1")
        assert (state.status, sent) == ("idle", made)
        assert text in tool_texts(state.messages)[0]
        assert state.messages[-1]["content"] == "Done."
        [outcome] = [record.event for record in await client.records("t1") if record.type == "tool.completed"]
        assert [decision.action for decision in outcome.decisions] == [action]  # type: ignore[union-attr]
        texts = [str(message["content"]) for message in models.requests[-1].body["messages"]]
        assert any('{"to":"al"}' in each for each in texts) is (action == "edited")
        assert_well_formed(models)
        await assert_replays(client, tmp_path)


async def test_an_unreadable_answer_runs_nothing(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (client, _):
        [question] = await parked(client)
        await go_on(client, "perhaps")
        [[again]] = (await client.state("t1")).interrupts.values()
        reason = "decision: approve, edit or reject, got 'perhaps'"
        assert (again, sent) == ({**question, "value": {**question["value"], "error": reason}}, [])
        assert "error" not in question["value"], "nothing was refused before the first answer"
        await go_on(client, "yes")
        assert sent == ["eve"]
        assert len(await client.records("t1", ApprovalRequested)) == 1
        await assert_replays(client, tmp_path)


async def test_parallel_calls_one_after_the_other(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (client, models):
        first, second = sorted(
            await parked(client, "two"), key=lambda question: question["value"]["action_requests"][0]["args"]["to"]
        )
        await go_on(client, {first["id"]: "approve"}, "two")
        state = await client.state("t1")
        assert ([question["id"] for [question] in state.interrupts.values()], sent) == ([second["id"]], ["bob"])
        assert len(models.requests) == 1
        await go_on(client, {second["id"]: "reject"}, "two")
        state = await client.state("t1")
        assert (state.status, sent, len(models.requests)) == ("idle", ["bob"], 2)
        assert sorted(text[:11] for text in tool_texts(state.messages)) == ["Error: the ", "mailed bob"]
        assert_well_formed(models)
        await assert_replays(client, tmp_path)


async def test_an_approved_call_is_made_beside_a_question(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (client, models):
        await parked(client, "beside")
        await go_on(client, True, "beside")
        state = await client.state("t1")
        assert (state.status, sent, len(models.requests)) == ("idle", ["eve"], 1)
        assert [message["name"] for message in state.messages[2:]] == ["ask_clarification", "mail"]
        messages = await client.said("t1", "The one next door.", "beside")
        assert (messages[-1]["content"], sent) == ("Done.", ["eve"])
        assert_well_formed(models)
        await assert_replays(client, tmp_path)


async def test_one_answer_for_all(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (client, _):
        await parked(client, "two")
        await go_on(client, True, "two")
        assert sorted(sent) == ["bob", "eve"]
        await assert_replays(client, tmp_path)


@pytest.mark.parametrize(("when", "asked"), [("always", 2), ("once_per_run", 1), ("once_per_thread", 1)])
async def test_once_is_enough(tmp_path: Path, when: str, asked: int) -> None:
    async with at_work(tmp_path, rules=[{**RULE, "when": when}]) as (client, _):
        await parked(client, "again")
        for _ in range(asked):
            await go_on(client, True, "again")
        assert ((await client.state("t1")).status, sent) == ("idle", ["eve", "bob"])
        assert len(await client.records("t1", ApprovalRequested)) == asked
        await assert_replays(client, tmp_path)


async def test_a_tool_that_asks_itself(tmp_path: Path) -> None:
    scripts = {"calls": [Turn(tool_calls=(ToolCall("call", {"to": "eve"}),)), Turn(text="Done.")]}
    async with site(tmp_path, scripts, tools=TOOLS, approvals=[{"tool": "call"}]) as (client, _):
        await client.thread()
        await parked(client, "calls")
        await go_on(client, "yes", "calls")
        [[question]] = (await client.state("t1")).interrupts.values()
        assert question["value"] == "when?"
        await go_on(client, "noon", "calls")
        assert tool_texts((await client.state("t1")).messages) == ["called eve at noon"]
        await assert_replays(client, tmp_path)


async def test_other_arguments_are_asked_for_anew(tmp_path: Path) -> None:
    """Somebody changes the call while it waits: the approval was of another one."""
    async with at_work(tmp_path) as (client, _):
        [question] = await parked(client)
        message = (await client.state("t1")).messages[-1]
        changed = {**message, "tool_calls": [{**message["tool_calls"][0], "args": {"to": "mallory"}}]}
        commands = Commands(client.system.threads, client.system.intake, actor="test")
        await commands.write_state("ada", "t1", [{"messages": [changed]}])
        await go_on(client, {question["id"]: "approve"})
        [[anew]] = (await client.state("t1")).interrupts.values()
        assert (anew["id"] == question["id"], sent) == (False, [])
        assert anew["value"]["action_requests"][0]["args"] == {"to": "mallory"}
        assert len(await client.records("t1", StatePatched)) == 1
        await go_on(client, {anew["id"]: "reject"})
        assert sent == []
        await assert_replays(client, tmp_path)


async def test_time_decides(tmp_path: Path) -> None:
    async with ModelServer(SCRIPTS) as models, embedded.start(tmp_path) as server:
        config = configure(tmp_path / "config.yaml", models, approvals=[{**RULE, "deadline_seconds": 0.5}])
        endpoint = Endpoint(server.url, token=server.token)
        async with _with_deadlines(endpoint, tmp_path, config) as client:
            await client.thread()
            await parked(client)
            state = await client.until("t1", lambda state, _: len(state.runs) == 2 and state.status == "idle")
            assert (sent, state.messages[-1]["content"]) == ([], "Done.")
            assert tool_texts(state.messages)[0].startswith("Error: nobody approved this call of mail by 20")
            [resolved] = [record.event for record in await client.records("t1", ApprovalResolved)]
            assert isinstance(resolved, ApprovalResolved)
            assert (resolved.decision, resolved.by) == ("expire", None)
            await assert_replays(client, tmp_path)


@asynccontextmanager
async def _with_deadlines(endpoint: Endpoint, home: Path, config: Path) -> AsyncIterator[Client]:
    """A worker with the actor, which lives on the same system."""
    async with system.start(endpoint, home / f"views-{uuid7()}.db", lease_seconds=2, slots=4) as own:
        parts = [Approvals(own.intake)]
        async with worker(endpoint, home, config, tools=TOOLS, others=parts) as running:
            yield Client(running)


async def test_the_worker_may_go_meanwhile_and_the_api_decides(tmp_path: Path) -> None:
    async with ModelServer(SCRIPTS) as models, embedded.start(tmp_path) as server:
        config = configure(tmp_path / "config.yaml", models, approvals=[RULE])
        endpoint = Endpoint(server.url, token=server.token)
        async with worker(endpoint, tmp_path, config, tools=TOOLS) as running:
            await Client(running).thread(user="default")
            await parked(Client(running))
        async with (
            worker(endpoint, tmp_path, config, tools=TOOLS) as running,
            _served(running, config) as url,
            aiohttp.ClientSession() as session,
        ):
            path = f"{url}/api/threads/t1/approvals"
            async with session.get(f"{path}?status=pending") as response:
                [pending] = await response.json()
            decision = {"decision": "edit", "args": {"to": "al"}}
            async with session.post(f"{path}/{pending['approval_id']}", json=decision) as response:
                assert response.status == 202
                run_id = (await response.json())["run_id"]
            await Client(running).ended("t1", run_id)
            async with session.get(f"{path}/{pending['approval_id']}") as response:
                approval = await response.json()
        assert (approval["status"], approval["decided_by"], approval["edited_args"]) == (
            "edited",
            "default",
            {"to": "al"},
        )
        assert sent == ["al"]


async def test_the_sdk_resumes(tmp_path: Path) -> None:
    async with (
        at_work(tmp_path) as (known, _),
        _served(known.system, tmp_path / "config.yaml") as url,
        get_client(url=f"{url}/api") as client,
    ):
        thread = (await client.threads.create())["thread_id"]
        about: Any = {"context": {"model_name": "one"}}
        ask: Any = {"messages": [{"role": "user", "content": "Go"}]}
        values: Any = await client.runs.wait(thread, "lead_agent", input=ask, **about)
        [question] = values["__interrupt__"]
        assert question["value"]["review_configs"] == [
            {"action_name": "mail", "allowed_decisions": ["approve", "edit", "reject"]}
        ]
        resume: Any = {question["id"]: {"decisions": [{"type": "approve"}]}}
        values = await client.runs.wait(thread, "lead_agent", command={"resume": resume}, **about)
        assert (values["messages"][-1]["content"], sent) == ("Done.", ["eve"])


@asynccontextmanager
async def _served(running: System, config: Path) -> AsyncIterator[str]:
    source = ConfigSource(config)
    async with serve(Services.of(running, source.current, config.parent), "127.0.0.1", 0) as port:
        yield f"http://127.0.0.1:{port}"
