"""Stopping runs, and several runs on one thread."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from actors.agent.run import attempt as attempts
from actors.lead import Lead
from core.events import ModelFailed, ToolRequested
from core.thread.values import unanswered
from core.tools import ToolContext, tool
from tests.actors.agent.test_model import heard
from tests.actors.agent.test_tools import assert_well_formed, bash, tool_texts
from tests.support.model_server import Failure, Script, ToolCall, Turn
from tests.support.workers import Client, site, wait_for

pytestmark = pytest.mark.anyio

SLOW = [Turn(text="one two three four", gate="door", gate_after=2)]
LOOKS = [Turn(tool_calls=(ToolCall("ls", {"description": "l", "path": f"/mnt/user-data/{n}"}),)) for n in range(20)]
SLEEP = f"271.{os.getpid()}"
"""Seconds; nobody else on this machine sleeps for as long."""


def sleeping() -> list[int]:
    """Processes that sleep for as long as the tests' command does."""
    processes = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and SLEEP.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                processes.append(int(entry.name))
    return processes


async def order(client: Client) -> list[tuple[str, str]]:
    """The runs' beginnings and ends as they happened, as (run, type)."""
    ends = ("run.completed", "run.cancelled", "run.failed", "run.rolled_back")
    return [(str(r.run), r.type) for r in await client.records("t1") if r.type in ("run.started", *ends)]


async def test_cancelling_an_answer_keeps_what_was_said(tmp_path: Path) -> None:
    async with site(tmp_path, {"slow": SLOW, "quick": [Turn(text="Yes?")]}) as (client, models):
        await client.thread()
        async with heard(client) as previews:
            run_id = await client.ask("t1", "Count", "slow")

            async def shown() -> bool:
                return "".join(preview.text for preview in previews) == "one two "

            await wait_for(shown)
        await client.system.intake.cancel("t1", run_id)
        run = await client.ended("t1", run_id)
        cut = (await client.state("t1")).messages
        messages = await client.said("t1", "Still there?", "quick")
    assert run.status == "interrupted"
    assert [(m["type"], m["content"]) for m in cut] == [("human", "Count"), ("ai", "one two ")]
    assert cut[-1]["response_metadata"]["finish_reason"] == "cancelled"
    assert cut[-1]["id"] == previews[0].message
    assert models.requests[0].outcome == "abandoned"
    assert messages[-1]["content"] == "Yes?"


async def test_cancelling_a_command_ends_it(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(bash(f"sleep {SLEEP}"), bash("echo quick"))), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns, "next": [Turn(text="Yes?")]}) as (client, models):
        run_id = await client.ask(await client.thread(), "Sleep", "m")

        async def asleep() -> bool:
            return bool(sleeping()) and bool(tool_texts((await client.state("t1")).messages))

        await wait_for(asleep)
        await client.system.intake.cancel("t1", run_id)
        run = await client.ended("t1", run_id)
        assert sleeping() == []
        state = await client.state("t1")
        await client.said("t1", "Still there?", "next")
    assert run.status == "interrupted"
    assert not unanswered(state.messages)
    assert tool_texts(state.messages) == ["quick", "Error: cancelled by the user before it finished."]
    assert_well_formed(models)


async def test_rolling_back_restores_the_state(tmp_path: Path) -> None:
    turns = [Turn(text="Let me see.", tool_calls=(bash(f"sleep {SLEEP}"),)), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns, "quick": [Turn(text="Yes?")]}) as (client, _):
        before = await client.said(await client.thread(), "There?", "quick")
        run_id = await client.ask("t1", "Sleep", "m")
        await client.until("t1", lambda _, record: isinstance(record.event, ToolRequested))
        await client.system.intake.cancel("t1", run_id, "rollback")
        run = await client.ended("t1", run_id)
        assert sleeping() == []
        state = await client.state("t1")
        after = await client.said("t1", "Again?", "quick")
    assert run.status == "rolled_back"
    assert state.messages == before
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2


async def test_cancelling_what_waits(tmp_path: Path) -> None:
    async with site(tmp_path, {"slow": SLOW, "quick": [Turn(text="Yes?")]}) as (client, models):
        first = await client.ask(await client.thread(), "Count", "slow")
        second = await client.ask("t1", "Me too", "quick", multitask="enqueue")
        await models.reached("door")
        await client.system.intake.cancel("t1", second)
        models.release("door")
        assert (await client.ended("t1", first)).status == "success"
        assert (await client.ended("t1", second)).status == "interrupted"
        messages = (await client.state("t1")).messages
    assert [m["content"] for m in messages] == ["Count", "one two three four"]


async def test_queued_runs_come_in_order(tmp_path: Path) -> None:
    async with site(tmp_path, {"slow": SLOW, "quick": [Turn(text="Yes?")]}) as (client, models):
        runs = [await client.ask(await client.thread(), "0", "slow")]
        await models.reached("door")
        runs += [await client.ask("t1", str(n), "quick", multitask="enqueue") for n in (1, 2, 3)]
        assert [run.status for run in (await client.state("t1")).runs.values()] == ["running", *["pending"] * 3]
        models.release("door")
        for run_id in runs:
            assert (await client.ended("t1", run_id)).status == "success"
        happened = await order(client)
        messages = (await client.state("t1")).messages
    assert happened == [(run_id, what) for run_id in runs for what in ("run.started", "run.completed")]
    assert [m["content"] for m in messages if m["type"] == "human"] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("policy", "end"), [("interrupt", "run.cancelled"), ("rollback", "run.rolled_back")])
