"""Scheduled tasks over HTTP: DeerFlow's face of the schedules."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from core.events import RunCancelled, RunCompleted, RunFailed
from core.identity.principal import LOCAL
from core.ids import assistant_id
from core.runtime.system import System
from core.thread.state import ThreadState
from core.user import schedules
from core.user.launch import BUSY, Launch
from core.user.schedules import Job, Plan, ScheduleCreated, Timing
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import started

pytestmark = pytest.mark.anyio

CRON: Any = {
    "title": "Report",
    "prompt": "Write the report",
    "schedule_type": "cron",
    "schedule_spec": {"cron": "0 9 * * *"},
    "timezone": "Asia/Shanghai",
    "context_mode": "fresh_thread_per_run",
}


def once(**ahead: float) -> Any:
    at = (datetime.now(UTC) + timedelta(**ahead)).isoformat()
    return {**CRON, "schedule_type": "once", "schedule_spec": {"run_at": at}}


async def make(api: Api, **body: Any) -> Any:
    return await api.ask("POST", "/scheduled-tasks", {**CRON, **body})


async def test_a_task(api: Api) -> None:
    task = await make(api)
    due = datetime.fromisoformat(task["next_run_at"])
    assert (due.hour, due.minute) == (1, 0)
    assert {name: task[name] for name in CRON} == CRON
    assert (task["status"], task["overlap_policy"], task["run_count"]) == ("enabled", "skip", 0)
    assert (task["user_id"], task["assistant_id"], task["thread_id"]) == (LOCAL.user, assistant_id("lead_agent"), None)
    assert [task[name] for name in ("last_run_at", "last_run_id", "last_thread_id", "last_error")] == [None] * 4
    path = f"/scheduled-tasks/{task['id']}"
    assert await api.ask("GET", path) == task
    assert await api.ask("GET", "/scheduled-tasks") == [task]
    assert await api.ask("GET", f"{path}/runs") == []
    body = {"title": "Other", "prompt": "Another", "schedule_spec": {"cron": "30 9 * * *"}, "timezone": "UTC"}
    changed = await api.ask("PATCH", path, body)
    assert {name: changed[name] for name in body} == body
    assert datetime.fromisoformat(changed["next_run_at"]).strftime("%H:%M") == "09:30"
    paused = await api.ask("POST", f"{path}/pause")
    assert (paused["status"], paused["next_run_at"]) == ("paused", None)
    assert await api.ask("POST", f"{path}/pause") == paused
    resumed = await api.ask("POST", f"{path}/resume")
    assert (resumed["status"], resumed["next_run_at"]) == ("enabled", changed["next_run_at"])
    assert await api.ask("DELETE", path) == {"id": task["id"], "deleted": True}
    for method, rest in (("GET", ""), ("GET", "/runs"), ("DELETE", ""), ("POST", "/pause"), ("POST", "/trigger")):
        await api.ask(method, path + rest, status=404)


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [
        (RunCompleted(), "success", None),
        (RunFailed(error="E", text="broke"), "failed", "broke"),
        (RunCancelled(), "interrupted", None),
    ],
)
async def test_a_run_of_a_task(api: Api, worker: Worker, ending: Any, status: str, error: str | None) -> None:
    task = await api.ask("POST", "/scheduled-tasks", once(hours=1))
    path = f"/scheduled-tasks/{task['id']}"
    triggered = await api.ask("POST", f"{path}/trigger")
    thread, run = triggered["thread_id"], triggered["run_id"]
    assert triggered == {"id": task["id"], "triggered": True, "thread_id": thread, "run_id": run}
    [row] = await api.ask("GET", f"{path}/runs")
    assert (row["status"], row["trigger"], row["started_at"], row["finished_at"]) == ("queued", "manual", None, None)
    assert (row["run_id"], row["thread_id"], row["task_id"]) == (run, thread, task["id"])
    assert (await api.ask("POST", f"{path}/trigger", status=409))["detail"].endswith("has an active run")
    await worker.write(thread, run, started())
    assert (await api.ask("GET", path))["status"] == "running"
    assert (await api.ask("GET", f"{path}/runs"))[0]["started_at"]
    await worker.write(thread, run, ending)
    now = await api.ask("GET", path)
    assert (now["status"], now["last_run_id"], now["last_thread_id"]) == ("enabled", run, thread)
    assert (now["last_error"], now["run_count"], now["next_run_at"]) == (error, 1, task["next_run_at"])
    [row] = await api.ask("GET", f"{path}/runs")
    assert (row["status"], row["error"], bool(row["finished_at"])) == (status, error, True)
    asked = (await api.ask("GET", f"/threads/{thread}/runs/{run}"))["kwargs"]
    assert asked["input"]["messages"][0]["content"] == CRON["prompt"]
    assert asked["context"] == {"non_interactive": True, "user_id": LOCAL.user}
    assert [one["id"] for one in await api.ask("GET", f"/threads/{thread}/scheduled-tasks")] == [task["id"]]


@pytest.mark.parametrize(
    ("ending", "status"), [(RunCompleted(), "completed"), (RunFailed(error="E", text="broke"), "failed")]
)
async def test_a_single_time_is_over(api: Api, system: System, worker: Worker, ending: Any, status: str) -> None:
    task = await api.ask("POST", "/scheduled-tasks", once(seconds=-1))
    path, launch = f"/scheduled-tasks/{task['id']}", Launch(system.log, system.threads, system.intake)
    await launch.fire(LOCAL.user, datetime.now(UTC))
    assert (await api.ask("GET", path))["status"] == "running"
    [row] = await api.ask("GET", f"{path}/runs")
    assert (row["status"], row["trigger"], row["scheduled_for"]) == ("queued", "scheduled", task["next_run_at"])
    await launch.launch(LOCAL.user, task["id"], row["run_id"])
    await worker.write(row["thread_id"], row["run_id"], started(), ending)
    now = await api.ask("GET", path)
    assert (now["status"], now["next_run_at"]) == (status, None)


async def test_what_comes_due_while_a_run_is_going_on_is_skipped(api: Api, system: System) -> None:
    task = await make(api)
    path, launch = f"/scheduled-tasks/{task['id']}", Launch(system.log, system.threads, system.intake)
    await api.ask("POST", f"{path}/trigger")
    await launch.fire(LOCAL.user, datetime.now(UTC) + timedelta(days=2))
    rows = await api.ask("GET", f"{path}/runs")
    assert [(row["status"], row["error"], row["run_id"] is None) for row in rows] == [
        ("skipped", BUSY, True),
        ("queued", None, False),
    ]
    assert await api.ask("GET", f"{path}/runs?limit=1&offset=1") == rows[1:]
    assert (await api.ask("GET", path))["last_error"] == BUSY


async def test_on_a_thread(api: Api, system: System) -> None:
    thread, other = await api.thread(), await api.thread()
    task = await make(api, context_mode="reuse_thread", thread_id=thread)
    assert (task["context_mode"], task["thread_id"]) == ("reuse_thread", thread)
    assert [one["id"] for one in await api.ask("GET", f"/threads/{thread}/scheduled-tasks")] == [task["id"]]
    assert await api.ask("GET", f"/threads/{other}/scheduled-tasks") == []
    path = f"/scheduled-tasks/{task['id']}"
    assert (await api.ask("POST", f"{path}/trigger"))["thread_id"] == thread
    fresh = await api.ask("PATCH", path, {"context_mode": "fresh_thread_per_run"})
    assert (fresh["context_mode"], fresh["thread_id"]) == ("fresh_thread_per_run", None)
    back = await api.ask("PATCH", path, {"context_mode": "reuse_thread", "thread_id": other})
    assert (back["thread_id"], back["title"]) == (other, task["title"])
    await system.intake.erase(other, by=LOCAL.user)
    await system.intake.erase(thread, by=LOCAL.user)
    assert (await api.ask("POST", f"{path}/trigger", status=502))["detail"] == f"Thread {other} not found"
    failed = await api.ask("GET", path)
    assert (failed["status"], failed["last_error"]) == ("paused", f"Thread {other} not found")
    rows = await api.ask("GET", f"{path}/runs")
    assert [(row["status"], row["error"]) for row in rows] == [
        ("failed", f"Thread {other} not found"),
        ("interrupted", "Its thread is gone"),
    ]


async def test_tasks_and_crons_are_the_same_things(api: Api) -> None:
    task = await make(api)
    cron = await api.ask("POST", "/runs/crons", {"schedule": "5 5 * * *", "input": {"messages": ["cron"]}})
    await api.ask("POST", "/scheduled-tasks", once(hours=1))
    assert await api.ask("POST", "/runs/crons/count", {}) == 2
    shown = {one["id"]: one for one in await api.ask("GET", "/scheduled-tasks")}
    assert len(shown) == 3
    assert (shown[cron["cron_id"]]["title"], shown[cron["cron_id"]]["prompt"]) == ("5 5 * * *", "cron")
    same = await api.ask("PATCH", f"/runs/crons/{task['id']}", {"schedule": "1 1 * * *"})
    assert same["payload"]["context"] == {"non_interactive": True}
    now = await api.ask("GET", f"/scheduled-tasks/{task['id']}")
    assert (now["schedule_spec"], now["prompt"], now["overlap_policy"]) == (
        {"cron": "1 1 * * *"},
        CRON["prompt"],
        "skip",
    )
    changed = await api.ask("PATCH", f"/scheduled-tasks/{task['id']}", {**once(hours=2)})
    assert (changed["schedule_type"], changed["status"]) == ("once", "enabled")
    await api.ask("GET", f"/runs/crons/{task['id']}", status=404)


async def test_a_time_without_a_zone_is_in_the_zone_of_the_task(api: Api) -> None:
    day = (datetime.now(UTC) + timedelta(days=10)).date()
    spec = {"run_at": f"{day}T09:00:00"}
    task = await make(api, schedule_type="once", schedule_spec=spec)
    assert task["next_run_at"] == f"{day}T01:00:00.000000+00:00"


@pytest.mark.parametrize(
    ("body", "place", "status"),
    [
        ({"title": " "}, "title: ", 422),
        ({"title": "x" * 201}, "$.title", 422),
        ({"prompt": ""}, "prompt: ", 422),
        ({"schedule_spec": {}}, "schedule_spec.cron: ", 422),
        ({"schedule_spec": {"cron": "x"}}, "schedule_spec.cron: ", 422),
        ({"schedule_spec": {"cron": 5}}, "schedule_spec.cron: ", 422),
        ({"schedule_type": "once", "schedule_spec": {"cron": "* * * * *"}}, "schedule_spec.run_at: ", 422),
        ({"schedule_type": "once", "schedule_spec": {"run_at": "2026-01-01T00:00:00"}}, "has passed", 422),
        ({"schedule_type": "interval"}, "$.schedule_type", 422),
        ({"timezone": "Nowhere"}, "timezone: ", 422),
        ({"context_mode": "reuse_thread"}, "thread_id: ", 422),
        ({"context_mode": "reuse_thread", "thread_id": "unknown"}, "not found", 404),
        ({"context_mode": "reuse_thread", "thread_id": "a b"}, "thread_id: ", 422),
        ({"assistant_id": "nobody"}, "assistant_id: ", 422),
    ],
)
async def test_what_is_refused(api: Api, body: Any, place: str, status: int) -> None:
    assert place in (await api.ask("POST", "/scheduled-tasks", {**CRON, **body}, status=status))["detail"]
    task = await make(api)
    assert place in (await api.ask("PATCH", f"/scheduled-tasks/{task['id']}", body, status=status))["detail"]
    assert await api.ask("GET", f"/scheduled-tasks/{task['id']}") == task


async def test_other_peoples_threads_and_tasks_do_not_exist(api: Api, system: System) -> None:
    await system.intake.create_thread("bobs", user="bob")
    await api.ask("GET", "/threads/bobs/scheduled-tasks", status=404)
    await api.ask("POST", "/scheduled-tasks", {**CRON, "context_mode": "reuse_thread", "thread_id": "bobs"}, status=404)
    job = Job(input={"messages": []})
    theirs = ScheduleCreated(schedule="theirs", plan=Plan(timing=Timing(cron="* * * * *"), job=job))
    await schedules.aggregates(system.log).decide("bob", lambda _: [theirs], actor="http")
    assert await api.ask("GET", "/scheduled-tasks") == []
    await api.ask("POST", "/scheduled-tasks/theirs/trigger", status=404)
    await api.ask("PATCH", "/runs/crons/theirs", {"enabled": False}, status=404)


async def test_threads_of_tasks_are_read_together(api: Api, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list waits for the slowest of them, not for one after the other."""
    for _ in range(3):
        task = await make(api)
        await api.ask("POST", f"/scheduled-tasks/{task['id']}/trigger")
    load, waiting, together = system.threads.load, 0, asyncio.Event()

    async def slow(thread_id: str, **more: Any) -> ThreadState:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            together.set()
        async with asyncio.timeout(60):
            await together.wait()
        return await load(thread_id, **more)

    monkeypatch.setattr(system.threads, "load", slow)
    tasks = await api.ask("GET", "/scheduled-tasks")
    assert [one["status"] for one in tasks] == ["running"] * 3
