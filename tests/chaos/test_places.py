"""Runs that wait for a place in a process of their own: they go to another one that has room, and outlive a kill."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.runtime import system
from core.runtime.vitals import Backlog, overview
from tests.support import warm
from tests.support.workers import LEASE, Client, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long]

RUNS = 6


@pytest.mark.parametrize("killed", [False, True], ids=["full", "killed"])
async def test_what_waits_in_one_process_is_begun_by_another(tmp_path: Path, killed: bool) -> None:
    """The first has one place and is slow. It lives on, or is killed with all that waits in it."""
    async with embedded.start(tmp_path / "nats") as server:
        endpoint = Endpoint(server.url, token=server.token)
        options = ("--url", server.url, "--token", str(server.token), "--lease", str(LEASE))

        async def hired(name: str, *more: str) -> warm.Process:
            place = ("--views", str(tmp_path / f"{name}.db"))
            with (tmp_path / f"{name}.log").open("wb") as log:
                start = partial(warm.start, "tests.support.workers", *options, *place, *more)
                return await asyncio.to_thread(start, stdout=log.fileno(), stderr=log.fileno())

        async with system.start(endpoint, tmp_path / "views.db", lease_seconds=LEASE, slots=1) as running:
            client = Client(running)
            full = await hired("full", "--slots", "1", "--pause", "1000")
            free = None
            try:
                runs = {}
                for number in range(RUNS):
                    thread = await client.thread(f"t{number}")
                    runs[thread] = await client.ask(thread, "go")

                async def held() -> bool:
                    return Backlog("lead", 0, RUNS) in (await overview(running.bus, 0)).backlogs

                await wait_for(held)
                if killed:
                    full.kill()
                    await full.waited()
                free = await hired("free", "--slots", "8", "--pause", "0.001")
                for thread, run in list(runs.items())[0 if killed else 1 :]:
                    assert (await client.ended(thread, run)).status == "success"
                assert killed or (await client.state("t0")).runs[runs["t0"]].status == "running"
            finally:
                for process in (full, free):
                    if process is not None:
                        process.kill()
                        await process.waited()
