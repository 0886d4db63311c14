"""Two versions beside each other on one log: no run is lost, and none goes on without facts that its process cannot
read.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from io import BytesIO
from pathlib import Path

import anyio
import msgspec
import pytest

from core.actor import Actor, Context
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.bus.queue import Hint, Wakeup
from core.events import RunStarted, ThreadCreated, thread
from core.ids import now, uuid7
from core.runs import run as run_module
from core.runtime import letters as dlq
from core.runtime import system
from core.runtime.system import System
from core.runtime.vitals import overview
from core.testing import acting
from tests.support.nats import eventually
from tests.support.workers import Client, Steps, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]

RELEASE = "b3ffa2d1"
"""The commit of the version before this one."""
RUNS, KILLS = 8, 2
NOTED = "step.noted"
"""The type that a worker with `--notes` adds, and this process does not know."""
ROOT, WORKER = Path(__file__).parents[2], Path(__file__).with_name("worker.py")


@asynccontextmanager
async def installation(home: Path, slots: int = 1) -> AsyncIterator[tuple[Client, Endpoint]]:
    async with embedded.start(home / "nats") as server:
        endpoint = Endpoint(server.url, token=server.token)
        async with system.start(endpoint, home / "views.db", lease_seconds=2, slots=slots) as running:
            yield Client(running), endpoint


class Process:
    """A worker in a process of its own, started again after each kill."""

    def __init__(self, endpoint: Endpoint, home: Path, name: str, *more: str, tree: Path = ROOT) -> None:
        options = ["--url", endpoint.url, "--token", str(endpoint.token), *more]
        self._command = [sys.executable, str(WORKER), *options]
        self._views, self._tree, self._number = home / name, tree, 0
        self.pids: set[str] = set()

    def start(self) -> None:
        self._number += 1
        command = [*self._command, "--views", f"{self._views}-{self._number}.db"]
        self._process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(self._tree)})
        self.pids.add(str(self._process.pid))

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@asynccontextmanager
async def processes(*them: Process) -> AsyncIterator[None]:
    for process in them:
        process.start()
    try:
        yield
    finally:
        for process in them:
            process.kill()


async def converse(client: Client, *kills: Process) -> None:
    """Asks for runs, kills each process now and then while they are done, and sees all of them complete."""
    runs: dict[str, str] = {}
    for part in range(KILLS + 1):
        await wait_for(partial(_at_work, client, {process.pid for process in kills}))
        for number in range(RUNS):
            identity = await client.thread(f"t{part}-{number}")
            runs[identity] = await client.ask(identity, "go")
        if part < KILLS:
            await wait_for(partial(_ended, client, runs, (part + 1) * RUNS - RUNS // 2))
            for process in kills:
                process.kill()
                process.start()
    for identity, run_id in runs.items():
        assert (await client.ended(identity, run_id)).status == "success", identity


async def _at_work(client: Client, pids: set[int]) -> bool:
    return pids <= {process.pid for process in (await overview(client.system.bus, 0)).processes if process.actors}


async def _ended(client: Client, runs: dict[str, str], count: int) -> bool:
    states = [await client.system.threads.load(identity) for identity in runs]
    return sum(not state.runs[run].open for state, run in zip(states, runs.values(), strict=True)) >= count


async def test_beside_a_newer_version(tmp_path: Path) -> None:
    """After the first fact that the older process cannot read, every event of the run is of the newer one."""
    async with installation(tmp_path) as (client, endpoint):
        older, newer = Process(endpoint, tmp_path, "older"), Process(endpoint, tmp_path, "newer", "--notes")
        async with processes(older, newer):
            await converse(client, older, newer)
        starts = set[str]()
        for identity in (f"t{part}-{number}" for part in range(KILLS + 1) for number in range(RUNS)):
            noted = False
            for record in await client.records(identity):
                noted = noted or record.type == NOTED
                if isinstance(record.event, RunStarted):
                    starts.add(pid := record.event.worker.split("-")[-2])
                    assert not noted or pid in newer.pids
        assert starts & older.pids, "the older one has worked, too"
        assert starts & newer.pids


async def test_beside_the_last_release(tmp_path: Path) -> None:
    archive = await anyio.run_process(["git", "archive", RELEASE], cwd=ROOT, check=False)
    if archive.returncode:
        pytest.skip(f"the history of the repository is not here: no commit {RELEASE}")
    tree = tmp_path / "release"
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(tree, filter="data")
    async with installation(tmp_path) as (client, endpoint):
        released = Process(endpoint, tmp_path, "released", tree=tree)
        present = Process(endpoint, tmp_path, "present")
        async with processes(released, present):
            await converse(client, released, present)


async def store_unknown(client: Client, thread_id: str, run: str | None, kind: str = NOTED) -> int:
    """Appends an event as a newer version does."""
    body = {"id": uuid7(), "type": kind, "kind": "thread", "aggregate": thread_id, "actor": "lead", "at": now()}
    folded = await client.system.threads.folded(thread_id)
    raw = msgspec.json.encode({**body, **({"run": run} if run else {})})
    return await client.system.log.restore(thread(thread_id), [raw], expected=folded.seq)


async def serve(running: System, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
    return tasks.create_task(running.serve([Steps(0.01)], alone=False))


async def test_a_run_with_an_unknown_fact_is_left_alone_until_it_is_cancelled(tmp_path: Path) -> None:
    async with installation(tmp_path, 4) as (client, _):
        run = await client.ask(await client.thread(), "go")
        await store_unknown(client, "t1", run)
        async with asyncio.TaskGroup() as tasks:
            serving = await serve(client.system, tasks)

            async def left() -> bool:
                return bool(client.system.left.shown())

            await eventually(left)
            assert "step.noted is not known to this version" in client.system.left.shown()[0]
            assert await client.records("t1", RunStarted) == []
            await client.system.intake.cancel("t1", run)
            assert (await client.ended("t1", run)).status == "interrupted"
            serving.cancel()


async def test_a_run_that_no_process_of_its_version_takes_up_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "UNREAD_LIMIT", 0.0)
    async with installation(tmp_path, 4) as (client, _):
        run = await client.ask(await client.thread(), "go")
        await store_unknown(client, "t1", run)
        async with asyncio.TaskGroup() as tasks:
            serving = await serve(client.system, tasks)
            ended = await client.ended("t1", run)
            assert ended.error is not None
            assert ended.error.error == "NewerVersion"
            serving.cancel()


@pytest.mark.parametrize(("kind", "with_run"), [(NOTED, False), ("x.acme.weighed", True)])
async def test_unknown_facts_that_concern_no_run_of_ours(tmp_path: Path, kind: str, with_run: bool) -> None:
    async with installation(tmp_path, 4) as (client, _):
        run = await client.ask(await client.thread(), "go")
        await store_unknown(client, "t1", run if with_run else None, kind)
        async with asyncio.TaskGroup() as tasks:
            serving = await serve(client.system, tasks)
            assert (await client.ended("t1", run)).status == "success"
            serving.cancel()


class Notes(Actor[ThreadCreated]):
    """Is woken for an event of a newer version by a process that knows it."""

    name = "notes"

    async def handle(self, event: ThreadCreated, ctx: Context) -> None: ...


async def test_a_wake_up_for_an_unknown_event_is_given_back_and_not_buried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a day has passed: then nobody will come."""
    monkeypatch.setattr(system, "PAUSES", (0.01, 0.01))
    async with acting(Notes(), home=tmp_path) as stage:
        client, given_back = Client(stage.system), asyncio.Event()
        seq, again, times = await store_unknown(client, "t1", None), stage.system._again, 0

        async def counted(wakeup: Wakeup, seconds: float) -> None:
            nonlocal times
            times += 1
            if times > 2 * Notes.retries.attempts:
                given_back.set()
            await again(wakeup, seconds)

        monkeypatch.setattr(stage.system, "_again", counted)
        await stage.system.queue.wake("notes", thread("t1"), Hint(seq=seq), key="x")
        async with asyncio.timeout(60):
            await given_back.wait()
        assert [letter async for letter in dlq.letters(stage.system.bus)] == []
        assert "step.noted is not known to this version" in stage.system.left.shown()[0]
        monkeypatch.setattr(system, "UNKNOWN_LIMIT", timedelta(0))

        async def buried() -> list[dlq.Letter]:
            return [letter async for letter in dlq.letters(stage.system.bus)]

        [letter] = await eventually(buried)
        assert "not known to any process" in letter.body.reason
