"""Goals: what follows from the end of a run, on a real log with a real model server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.goals import INTERVENED, Goals
from adapters.models.configured import Configured
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.config.load import ConfigSource
from core.events import (
    Event,
    GoalCleared,
    GoalContinued,
    GoalEvaluated,
    GoalPaused,
    GoalReached,
    GoalSet,
    RunRequested,
    ThreadCreated,
)
from core.thread import goals
from core.thread.fold import fold
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.records import log_of
from tests.support.workers import Client, configure, worker

pytestmark = pytest.mark.anyio

LOOK = Turn(tool_calls=(ToolCall("ls", {"description": "look", "path": "/mnt/user-data/workspace"}),))


def verdict(verdict: str, **more: str) -> Turn:
    fields = {"verdict": verdict, "reason": f"it is {verdict}", **more}
    return Turn(text="```json\n{" + ", ".join(f'"{key}": "{value}"' for key, value in fields.items()) + "}\n```")


WORKS = Script((LOOK, Turn(text="step one"), LOOK, Turn(text="step two"), LOOK, Turn(text="step three")), "total")
SCRIPTS: dict[str, Script | Sequence[Turn]] = {
    "talks": [Turn(text="Done what I can.")],
    "works": WORKS,
    "asks": [
        Turn(tool_calls=(ToolCall("ask_clarification", {"question": "?", "clarification_type": "missing_info"}),))
    ],
    "fails": [Turn(error=Failure(status=400))],
    "goes_on": Script((Turn(text="one"), Turn(text="two", gate="second")), "total"),
    "waits": [Turn(text="late", gate="late")],
    "met": [verdict("met")],
    "not_met": [verdict("not_met", blocker="missing_evidence")],
    "blocked": [verdict("blocked", blocker="needs_user_input")],
    "deep": [Turn(text='{"verdict": "met", "thought": ' + "[" * 10_000)],
    "chatty": [Turn(text="I think so!")],
    "broken": [Turn(error=Failure(status=500))],
}


def a_goal(**more: Any) -> GoalSet:
    fields = {"objective": "Otters counted", "by": "ada", "max_continuations": 8, "max_no_progress_continuations": 2}
    return GoalSet(**{**fields, **more})


@asynccontextmanager
async def place(home: Path, judge: str, **settings: Any) -> AsyncIterator[tuple[Client, ModelServer]]:
    """A worker that judges goals with one of the scripts."""
    async with ModelServer(SCRIPTS) as models, embedded.start(home) as nats:
        sections = {"model_name": judge, "timeout_seconds": 20, **settings}
        source = ConfigSource(configure(home / "config.yaml", models, goals=sections))
        actor = Goals(source, Configured(source))
        endpoint = Endpoint(nats.url, token=nats.token)
        async with worker(endpoint, home, home / "config.yaml", others=[actor]) as running:
            yield Client(running), models


async def begun(client: Client, model: str, goal: GoalSet | None = None) -> str:
    """A thread with a goal and a first run; the id of that."""
    await client.thread("t1")
    await client.system.threads.decide("t1", lambda _: [goal or a_goal()], actor="http")
    return await client.ask("t1", "Count the otters.", model)


async def over(client: Client) -> Sequence[Event]:
    """What happened to the goal, once it is paused or gone."""
    await client.until("t1", lambda state, record: isinstance(record.event, GoalPaused | GoalReached))
    await client.idle()
    return [r.event for r in await client.records("t1") if isinstance(r.event, goals.GoalChanged)][1:]


@pytest.mark.parametrize(
    ("judge", "model", "reason", "blocker"),
    [
        ("blocked", "talks", "it is blocked", "needs_user_input"),
        ("chatty", "talks", "the goal could not be judged", "none"),
        ("broken", "talks", "the goal could not be judged", "none"),
        ("deep", "talks", "the goal could not be judged", "none"),
        ("met", "asks", "the agent has asked the person something", "needs_user_input"),
        ("met", "fails", "the run failed", "run_failed"),
    ],
)
async def test_whatever_cannot_go_on_is_paused(
    tmp_path: Path, judge: str, model: str, reason: str, blocker: str
) -> None:
    async with place(tmp_path, judge) as (client, _):
        await begun(client, model)
        paused = (await over(client))[-1]
        assert isinstance(paused, GoalPaused)
        assert (paused.reason[: len(reason)], paused.blocker) == (reason, blocker)
        assert len(await client.records("t1", RunRequested)) == 1


async def test_a_goal_that_is_reached_is_gone(tmp_path: Path) -> None:
    async with place(tmp_path, "met") as (client, models):
        run = await begun(client, "talks")
        evaluated, reached = await over(client)
        assert isinstance(evaluated, GoalEvaluated)
        assert (evaluated.satisfied, evaluated.model, evaluated.tokens > 0) == (True, "met", True)
        assert reached == GoalReached(reason="it is met")
        assert (await client.state("t1")).goal is None
        [asked] = [request.body for request in models.requests if request.model == "met"]
        assert "<goal>\nOtters counted\n</goal>" in asked["messages"][1]["content"]
        assert "Assistant: Done what I can." in asked["messages"][1]["content"]
        assert "tools" not in asked
        assert run


async def test_a_goal_goes_on_until_its_limit(tmp_path: Path) -> None:
    async with place(tmp_path, "not_met") as (client, _):
        await begun(client, "works", a_goal(max_continuations=2))
        events = await over(client)
        kinds = [type(event) for event in events]
        assert kinds == [GoalEvaluated, GoalContinued] * 2 + [GoalEvaluated, GoalPaused]
        state = await client.state("t1")
        assert state.goal is not None
        shown = goals.goal_for_clients(state.goal)
        assert shown is not None
        about = {"blocker": "missing_evidence", "reason": "it is not_met", "satisfied": False}
        assert shown["last_evaluation"].items() >= about.items()
        assert (shown["status"], shown["continuation_count"], shown["no_progress_count"]) == ("paused", 2, 0)
        assert shown["pause_reason"] == "the limit of 2 continuations is reached"
        requests = await client.records("t1", RunRequested)
        evaluations = await client.records("t1", GoalEvaluated)
        assert [request.head.cause for request in requests[1:]] == [one.id for one in evaluations[:2]]
        hidden = [m for m in state.messages if (m.get("additional_kwargs") or {}).get("hide_from_ui")]
        assert ["it is not_met" in str(message["content"]) for message in hidden] == [True, True]


@pytest.mark.parametrize(
    ("goal", "reason", "continued"),
    [
        (a_goal(), "2 continuations in a row made no progress", 2),
        (a_goal(max_tokens=1), "the budget of 1 tokens is used up", 0),
    ],
    ids=["progress", "tokens"],
)
async def test_a_goal_does_not_go_on_for_ever(tmp_path: Path, goal: GoalSet, reason: str, continued: int) -> None:
    async with place(tmp_path, "not_met") as (client, _):
        await begun(client, "talks", goal)
        events = await over(client)
        assert events[-1] == GoalPaused(reason=reason)
        assert sum(isinstance(event, GoalContinued) for event in events) == continued


async def test_a_stop_pauses(tmp_path: Path) -> None:
    async with place(tmp_path, "not_met") as (client, models):
        run = await begun(client, "waits")
        await models.reached("late")
        await client.system.intake.cancel("t1", run)
        assert await over(client) == [GoalPaused(reason="the run was stopped")]


async def test_a_person_who_writes_meanwhile_pauses(tmp_path: Path) -> None:
    async with place(tmp_path, "not_met") as (client, models):
        await begun(client, "goes_on")
        await models.reached("second")  # by the continuation
        await client.ask("t1", "Wait!", "talks", multitask="enqueue")
        models.release("second")
        events = await over(client)
        assert events[-1] == GoalPaused(reason=INTERVENED)
        assert len(await client.records("t1", RunRequested)) == 3


async def test_the_last_of_several_runs_is_judged(tmp_path: Path) -> None:
    async with place(tmp_path, "met") as (client, models):
        await begun(client, "waits")
        await models.reached("late")
        last = await client.ask("t1", "And the voles.", "talks", multitask="enqueue")
        models.release("late")
        await over(client)
        [evaluated] = await client.records("t1", GoalEvaluated)
        assert evaluated.run == last


async def test_an_answer_of_the_person_goes_on(tmp_path: Path) -> None:
    async with place(tmp_path, "blocked") as (client, models):
        await begun(client, "talks")
        await over(client)
        configure(tmp_path / "config.yaml", models, goals={"model_name": "met"})
        await client.ask("t1", "There are five.", "talks")
        await client.until("t1", lambda state, record: isinstance(record.event, GoalReached))


def test_a_goal_is_folded_and_forgotten() -> None:
    log = log_of(ThreadCreated(user="ada"), GoalContinued(evaluation="x"), a_goal(), GoalCleared(by="ada"))
    assert fold(log[:2]).goal is None
    assert fold(log).goal is None
    state = fold(log_of(a_goal(), GoalPaused(reason="r")))
    assert goals.restated(state.goal) == [a_goal(), GoalPaused(reason="r")]
