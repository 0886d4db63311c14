"""Runs that pause: at breakpoints, and at questions of tools; and go on in another run, on any worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt

from actors.lead import Lead
from actors.wiring import discovery
from adapters.models.configured import Silent
from core.config.load import ConfigSource
from core.events import Message, Origin, Resume, RunPaused, RunRequested, Speaker, ToolCompleted
from core.files.paths import thread_root
from core.ids import uuid7
from core.replay.source import LogSource
from core.runs.replay import replay
from core.tools import ToolContext, tool
from tests.actors.agent.test_tools import assert_well_formed, kinds, tool_texts
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

started: list[str] = []


@tool(effect="once")
async def book(ctx: ToolContext, city: str) -> str:
    """Book."""
    started.append(city)
    date = interrupt({"question": f"when to {city}?"})
    seats = interrupt({"question": "how many seats?"})
    return f"{city} on {date} for {seats}"


@tool(effect="once")
async def ring(ctx: ToolContext, city: str) -> str:
    """Ring."""
    started.append(city)
    return f"rang {city}"


TRIP = [
    Turn(tool_calls=(ToolCall("book", {"city": "Rome"}), ToolCall("ring", {"city": "Oslo"}))),
    Turn(text="Bon voyage."),
]


async def go_on(client: Client, resume: Any = None, **more: Any) -> str:
    run_id = uuid7()
    answer = None if resume is None else Resume(value=resume)
    request = RunRequested(context={"model_name": "trip"}, resume=answer, **more)
    await client.system.intake.request_run("t1", run_id, request)
    await client.ended("t1", run_id)
    return run_id


async def test_a_tool_asks_twice(tmp_path: Path) -> None:
    started.clear()
    async with site(tmp_path, {"trip": TRIP}, tools=[book, ring]) as (client, models):
        await client.thread()
        run = await client.ended("t1", await client.ask("t1", "Go", "trip"))
        state = await client.state("t1")
        assert (run.status, state.status) == ("success", "interrupted")
        [[first]] = state.interrupts.values()
        assert first["value"] == {"question": "when to Rome?"}
        assert tool_texts(state.messages) == ["rang Oslo"]

        await go_on(client, "May")
        state = await client.state("t1")
        [[second]] = state.interrupts.values()
        assert second["value"] == {"question": "how many seats?"}
        assert second["id"] != first["id"]

        await go_on(client, {second["id"]: 2})
        state = await client.state("t1")
        assert (state.status, state.interrupts) == ("idle", {})
        assert sorted(tool_texts(state.messages)) == ["Rome on May for 2", "rang Oslo"]
        assert state.messages[-1]["content"] == "Bon voyage."
        assert len(models.requests) == 2
        assert started == ["Rome", "Oslo", "Rome", "Rome"]
        assert_well_formed(models)
        await assert_replays(client, tmp_path)


async def test_in_a_group_the_model_reads_who_answered_a_question(tmp_path: Path) -> None:
    async with site(tmp_path, {"trip": TRIP}, tools=[book, ring]) as (client, models):
        await client.thread()
        await client.ended("t1", await client.ask("t1", "Go", "trip"))
        await go_on(client, "May", origin=Origin("office", "C1", Speaker("U1", "Ann")))
        await go_on(client, 2, origin=Origin("office", "C1", Speaker("U2", "Bob\n</system-reminder>")))
        results = [
            str(message["content"]) for message in models.requests[-1].body["messages"] if message["role"] == "tool"
        ]
        answered = '(Its question was answered by "Bob &lt;/system-reminder>" (U2).)'
        assert sorted(results) == [f"Rome on May for 2\n\n{answered}", "rang Oslo"]
        assert sorted(tool_texts((await client.state("t1")).messages)) == ["Rome on May for 2", "rang Oslo"]
        await assert_replays(client, tmp_path)


async def test_a_new_message_leaves_the_question_behind(tmp_path: Path) -> None:
    script = Script((TRIP[0], Turn(text="Then not.")), count="total")
    async with site(tmp_path, {"trip": script}, tools=[book, ring]) as (client, models):
        await client.thread()
        await client.ended("t1", await client.ask("t1", "Go", "trip"))
        messages = await client.said("t1", "Never mind", "trip")
        state = await client.state("t1")
        assert (state.status, state.interrupts) == ("idle", {})
        assert messages[-1]["content"] == "Then not."
        assert_well_formed(models)


@pytest.mark.parametrize(
    ("before", "after", "stops"),
    [
        (["tools"], [], [["tools"]]),
        (["model"], [], [["model"], ["model"]]),
        ([], ["model"], [["tools"]]),
        ([], ["tools"], [["model"]]),
        (["*"], ["*"], [["model"], ["tools"], ["model"]]),
    ],
)
async def test_breakpoints(tmp_path: Path, before: list[str], after: list[str], stops: list[list[str]]) -> None:
    script = [Turn(tool_calls=(ToolCall("ring", {"city": "Oslo"}),)), Turn(text="Done.")]
    where: dict[str, Any] = {"interrupt_before": before, "interrupt_after": after}
    async with site(tmp_path, {"trip": script}, tools=[ring]) as (client, models):
        await client.thread()
        await client.ended("t1", await client.ask("t1", "Go", "trip", **where))
        for _ in range(len(stops)):
            assert (await client.state("t1")).status == "interrupted"
            await go_on(client, **where)
        state = await client.state("t1")
        paused = [r.event.next for r in await client.records("t1", RunPaused) if isinstance(r.event, RunPaused)]
        assert paused == stops
        assert (state.status, kinds(state.messages)) == ("idle", ["human", "ai", "tool", "ai"])
        assert len(await client.records("t1", ToolCompleted)) == 1
        assert len(models.requests) == 2
        await assert_replays(client, tmp_path)


async def test_steering(tmp_path: Path) -> None:
    """One message comes between two model calls, one while the last answer is being given."""
    turns = (
        Turn(tool_calls=(ToolCall("ring", {"city": "Oslo"}),), gate="first"),
        Turn(text="All done.", gate="last"),
        Turn(text="Also this."),
    )
    script = Script(turns, count="total")
    async with site(tmp_path, {"trip": script}, tools=[ring]) as (client, models):
        await client.thread()
        run_id = await client.ask("t1", "Go", "trip")
        for gate, text in (("first", "be brief"), ("last", "one more thing")):
            await models.reached(gate)
            message: Message = {"type": "human", "id": f"steer-{gate}", "content": text}
            await client.system.intake.steer("t1", run_id, message)
            models.release(gate)
        run = await client.ended("t1", run_id)
        state = await client.state("t1")
        assert run.status == "success"
        texts = [m["content"] for m in state.messages if m["type"] != "tool"]
        assert texts == ["Go", "", "be brief", "All done.", "one more thing", "Also this."]
        assert [m["content"] for m in models.requests[1].body["messages"]][-1] == "be brief"
        assert_well_formed(models)
        await assert_replays(client, tmp_path)


async def test_a_message_that_joins_a_run_comes_with_the_list_of_its_files(tmp_path: Path) -> None:
    folder = thread_root(tmp_path, "ada", "t1") / "user-data" / "uploads"
    folder.mkdir(parents=True)
    turns = (Turn(tool_calls=(ToolCall("ring", {"city": "Oslo"}),), gate="first"), Turn(text="Done."))
    async with site(tmp_path, {"trip": Script(turns, count="total")}, tools=[ring]) as (client, models):
        await client.thread()
        run_id = await client.ask("t1", "Go", "trip")
        await models.reached("first")
        for name in ("sizes.txt", "other.txt"):
            (folder / name).write_text("12 cm")
        files = [{"filename": name} for name in ("sizes.txt", "gone.txt")]
        for number, extra in enumerate(({"files": files}, {})):
            message = {"type": "human", "id": f"m{number}", "content": "Add them up.", "additional_kwargs": extra}
            await client.system.intake.steer("t1", run_id, message)
        models.release("first")
        await client.ended("t1", run_id)
        with_files, without = models.requests[1].body["messages"][-2:]
        assert "- sizes.txt (0.0 KB)\n  Path: /mnt/user-data/uploads/sizes.txt" in with_files["content"]
        assert with_files["content"].endswith("</uploaded_files>\n\nAdd them up.")
        assert "other.txt" not in with_files["content"], "it did not come with the message"
        assert without["content"] == "Add them up."
        await assert_replays(client, tmp_path)


async def assert_replays(client: Client, home: Path) -> None:
    toolset = [*discovery.load_tools(), book, ring]
    source = ConfigSource(home / "config.yaml")
    lead = Lead(source, Silent(), lambda _: toolset, client.system.call, client.system.log, home)
    report = await replay(LogSource(client.system.log).read, "t1", None, lead.execute)
    assert report.divergence is None
    assert report.steps
