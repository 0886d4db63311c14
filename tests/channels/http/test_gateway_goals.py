"""The goal of a thread over HTTP."""

from __future__ import annotations

import pytest

from tests.channels.http.conftest import Api, Worker

pytestmark = pytest.mark.anyio


async def test_the_routes_of_a_goal(api: Api, worker: Worker) -> None:
    assert await api.ask("GET", "/threads/t/goal") == {"goal": None}
    body = {"objective": " Otters counted ", "max_continuations": 3}
    goal = (await api.ask("PUT", "/threads/t/goal", body))["goal"]
    assert goal == {
        "objective": "Otters counted",
        "status": "active",
        "created_at": goal["created_at"],
        "updated_at": goal["created_at"],
        "continuation_count": 0,
        "max_continuations": 3,
        "no_progress_count": 0,
        "max_no_progress_continuations": 2,
    }
    assert await api.ask("GET", "/threads/t/goal") == {"goal": goal}
    run = await api.run("t")
    assert (await api.ask("PUT", "/threads/t/goal", body, status=409))["detail"].startswith("Thread t has a run")
    await worker.perform("t", run)
    values = (await api.ask("GET", "/threads/t/state"))["values"]
    assert values["goal"] == goal
    page = await api.ask("GET", "/threads/t/messages/page?limit=1")
    assert (page["goal"], page["title"]) == (goal, values.get("title"))
    assert (await api.ask("PUT", "/threads/t/goal", {**body, "max_continuations": 99}))["goal"][
        "max_continuations"
    ] == 8
    for wrong in ({}, {"objective": ""}, {"objective": " "}, {"objective": "x" * 4001}, {"objective": 5}):
        await api.ask("PUT", "/threads/t/goal", wrong, status=422)
    assert await api.ask("DELETE", "/threads/t/goal") == {"goal": None}
    assert await api.ask("GET", "/threads/t/goal") == {"goal": None}
    await api.ask("DELETE", "/threads/never/goal", status=404)


async def test_the_goals_of_others_do_not_exist(api: Api, worker: Worker) -> None:
    await worker.system.intake.create_thread("theirs", user="somebody")
    for method in ("GET", "PUT", "DELETE"):
        await api.ask(method, "/threads/theirs/goal", {"objective": "x"}, status=404)