async def test_a_run_that_takes_over_waits_until_the_old_one_has_stopped(tmp_path: Path, policy: str, end: str) -> None:
    turns = [Turn(text="Let me see.", tool_calls=(bash(f"sleep {SLEEP}"),)), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns, "quick": [Turn(text="Yes?")]}) as (client, models):
        old = await client.ask(await client.thread(), "Sleep", "m")
        await client.until("t1", lambda _, record: isinstance(record.event, ToolRequested))
        new = await client.ask("t1", "Stop", "quick", multitask=policy)
        assert (await client.ended("t1", new)).status == "success"
        assert sleeping() == []
        happened = await order(client)
        messages = (await client.state("t1")).messages
    assert happened == [(old, "run.started"), (old, end), (new, "run.started"), (new, "run.completed")]
    kept = ["Sleep", "Let me see.", "Error: cancelled by the user before it finished."] if policy == "interrupt" else []
    assert [m["content"] for m in messages] == [*kept, "Stop", "Yes?"]
    assert_well_formed(models)


@pytest.mark.parametrize(("asked_for", "ceiling"), [(6, 1000), (900, 6)])
async def test_at_its_limit_of_calls_a_run_answers_once_more(tmp_path: Path, asked_for: int, ceiling: int) -> None:
    turns = Script((*LOOKS[:6], Turn(text="Six looks are done.")), count="total")
    async with site(tmp_path, {"m": turns}, runs={"max_recursion_limit": ceiling}) as (client, models):
        requested = await client.ask(await client.thread(), "Go", config={"recursion_limit": asked_for})
        run = await client.ended("t1", requested)
        messages = (await client.state("t1")).messages
    key = "config.recursion_limit of the request" if ceiling == 1000 else "runs.max_recursion_limit"
    text = f"Stopped: the agent made 6 model calls, the limit of this run (`{key}`)."
    assert (run.status, run.stopped_by, run.stopped, run.calls) == ("success", "call_limit", text, 7)
    assert messages[-1]["content"] == f"Six looks are done.\n\n{text}"
    assert [body.get("tool_choice") for body in (request.body for request in models.requests)] == [None] * 6 + ["none"]


@pytest.mark.parametrize(
    "last", [Turn(error=Failure(status=400)), Turn(tool_calls=LOOKS[0].tool_calls), Turn()], ids=str
)
async def test_if_the_last_call_gives_no_answer_a_sentence_is_it(tmp_path: Path, last: Turn) -> None:
    async with site(tmp_path, {"m": Script((LOOKS[0], last), count="total")}) as (client, models):
        requested = await client.ask(await client.thread(), "Go", config={"recursion_limit": 1})
        run = await client.ended("t1", requested)
        answer = (await client.state("t1")).messages[-1]
    assert (run.status, answer["content"], "tool_calls" in answer) == ("success", run.stopped, False)
    assert len(models.requests) == 2


async def test_a_model_call_that_takes_too_long_leaves_time_for_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lead, "run_seconds", 60.0)
    monkeypatch.setattr(attempts, "LAST_SHARE", 0.95)
    async with site(tmp_path, {"m": [Turn(text="Nothing is done.", gate="late")]}) as (client, models):
        requested = await client.ask(await client.thread(), "Go")
        await client.until("t1", lambda _, record: isinstance(record.event, ModelFailed))
        models.release("late")
        run = await client.ended("t1", requested)
        answer = (await client.state("t1")).messages[-1]
    text = "Stopped: the 60 seconds of this run are nearly over."
    assert (run.status, run.stopped_by, run.stopped) == ("success", "time_limit", text)
    assert answer["content"] == f"Nothing is done.\n\n{text}"
    assert [request.outcome for request in models.requests] == ["abandoned", "answered"]


async def test_a_tool_call_leaves_time_for_the_last_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lead, "run_seconds", 60.0)
    monkeypatch.setattr(attempts, "LAST_SHARE", 0.95)

    @tool(effect="pure")
    async def hang(ctx: ToolContext) -> str:
        """Never answers."""
        await asyncio.Event().wait()
        return ""

    turns = Script((Turn(tool_calls=(ToolCall("hang"),)), Turn(text="It hangs.")), count="total")
    async with site(tmp_path, {"m": turns}, tools=[hang]) as (client, _):
        run = await client.ended("t1", await client.ask(await client.thread(), "Go"))
        *_, result, answer = (await client.state("t1")).messages
    assert (run.status, run.stopped_by, answer["content"]) == ("success", "time_limit", f"It hangs.\n\n{run.stopped}")
    assert "Tool 'hang' had not finished" in result["content"]


async def test_a_thread_goes_on_after_a_run_that_was_stopped(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": Script(tuple(LOOKS), count="total"), "quick": [Turn(text="Yes?")]}) as (
        client,
        models,
    ):
        run = await client.ask(await client.thread(), "Go", config={"recursion_limit": 3})
        assert (await client.ended("t1", run)).stopped_by == "call_limit"
        await client.said("t1", "Still there?", "quick")
    assert_well_formed(models)


async def test_a_run_that_was_cancelled_before_anybody_started_it(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": SLOW}) as (client, models):
        first = await client.ask(await client.thread(), "Count")
        await models.reached("door")
        others = [await client.ask("t1", str(n), multitask="enqueue") for n in range(3)]
        await asyncio.gather(*(client.system.intake.cancel("t1", run_id) for run_id in others))
        await client.system.intake.cancel("t1", first)
        ended = [(await client.ended("t1", run_id)).status for run_id in (first, *others)]
    assert ended == ["interrupted"] * 4
    assert len(models.requests) == 1
