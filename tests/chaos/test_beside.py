"""The actors beside runs are killed at random points: each thread gets one title, and each evaluation one run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.events import (
    Event,
    GoalContinued,
    GoalEvaluated,
    GoalSet,
    ModelCompleted,
    RunCompleted,
    RunRequested,
    RunStarted,
    ThreadTitled,
)
from core.ids import uuid7
from core.runtime import system
from tests.chaos.beside import READY
from tests.support import warm
from tests.support.model_server import ModelServer, Turn
from tests.support.records import ai, human
from tests.support.workers import LEASE, Client, configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]

THREADS, KILLS, CONTINUATIONS = 30, 8, 2
SCRIPTS = {
    "title": [Turn(text="Otter Homes", delay_ms=300)],
    "judge": [Turn(text='{"verdict": "not_met", "reason": "no otter was counted"}', delay_ms=40)],
}
GOAL = GoalSet(objective="Otters counted", by="ada", max_continuations=CONTINUATIONS, max_no_progress_continuations=9)


class Victim:
    """The one process of the actors; another one takes its place when it is killed."""

    def __init__(self, endpoint: Endpoint, home: Path, config: Path) -> None:
        self._endpoint, self._home, self._config = endpoint, home, config
        self._number = 0
        self._process: warm.Process | None = None

    async def start(self) -> None:
        """Returns when the actors are at work."""
        self._number += 1
        log, views = self._home / f"{self._number}.log", self._home / f"views-{self._number}.db"
        options = ("--url", self._endpoint.url, "--token", str(self._endpoint.token), "--views", str(views))
        with log.open("wb") as stream:
            begin = partial(warm.start, "tests.chaos.beside", *options, "--config", str(self._config))
            self._process = await asyncio.to_thread(begin, stdout=stream.fileno(), stderr=stream.fileno())

        async def ready() -> bool:
            return READY in log.read_text().splitlines()

        await wait_for(ready)

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.waited()


async def write(client: Client, thread: str, event: Event, **more: Any) -> None:
    await client.system.threads.decide(thread, lambda _: [event], actor="lead", **more)


async def perform(client: Client, thread: str, run: str) -> None:
    """Does a run as a worker would."""
    answer = ai(f"m-{run}", f"answer {run}")
    for event in RunStarted(attempt=1, worker="w", lease=1), ModelCompleted(message=answer), RunCompleted():
        await write(client, thread, event, run=run)


async def another_request(models: ModelServer, talks: Sequence[asyncio.Task[None]]) -> bool:
    """Returns True when a model is asked: for as long as it takes to answer, a kill loses the answer. Returns False
    when all talks have ended.
    """
    count = len(models.requests)

    async def came() -> bool:
        return len(models.requests) > count or all(talk.done() for talk in talks)

    await wait_for(came)
    return len(models.requests) > count


async def newest_run(client: Client, thread: str, count: int) -> str:
    """The id of the newest run, once there are so many."""
    state = await client.until(thread, lambda state, _: len(state.runs) >= count)
    return next(reversed(state.runs.values())).id


async def converse(client: Client, thread: str) -> None:
    """A thread with a goal, whose runs are done until the goal is paused."""
    await client.thread(thread)
    await write(client, thread, GOAL)
    request = RunRequested(input={"messages": [human(f"h-{thread}", "Where do otters live?")]})
    await client.system.intake.request_run(thread, uuid7(), request)
    for number in range(CONTINUATIONS + 1):
        await perform(client, thread, await newest_run(client, thread, number + 1))
    await client.until(thread, lambda state, _: bool(state.title and state.goal and state.goal.paused))


async def test_a_title_is_set_once_and_an_evaluation_continued_once(tmp_path: Path) -> None:
    dice = random.Random(20261122)
    async with ModelServer(SCRIPTS) as models, embedded.start(tmp_path / "nats") as server:
        title, judge = {"model_name": "title"}, {"model_name": "judge"}
        config = configure(tmp_path / "config.yaml", models, title=title, goals=judge)
        endpoint = Endpoint(server.url, token=server.token)
        victim = Victim(endpoint, tmp_path, config)
        async with system.start(endpoint, tmp_path / "views.db", lease_seconds=LEASE, slots=1) as running:
            client = Client(running)
            await victim.start()
            async with asyncio.TaskGroup() as tasks:
                talks = [tasks.create_task(converse(client, f"t{number}")) for number in range(THREADS)]
                for _ in range(KILLS):
                    if not await another_request(models, talks):
                        break
                    await asyncio.sleep(dice.uniform(0, 0.3))  # a random point, not a synchronisation
                    await victim.kill()
                    await victim.start()
            for number in range(THREADS):
                await assert_once(client, f"t{number}")
            await victim.kill()
        asked = [request.model for request in models.requests]
    needed = THREADS * (CONTINUATIONS + 2)
    print(f"{asked.count('title')} requests for {THREADS} titles, {asked.count('judge')} for evaluations")
    assert len(asked) > needed, "no kill came between a request and its record"


async def assert_once(client: Client, thread: str) -> None:
    assert len(await client.records(thread, ThreadTitled)) == 1
    evaluations = await client.records(thread, GoalEvaluated)
    assert len(evaluations) == CONTINUATIONS + 1
    causes = [evaluation.id for evaluation in evaluations[:CONTINUATIONS]]
    assert [record.head.cause for record in await client.records(thread, GoalContinued)] == causes
    assert [record.head.cause for record in await client.records(thread, RunRequested)][1:] == causes
