"""A disabled account gets no work, whatever begins it: each way is tried, and the open runs end."""

from __future__ import annotations

import traceback
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.offboarding import Offboarding
from actors.scheduler import Scheduler
from core.actor import Actor
from core.bus.endpoint import Endpoint
from core.errors import Refused
from core.events import Aggregate, Event, RunRequested, RunStarted
from core.identity.accounts import ACCOUNTS, AccountCreated, AccountDisabled, AccountEnabled
from core.ids import stamp
from core.runtime import system
from core.runtime.system import System
from core.user.launch import Launch
from core.user.schedules import KIND, Job, Plan, ScheduleCreated, SchedulePaused, Timing
from tests.support.model_server import Turn
from tests.support.nats import Nats, eventually
from tests.support.workers import site

USER = "ada"
REQUEST = RunRequested(input={"messages": [{"type": "human", "id": "m", "content": "hi"}]})


@pytest.fixture
async def running(nats: Nats, tmp_path: Path) -> AsyncIterator[System]:
    endpoint: Endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with system.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as running:
        actors: list[Actor[Any]] = [
            Scheduler(running.log, running.threads, running.intake),
            Offboarding(running.views, running.intake),
        ]
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(running.serve, actors, alone=True))
            yield running
            tasks.cancel_scope.cancel()


async def account(running: System, event: Event) -> None:
    tip = await running.log.tip(ACCOUNTS)
    [record] = await running.log.append(ACCOUNTS, [event], expected=tip, actor="test")

    async def heard() -> bool:
        return running.log.position >= record.seq

    await eventually(heard)


async def thread(running: System, user: str = USER) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    await running.intake.create_thread(name, user=user)
    return name


async def test_open_runs_end_and_new_ones_are_refused(running: System) -> None:
    await account(running, AccountCreated(user=USER, email="ada@example.org"))
    mine, hers = await thread(running), await thread(running, "bob")
    for name in (mine, hers):
        await running.intake.request_run(name, f"run-{name}", REQUEST)
    working = await thread(running)
    await running.intake.request_run(working, "run-w", REQUEST)
    started = RunStarted(attempt=1, worker="w", lease=1)
    await running.threads.decide(working, lambda _: [started], actor="lead", run="run-w")
    await account(running, AccountDisabled(user=USER))

    async def ended() -> bool:
        waiting = (await running.threads.load(mine)).runs[f"run-{mine}"]
        at_work = (await running.threads.load(working)).runs["run-w"]
        return not waiting.open and at_work.cancel is not None

    await eventually(ended)
    assert (await running.threads.load(hers)).runs[f"run-{hers}"].open
    for user in (USER, None):  # also for the system: a bot, a goal, an actor of somebody's
        with pytest.raises(Refused, match="disabled"):
            await running.intake.request_run(mine, "later", REQUEST, user=user)
    await account(running, AccountEnabled(user=USER))
    state, _ = await running.intake.request_run(mine, "again", REQUEST, user=USER)
    assert state.runs["again"].open


async def test_schedules_are_paused_at_their_next_time(running: System) -> None:
    await account(running, AccountCreated(user=USER, email="ada@example.org"))
    await account(running, AccountDisabled(user=USER))
    launch = Launch(running.log, running.threads, running.intake)
    soon = stamp(datetime.now(UTC) + timedelta(seconds=0.3))
    plan = Plan(timing=Timing(at=soon), job=Job(input=REQUEST.input))
    await launch.schedules.decide(USER, lambda _: [ScheduleCreated(schedule="s", plan=plan)], actor="http")

    async def paused() -> bool:
        return not (await launch.schedules.load(USER))["s"].enabled

    await eventually(paused)
    [event] = [
        record.event
        async for record in running.log.read(Aggregate(KIND, USER))
        if isinstance(record.event, SchedulePaused)
    ]
    assert isinstance(event, SchedulePaused)
    assert "disabled" in (event.reason or "")


async def test_a_run_that_is_claimed_later_fails(tmp_path: Path) -> None:
    """A goal goes on, and actors of others begin, by an event of their own, without the intake."""
    async with site(tmp_path, {"m": [Turn(text="never")]}) as (client, models):
        await client.thread()
        user = (await client.state("t1")).user
        await account(client.system, AccountCreated(user=user, email="ada@example.org"))
        await account(client.system, AccountDisabled(user=user))
        await client.system.threads.decide("t1", lambda _: [REQUEST], actor="goals", run="r")
        run = await client.ended("t1", "r")
    assert run.error is not None
    assert "disabled" in run.error.text
    assert models.requests == []


async def test_a_warm_run_asks_nats_nothing_about_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two questions before each run's first token made ten runs at a time 15 % later."""
    async with site(tmp_path, {"m": [Turn(text=text) for text in "abc"]}) as (client, _):
        await client.thread()
        await client.said("t1", "one")
        echoes, echo = [], client.system.bus.echo

        async def counted() -> None:
            echoes.append("".join(traceback.format_stack(limit=12)))
            await echo()

        monkeypatch.setattr(client.system.bus, "echo", counted)
        await client.said("t1", "two")
        assert [stack for stack in echoes if "standing.py" in stack] == []
        await account(client.system, AccountCreated(user="ada", email="ada@example.org"))
        await account(client.system, AccountDisabled(user="ada"))
        with pytest.raises(Refused, match="disabled"):
            await client.said("t1", "three")
