"""Two processes on one nats-server, of which one's event loop is always late: who begins what is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.events import RunStarted
from core.runtime import system
from tests.support import warm
from tests.support.workers import LEASE, Client, wait_for

LAG_SECONDS = 0.25
ROW = 6
"""Runs that the free process begins one after the other when the late one pulls nothing: else they take turns."""


class Two(NamedTuple):
    client: Client
    late: warm.Process
    free: warm.Process


@asynccontextmanager
async def two(path: Path) -> AsyncIterator[Two]:
    """The processes; the late one has begun a run while it was alone."""
    async with embedded.start(path / "nats") as server:
        options = ("--url", server.url, "--token", str(server.token), "--lease", str(LEASE), "--slots", "0")

        async def hired(name: str, *more: str) -> warm.Process:
            place = ("--views", str(path / f"{name}.db"), "--pause", "0.001")
            with (path / f"{name}.log").open("wb") as log:
                start = partial(warm.start, "tests.support.workers", *options, *place, *more)
                return await asyncio.to_thread(start, stdout=log.fileno(), stderr=log.fileno())

        endpoint = Endpoint(server.url, token=server.token)
        async with system.start(endpoint, path / "views.db", lease_seconds=LEASE, slots=1) as running:
            client, processes = Client(running), [await hired("late", "--lag", str(LAG_SECONDS))]
            try:
                assert await begun(client, ["alone"]) == {"alone": processes[0].pid}
                processes.append(await hired("free"))
                yield Two(client, *processes)
            finally:
                for process in processes:
                    process.kill()
                    await process.waited()


async def begun(client: Client, threads: list[str]) -> dict[str, int]:
    """Requests a run on each thread, of somebody else each, and returns the process that began it."""
    for thread in threads:
        await client.ask(await client.thread(thread, user=thread), "go")
    return {thread: await _beginner(client, thread) for thread in threads}


async def settled(two: Two) -> None:
    """Waits until the free process begins what comes, several times in a row."""
    numbers, row = count(), 0

    async def free_begins() -> bool:
        nonlocal row
        thread = f"settled-{next(numbers)}"
        row = row + 1 if (await begun(two.client, [thread]))[thread] == two.free.pid else 0
        return row == ROW

    await wait_for(free_begins, every=LAG_SECONDS)


async def _beginner(client: Client, thread: str) -> int:
    await client.until(thread, lambda _, record: isinstance(record.event, RunStarted))
    start = (await client.records(thread, RunStarted))[0].event
    assert isinstance(start, RunStarted)
    return int(start.worker.rpartition("-")[0].rpartition("-")[2])


async def seconds_to_begin(client: Client, thread: str) -> float:
    """Requests a run, and returns the seconds until it was begun."""
    await client.thread(thread, user=thread)
    asked = time.monotonic()
    await client.ask(thread, "go")
    await client.until(thread, lambda _, record: isinstance(record.event, RunStarted))
    return time.monotonic() - asked
