"""Budgets: what stops a run, when the agent is warned, and what the person is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.agent.policies.limits.budgets import Budgets, BudgetSpent
from core.events import Json, ModelCompleted
from core.runs.ledger import Today
from core.thread.usage import Tokens
from tests.actors.agent.turns import Asked, model_call, turn
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.records import human
from tests.support.workers import site

pytestmark = pytest.mark.anyio

PRICED = {"models": [{"name": "m", "model": "m", "pricing": {"input_per_million": 1_000_000, "currency": "EUR"}}]}
CALM: Json = {"loop_detection": {"enabled": False}}


def used(identity: str, tokens: int) -> Json:
    usage = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
    return {"type": "ai", "id": identity, "content": "!", "usage_metadata": usage}


async def today() -> Today:
    return Today({"m": Tokens(5, 495)}, {"m": Tokens(90, 8910)})


@pytest.mark.parametrize(
    ("budgets", "complaint"),
    [
        ({"run": {"tokens": 101}}, None),
        ({"run": {"tokens": 100}}, "this run used 100 of 100 tokens (budgets.run.tokens)"),
        ({"run": {"cost": 100}}, "this run cost 100 of 100 (budgets.run.cost)"),
        ({"run": {"cost": 100.5}}, None),
        ({"thread": {"tokens": 101}}, None),
        ({"thread": {"tokens": 60}}, "this thread used 100 of 60 tokens (budgets.thread.tokens)"),
        ({"user_per_day": {"tokens": 501}}, None),
        ({"user_per_day": {"tokens": 500}}, "your runs of today used 500 of 500 tokens (budgets.user_per_day.tokens)"),
        ({"user_per_day": {"cost": 4.5}}, "your runs of today cost 5 of 4.5 (budgets.user_per_day.cost)"),
        ({"day": {"tokens": 9000}}, "everybody's runs of today used 9000 of 9000 tokens (budgets.day.tokens)"),
    ],
    ids=lambda value: None if value is None else str(value)[:40],
)
async def test_what_stops_the_next_call(budgets: Json, complaint: str | None) -> None:
    on = turn([human("h")], config={"budgets": budgets, **PRICED})
    on.today = today
    for number in range(2):
        await on.journal.model_completed(ModelCompleted(message=used(f"a{number}", 50)))
    handler = Asked()
    if complaint is None:
        await model_call(Budgets(on.config), on, handler)
        return
    with pytest.raises(BudgetSpent) as stopped:
        await model_call(Budgets(on.config), on, handler)
    assert str(stopped.value) == f"Stopped: {complaint}."
    assert not handler.requests
    assert stopped.value.message()["content"] == str(stopped.value)


async def test_a_run_is_warned_once_and_stopped_in_the_end(tmp_path: Path) -> None:
    turns = Script(
        (Turn(tool_calls=(ToolCall("ls", {"description": "look", "path": "/mnt/user-data"}),)),) * 40, count="total"
    )
    async with site(tmp_path, {"m": turns}, budgets={"run": {"tokens": 1000}, "warn": 0.5}, **CALM) as (client, models):
        run = await client.ended(await client.thread(), await client.ask("t1", "Go"))
        answers = [r.event for r in await client.records("t1", ModelCompleted)]
        state = await client.state("t1")
    assert (run.status, run.stopped_by, state.messages[-1]["content"]) == ("success", "budgets", run.stopped)
    assert "of 1000 tokens, and the next model call would need more (budgets.run.tokens)" in run.stopped
    decided = [[decision.action for decision in each.decisions] for each in answers if isinstance(each, ModelCompleted)]
    warned = [n for n, actions in enumerate(decided) if "warned" in actions]
    assert (len(warned), decided[-1]) == (1, ["stopped"])
    noted = [_notes(record.body) for record in models.requests]
    assert [n for n, notes in enumerate(noted) if notes] == [warned[0] + 1], "the model is told at its next call only"
    assert "Come to an end" in noted[warned[0] + 1][0]


async def test_at_the_end_of_a_token_budget_the_agent_answers_with_what_it_has(tmp_path: Path) -> None:
    look = Turn(text="Looking.", tool_calls=(ToolCall("ls", {"description": "d", "path": "/mnt/user-data"}),))
    budget = {"enabled": True, "max_tokens": 3000}
    async with site(tmp_path, {"m": Script((look,) * 50, count="total")}, token_budget=budget, **CALM) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    assert "tool_calls" not in messages[-1]
    assert messages[-1]["content"].startswith("Looking.\n\nStopped: this run used ")
    assert (
        "of 3000 tokens, and the next model call would need more (token_budget.max_tokens)" in messages[-1]["content"]
    )
    assert messages[-1]["response_metadata"]["finish_reason"] == "stop"


def _notes(body: dict[str, Any]) -> list[str]:
    return [str(message["content"]) for message in body["messages"] if "tokens of this run are used" in str(message)]


@pytest.mark.parametrize(
    ("whose", "said"), [("user_per_day", "your runs of today"), ("day", "everybody's runs of today")]
)
async def test_a_day_is_counted_over_all_threads(tmp_path: Path, whose: str, said: str) -> None:
    async with site(tmp_path, {"m": [Turn(text="Yes.")]}, budgets={whose: {"tokens": 1}}) as (client, _):
        await client.said(await client.thread("one"), "Hi")
        run = await client.ended(await client.thread("two"), await client.ask("two", "Hi"))
    assert run.error is not None
    assert run.error.error == "BudgetSpent"
    assert said in run.error.text
