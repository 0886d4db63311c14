"""What runs used and cost: of a thread, and over all threads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from channels.http.deerflow import console
from channels.http.endpoints.call import Call
from channels.http.server.live import Services
from core.config.settings import Pricing
from core.events import ModelCompleted, RunCompleted, RunFailed, RunRolledBack, RunStarted
from core.identity.principal import Principal
from core.thread import usage
from core.thread.fold import fold
from core.thread.usage import Price, RunUsage, Tokens
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.gateway import OTHER, PRICED, Changeable
from tests.channels.http.story import ai, requested, started, tools_story

pytestmark = pytest.mark.anyio


@pytest.fixture
def config() -> Changeable:
    return Changeable(sections={"models": (PRICED, OTHER)})


def answer(run: str, *, read: int, wrote: int, cached: int = 0) -> ModelCompleted:
    used = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}
    return ModelCompleted(
        message=ai(f"m-{run}-{read}", "x", usage_metadata={**used, "input_token_details": {"cache_read": cached}})
    )


def on(model: str) -> RunStarted:
    return RunStarted(attempt=1, worker="w", lease=1, model=model)


async def spent(api: Api, worker: Worker) -> str:
    """Two ended runs (one undone) with the priced model, a failed one with the other, and one at work."""
    thread = await api.thread()
    first = await api.run(thread)
    await worker.write(
        thread,
        first,
        on("m"),
        answer("1", read=100, wrote=10, cached=40),
        answer("1", read=200, wrote=20),
        RunCompleted(),
    )
    undone = await api.run(thread)
    await worker.write(thread, undone, on("m"), answer("2", read=50, wrote=5), RunRolledBack())
    failed = await api.run(thread)
    await worker.write(
        thread, failed, on("family/n"), answer("3", read=30, wrote=3), RunFailed(error="E", text="broke")
    )
    working = await api.run(thread)
    await worker.write(thread, working, on("m"), answer("4", read=400, wrote=40))
    return thread


async def test_of_a_thread(api: Api, worker: Worker) -> None:
    thread = await spent(api, worker)
    found = await api.ask("GET", f"/threads/{thread}/token-usage")
    assert found == {
        "thread_id": thread,
        "total_input_tokens": 380,
        "total_output_tokens": 38,
        "total_tokens": 418,
        "total_runs": 3,
        "by_model": {"m": {"tokens": 385, "runs": 2}, "family/n": {"tokens": 33, "runs": 1}},
        "by_caller": {"lead_agent": 418, "subagent": 0, "middleware": 0},
        "context_usage": {"token_count": 440, "max_context_tokens": 1000, "percentage": 44.0},
        "total_cost": 0.00101,  # (310 * 2 + 40 * 1 + 35 * 10) / 1e6
        "currency": "EUR",
    }
    active = await api.ask("GET", f"/threads/{thread}/token-usage?include_active=true")
    assert (active["total_tokens"], active["total_runs"]) == (858, 4)
    assert active["by_model"]["m"] == {"tokens": 825, "runs": 3}


async def test_of_a_thread_that_used_nothing(api: Api) -> None:
    thread = await api.thread()
    found = await api.ask("GET", f"/threads/{thread}/token-usage")
    assert (found["total_tokens"], found["total_runs"], found["by_model"], found["total_cost"]) == (0, 0, {}, None)
    assert found["context_usage"] == {"token_count": 0, "max_context_tokens": None, "percentage": None}


def test_of_a_run() -> None:
    story = tools_story()
    state = fold(story.records)
    [run] = state.runs.values()
    assert usage.of_run(state, run) == RunUsage(agent=Tokens(calls=2), messages=5)
    story.add(requested(), started(), answer("2", read=4, wrote=3), run="run-2")
    state = fold(story.records)
    assert usage.of_run(state, state.runs["run-2"]) == RunUsage(agent=Tokens(input=4, output=3, calls=1), messages=1)
    story.add(requested(), run="run-3")
    state = fold(story.records)
    assert usage.of_run(state, state.runs["run-3"]) == RunUsage()


@pytest.mark.parametrize(
    "odd",
    [None, [], {"input_tokens": "5"}, {"input_tokens": -1, "output_tokens": True}, {"input_token_details": [1]}],
)
def test_odd_usage_counts_as_nothing(odd: Any) -> None:
    assert usage.tokens_of({"type": "ai", "usage_metadata": odd}) == Tokens(calls=1)


EURO, DOLLAR = Pricing(currency="EUR", input_per_million=2, output_per_million=10), Pricing(output_per_million=1)


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ({}, Price()),
        ({"free": Tokens(10, 10)}, Price()),
        ({"euro": Tokens(1_000_000, 100_000, 500_000)}, Price(3.0, "EUR")),
        ({"euro": Tokens(1_000_000), "free": Tokens(10, 10)}, Price(2.0, "EUR")),
        ({"euro": Tokens(1), "dollar": Tokens(1)}, Price()),
        ({"dollar": Tokens(7, 3, 100)}, Price(3e-06, "USD")),
    ],
)
def test_prices(used: dict[str, Tokens], expected: Price) -> None:
    assert usage.price(used, {"euro": EURO, "dollar": DOLLAR}) == expected


# ── the console ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def caught_up(services: Services) -> None:
    await services.views.reached(await services.log.last())


async def test_stats(api: Api, worker: Worker, services: Services) -> None:
    await spent(api, worker)
    await api.thread()
    await worker.system.intake.create_thread("theirs", user="somebody")
    await caught_up(services)
    assert await api.ask("GET", "/console/stats") == {
        "total_threads": 2,
        "total_runs": 3,
        "active_runs": 1,
        "runs_by_status": {"error": 1, "running": 1, "success": 1},
        "input_tokens": 780,
        "output_tokens": 78,
        "cache_read_tokens": 40,
        "total_tokens": 858,
        "llm_call_count": 5,
        "total_cost": 0.00221,
        "currency": "EUR",
    }
    assert (await api.ask("GET", "/console/stats?all_users=1"))["total_threads"] == 3


async def test_runs(api: Api, worker: Worker, services: Services) -> None:
    thread = await spent(api, worker)
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"title": "Named"}})
    await caught_up(services)
    whole = await api.ask("GET", "/console/runs")
    assert whole["has_more"] is False
    assert [run["status"] for run in whole["runs"]] == ["running", "error", "success"]
    working, failed, done = whole["runs"]
    assert (done["thread_id"], done["thread_title"], done["user_id"]) == (thread, "Named", "default")
    assert (done["model_name"], done["total_tokens"], done["llm_call_count"]) == ("m", 330, 2)
    assert (done["total_cost"], done["currency"], done["error"]) == (0.00086, "EUR", None)
    assert done["duration_seconds"] >= 0
    assert done["ended_at"] >= done["started_at"] >= done["created_at"]
    assert (failed["total_cost"], failed["currency"], failed["total_tokens"]) == (None, None, 33)
    assert "broke" in failed["error"]
    assert (working["ended_at"], working["duration_seconds"]) == (None, None)
    assert await api.ask("GET", "/console/runs?limit=2") == {"runs": whole["runs"][:2], "has_more": True}
    assert await api.ask("GET", "/console/runs?limit=2&offset=2") == {"runs": whole["runs"][2:], "has_more": False}
    assert await api.ask("GET", "/console/runs?status=error") == {"runs": [failed], "has_more": False}


async def test_usage_by_day_and_model(api: Api, worker: Worker, services: Services) -> None:
    await spent(api, worker)
    await caught_up(services)
    found = await api.ask("GET", "/console/usage?days=3")
    today = datetime.now(UTC).date()
    assert [day["date"] for day in found["days"]] == [(today - timedelta(days=back)).isoformat() for back in (2, 1, 0)]
    assert [day["total_tokens"] for day in found["days"]] == [0, 0, 858]
    assert [day["runs"] for day in found["days"]] == [0, 0, 3]
    assert [
        (model["model"], model["runs"], model["total_tokens"], model["cache_read_tokens"])
        for model in found["by_model"]
    ] == [
        ("family/n", 1, 33, 0),
        ("m", 3, 825, 40),
    ]
    assert (found["runs"], found["total_tokens"], found["total_cost"], found["currency"]) == (3, 858, 0.00221, "EUR")
    assert [model["total_cost"] for model in found["by_model"]] == [None, 0.00221]


@pytest.mark.parametrize(
    ("asking", "status"),
    [
        (Principal("ada"), 403),
        (Principal("ada", "admin", frozenset({"runs:read"})), 403),
        (Principal("ada", "admin", frozenset({"runs", "admin"})), 200),
    ],
)
async def test_only_an_administrator_sees_everybodys(
    api: Api, worker: Worker, services: Services, monkeypatch: pytest.MonkeyPatch, asking: Principal, status: int
) -> None:
    await spent(api, worker)
    await caught_up(services)
    monkeypatch.setattr(Call, "principal", property(lambda _: asking))
    assert (await api.ask("GET", "/console/stats"))["total_runs"] == 0
    assert await api.ask("GET", "/console/runs") == {"runs": [], "has_more": False}
    assert (await api.ask("GET", "/console/usage"))["total_tokens"] == 0
    for path in ("stats", "runs", "usage"):
        await api.ask("GET", f"/console/{path}?all_users=true", status=status)


async def test_days_outside_are_left_out(
    api: Api, worker: Worker, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spent(api, worker)
    await caught_up(services)
    later = datetime.now(UTC).date() + timedelta(days=2)
    monkeypatch.setattr(console, "_today", lambda: later)
    assert (await api.ask("GET", "/console/usage?days=2"))["total_tokens"] == 0
    assert (await api.ask("GET", "/console/usage?days=4"))["total_tokens"] == 858


@pytest.mark.parametrize(
    "path",
    [
        "runs?limit=0",
        "runs?limit=201",
        "runs?offset=-1",
        "runs?offset=99999999999",
        "runs?status=odd",
        "usage?days=0",
        "usage?days=367",
    ],
)
async def test_odd_questions_are_refused(api: Api, path: str) -> None:
    await api.ask("GET", f"/console/{path}", status=422)
