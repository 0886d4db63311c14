"""What the actors beside runs use counts for limits of a day, once, and only where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.spending import Spending
from core.events import Event, GoalEvaluated, QuestionsSuggested, ThreadTitled
from core.ids import now
from core.memory.facts import MemoryExtracted, memory_id
from core.runs.ledger import Ledgers
from tests.actors.memory.test_injection import remember
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio


def usage(tokens: int) -> dict[str, Any]:
    return {"input_tokens": tokens, "output_tokens": tokens, "total_tokens": 2 * tokens}


OF_THREAD: list[Event] = [
    ThreadTitled(title="Otters", model="m", usage=usage(1)),
    GoalEvaluated(satisfied=False, blocker="none", reason="", model="m", usage=usage(10)),
    QuestionsSuggested(suggestions=[], model="n", request="", usage=usage(100)),
    ThreadTitled(title="By a person"),
]
OF_MEMORY = MemoryExtracted(thread="t1", upto=1, model="m", usage={"input_tokens": 1000, "output_tokens": 1000})


async def spend(client: Client) -> dict[str, int]:
    await client.system.threads.decide(await client.thread(), lambda _: OF_THREAD, actor="test")
    await remember(client, OF_MEMORY, agent="nurse")
    await client.idle()
    used = await Ledgers(client.system.log).used("ada", now()[:10])
    return {model: tokens.total for model, tokens in used.items()}


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ({"limits": {"tokens_per_day": 10_000}}, {"m": 2 * 1011, "n": 200}),
        ({"budgets": {"day": {"tokens": 10_000}}}, {"m": 2 * 1011, "n": 200}),
        ({"budgets": {"run": {"tokens": 10_000}}}, {}),
    ],
    ids=["limit", "budget", "none"],
)
async def test_a_limit_of_the_day_counts_everything(tmp_path: Path, limit: Any, used: dict[str, int]) -> None:
    others = [lambda running, source: Spending(source, running.log)]
    async with site(tmp_path, {"m": []}, others=others, **limit) as (client, _):
        assert await spend(client) == used
    assert memory_id("ada", "nurse") != "ada", "the memory of an agent is its user's"


async def test_a_title_may_use_up_the_day(tmp_path: Path) -> None:
    others = [lambda running, source: Spending(source, running.log)]
    async with site(tmp_path, {"m": []}, others=others, budgets={"user_per_day": {"tokens": 50}}) as (client, models):
        await spend(client)
        run = await client.ended("t1", await client.ask("t1", "Hello", "m"))
    assert run.error is not None
    assert "budgets.user_per_day.tokens" in run.error.text
    assert models.requests == []
