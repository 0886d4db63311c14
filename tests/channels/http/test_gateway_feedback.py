"""Feedback: one opinion on a run, any on its messages."""

from __future__ import annotations

from typing import Any

import pytest

from core.events import RunRolledBack
from core.runs import commands
from tests.channels.http.conftest import Api, Worker

pytestmark = pytest.mark.anyio


async def run_of(api: Api, worker: Worker) -> tuple[str, str, str]:
    thread = await api.thread()
    run = await api.run(thread)
    await worker.perform(thread, run)
    return thread, run, f"/threads/{thread}/runs/{run}/feedback"


async def test_an_opinion_is_given_changed_and_taken_back(api: Api, worker: Worker) -> None:
    thread, run, path = await run_of(api, worker)
    given = await api.ask("PUT", path, {"rating": 1, "comment": "good"})
    assert {name: given[name] for name in given if name not in ("feedback_id", "created_at")} == {
        "run_id": run,
        "thread_id": thread,
        "user_id": "default",
        "message_id": None,
        "rating": 1,
        "comment": "good",
    }
    assert given["created_at"].endswith("+00:00")
    changed = await api.ask("PUT", path, {"rating": -1})
    assert (changed["feedback_id"], changed["rating"], changed["comment"]) == (given["feedback_id"], -1, None)
    assert await api.ask("GET", path) == [changed]
    assert await api.ask("GET", f"/runs/{run}/feedback") == [changed]
    assert await api.ask("DELETE", path) == {"success": True}
    assert await api.ask("GET", path) == []
    await api.ask("DELETE", path, status=404)


async def test_messages_have_opinions_of_their_own(api: Api, worker: Worker) -> None:
    _, run, path = await run_of(api, worker)
    whole = await api.ask("PUT", path, {"rating": 1})
    first = await api.ask("POST", path, {"rating": -1, "message_id": f"m-{run}", "comment": "wrong"})
    second = await api.ask("POST", path, {"rating": -1})
    assert await api.ask("GET", path) == [whole, first, second]
    newest = await api.ask("PUT", path, {"rating": -1, "comment": "indeed"})
    assert newest["feedback_id"] == second["feedback_id"]
    assert first["message_id"] == f"m-{run}"
    stats = {"run_id": run, "total": 3, "positive": 1, "negative": 2}
    assert await api.ask("GET", f"{path}/stats") == stats
    assert await api.ask("DELETE", f"{path}/{first['feedback_id']}") == {"success": True}
    await api.ask("DELETE", f"{path}/{first['feedback_id']}", status=404)
    assert await api.ask("GET", f"{path}/stats") == {**stats, "total": 2, "negative": 1}
    assert await api.ask("DELETE", path) == {"success": True}
    assert await api.ask("GET", path) == []


async def test_feedback_is_of_its_run(api: Api, worker: Worker) -> None:
    thread, _, path = await run_of(api, worker)
    other = await api.run(thread)
    await worker.perform(thread, other)
    given = await api.ask("PUT", path, {"rating": 1})
    elsewhere = f"/threads/{thread}/runs/{other}/feedback"
    assert await api.ask("GET", elsewhere) == []
    await api.ask("DELETE", f"{elsewhere}/{given['feedback_id']}", status=404)
    await api.ask("DELETE", elsewhere, status=404)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"rating": 0}, 400),
        ({"rating": 2}, 400),
        ({"rating": 10**30}, 400),
        ({"rating": True}, 422),
        ({"rating": "1"}, 422),
        ({}, 422),
        ([], 422),
        ({"rating": 1, "comment": "x" * 10_001}, 422),
        ({"rating": 1, "comment": 5}, 422),
    ],
)
async def test_odd_opinions_are_refused(api: Api, worker: Worker, body: Any, status: int) -> None:
    _, _, path = await run_of(api, worker)
    await api.ask("PUT", path, body, status=status)
    await api.ask("POST", path, body, status=status)
    assert await api.ask("GET", path) == []


async def test_opinions_on_a_run_are_bounded(api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MOST_RATINGS", 3)
    _, _, path = await run_of(api, worker)
    await api.ask("PUT", path, {"rating": 1})
    for _ in range(2):
        await api.ask("POST", path, {"rating": 1, "message_id": "m"})
    await api.ask("POST", path, {"rating": 1}, status=409)
    assert (await api.ask("PUT", path, {"rating": -1}))["rating"] == -1


async def test_there_is_no_feedback_on_what_is_not_there(api: Api, worker: Worker) -> None:
    thread, run, _ = await run_of(api, worker)
    undone = await api.run(thread)
    await worker.start(thread, undone)
    await worker.write(thread, undone, RunRolledBack())
    await worker.system.intake.create_thread("theirs", user="somebody")
    for place in (f"/threads/{thread}/runs/never", f"/threads/{thread}/runs/{undone}", f"/threads/theirs/runs/{run}"):
        await api.ask("GET", f"{place}/feedback", status=404)
        await api.ask("GET", f"{place}/feedback/stats", status=404)
        await api.ask("PUT", f"{place}/feedback", {"rating": 1}, status=404)
        await api.ask("POST", f"{place}/feedback", {"rating": 1}, status=404)
        await api.ask("DELETE", f"{place}/feedback", status=404)
        await api.ask("DELETE", f"{place}/feedback/x", status=404)
    await api.ask("GET", "/runs/never/feedback", status=404)
