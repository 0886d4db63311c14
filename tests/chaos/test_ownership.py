"""Workers are killed and frozen at random while they work: every run is done, once, and only by whoever owns it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.events import ModelCompleted, RunCompleted, RunRequested, RunStarted
from core.ids import uuid7
from core.runtime import system
from tests.support import warm
from tests.support.workers import LEASE, STEPS, Client

pytestmark = [pytest.mark.anyio, pytest.mark.long]

WORKERS, THREADS, RUNS = 4, 40, 150
CHAOS_SECONDS = 20.0
FROZEN_SECONDS = LEASE * 1.6
"""Long enough for the lease to end and somebody else to go on."""
PATIENCE = 150.0


class Crew:
    """Worker processes; one that dies is replaced."""

    def __init__(self, endpoint: Endpoint, home: Path) -> None:
        self._endpoint, self._home = endpoint, home
        self._count = 0
        self.members: list[warm.Process] = []
        self.frozen: list[warm.Process] = []
        self.kills = self.freezes = 0

    async def hire(self) -> None:
        self._count += 1
        views = self._home / f"views-{self._count}.db"
        with (self._home / f"worker-{self._count}.log").open("wb") as log:
            options = ("--url", self._endpoint.url, "--token", str(self._endpoint.token), "--views", str(views))
            start = partial(warm.start, "tests.support.workers", *options, "--lease", str(LEASE))
            process = await asyncio.to_thread(start, stdout=log.fileno(), stderr=log.fileno())
        self.members.append(process)

    async def kill(self, process: warm.Process) -> None:
        self.members.remove(process)
        process.kill()
        await process.waited()
        self.kills += 1

    async def freeze(self, process: warm.Process) -> None:
        """Stop a worker for longer than its lease, then let it go on as a zombie that believes it owns its runs."""
        self.frozen.append(process)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(FROZEN_SECONDS)
        finally:
            os.kill(process.pid, signal.SIGCONT)
            self.frozen.remove(process)
        self.freezes += 1

    def fenced(self) -> int:
        """How often a worker found that a run is not its own any more."""
        return sum(path.read_text().count("run handed over") for path in self._home.glob("worker-*.log"))


@asynccontextmanager
async def crew(endpoint: Endpoint, home: Path) -> AsyncIterator[Crew]:
    workers = Crew(endpoint, home)
    try:
        for _ in range(WORKERS):
            await workers.hire()
        yield workers
    finally:
        for process in workers.members:
            process.kill()
            await process.waited()


async def storm(workers: Crew, dice: random.Random) -> None:
    """Kill some and freeze others, for a bounded time; whoever was killed by then is replaced."""
    clock = asyncio.get_running_loop().time
    end = clock() + CHAOS_SECONDS

    async def kill() -> None:
        while clock() < end:
            await asyncio.sleep(dice.uniform(1.0, 3.0))
            await workers.kill(dice.choice([worker for worker in workers.members if worker not in workers.frozen]))
            await workers.hire()

    async def freeze() -> None:
        while clock() < end:
            await workers.freeze(dice.choice(workers.members))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill())
        tasks.create_task(freeze())


async def feed(client: Client, dice: random.Random) -> dict[str, str]:
    """Ask for runs all through the storm; their ids with their threads."""
    runs: dict[str, str] = {}
    for number in range(RUNS):
        thread_id = f"t{dice.randrange(THREADS)}"
        await client.thread(thread_id)
        run_id = uuid7()
        message = {"type": "human", "id": f"human-{run_id}", "content": str(number)}
        request = RunRequested(input={"messages": [message]}, multitask="enqueue")
        await client.system.intake.request_run(thread_id, run_id, request)
        runs[run_id] = thread_id
        await asyncio.sleep(CHAOS_SECONDS / RUNS)  # a pace, not a synchronisation
    return runs


async def test_runs_survive_their_workers(tmp_path: Path) -> None:
    dice = random.Random(20260822)
    async with embedded.start(tmp_path / "nats") as server:
        endpoint = Endpoint(server.url, token=server.token)
        async with (
            system.start(endpoint, tmp_path / "views.db", lease_seconds=LEASE, slots=1) as running,
            crew(endpoint, tmp_path) as workers,
        ):
            client = Client(running)
            feeding = asyncio.create_task(feed(client, dice))
            await storm(workers, random.Random(dice.random()))
            runs = await feeding
            async with asyncio.timeout(PATIENCE):
                for run_id, thread_id in runs.items():
                    await client.ended(thread_id, run_id, PATIENCE)
                await client.idle()
            alive = [process.poll() for process in workers.members]
            takeovers = 0
            for thread_id in set(runs.values()):
                takeovers += await assert_in_order(client, thread_id)
            fenced = workers.fenced()
    print(f"{workers.kills} kills, {workers.freezes} freezes, {takeovers} takeovers, {fenced} times fenced")
    assert alive == [None] * WORKERS, "a worker ended by itself"
    assert workers.kills > 2
    assert workers.freezes > 2
    assert takeovers > 0
    print(f"fenced: {fenced}")  # how many wake up in the middle of a run depends on the machine


async def assert_in_order(client: Client, thread_id: str) -> int:
    """Check one thread's log event by event; how often a run of it was taken over."""
    records = await client.records(thread_id)
    owners: dict[str, str] = {}
    steps: dict[str, list[int]] = {}
    ended: Counter[str] = Counter()
    takeovers = 0
    active: str | None = None
    for record in records:
        run_id = record.run or ""
        match record.event:
            case RunStarted(attempt=attempt, worker=worker):
                assert active in (None, run_id), f"{record}: two runs at a time"
                assert not ended[run_id], f"{record}: started after its end"
                assert owners.get(run_id) != worker or attempt > 1
                active = run_id
                owners[run_id] = worker
                takeovers += attempt > 1
            case ModelCompleted(message=message):
                assert active == run_id, f"{record}: not the active run"
                assert message["name"] == owners[run_id], f"{record}: written by {message['name']}, not the owner"
                steps.setdefault(run_id, []).append(int(message["content"]))
            case RunCompleted():
                assert active == run_id, f"{record}: not the active run"
                ended[run_id] += 1
                active = None
    requested = [str(record.run) for record in records if isinstance(record.event, RunRequested)]
    assert ended == Counter(requested)
    assert steps == {run_id: list(range(STEPS)) for run_id in requested}
    return takeovers
