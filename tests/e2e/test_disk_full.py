"""The disk of a whole server is full, and has room again: everything goes on by itself. Needs root (tmpfs).

What the server says of itself goes to the same disk.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.servers import Server, browser, serving
from tests.support.disks import fill, small_disk
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.anyio

ROUNDS = (1, 2, 3)
LONG = "A long answer. " * 3000
SCRIPTS = {f"round-{n}": [Turn(text=LONG, gate=f"door-{n}", gate_after=1)] for n in ROUNDS}


async def readiness(session: aiohttp.ClientSession, server: Server) -> tuple[int, Any]:
    async with session.get(f"{server.url}/ready") as response:
        return response.status, await response.json()


async def annotate(session: aiohttp.ClientSession, url: str, acknowledged: set[str]) -> None:
    """Appends to a thread one after the other, for ever; what was acknowledged."""
    number = 0
    while True:
        number += 1
        try:
            timeout = aiohttp.ClientTimeout(total=2)
            async with session.patch(url, json={"metadata": {f"n{number}": number}}, timeout=timeout) as response:
                if response.status == 200:
                    acknowledged.add(f"n{number}")
        except (TimeoutError, aiohttp.ClientError):
            continue


async def test_filled_and_freed_three_times(tmp_path: Path) -> None:
    acknowledged: set[str] = set()
    runs: dict[str, str] = {}
    with small_disk(tmp_path / "disk", "48m") as disk:
        async with ModelServer(SCRIPTS) as models, aiohttp.ClientSession() as session, browser() as client:
            config = configure(tmp_path / "config.yaml", models)
            async with serving(disk / "home", config) as server:
                notes = await client.thread(server)
                writing = asyncio.create_task(annotate(session, f"{server.url}/api/threads/{notes}", acknowledged))
                for number in ROUNDS:
                    thread_id = await client.thread(server)
                    runs[thread_id] = await client.run(server, thread_id, "Write.", f"round-{number}")
                    await models.reached(f"door-{number}")
                    before = len(acknowledged)
                    ballast = fill(disk, leave=0)
                    models.release(f"door-{number}")

                    async def refused() -> bool:
                        status, body = await readiness(session, server)
                        return status == 503 and "no space left on device" in str(body["missing"])

                    await wait_for(refused)
                    async with session.get(f"{server.url}/health") as response:
                        assert (response.status, (await response.json())["status"]) == (200, "healthy")
                    ballast.unlink()

                    async def back(enough: int = before + 1) -> bool:
                        return (await readiness(session, server))[0] == 200 and len(acknowledged) > enough

                    await wait_for(back)

                    async def ended(thread_id: str = thread_id) -> bool:
                        return await client.status(server, thread_id, runs[thread_id]) == "success"

                    await wait_for(ended)
                writing.cancel()
                metadata = (await client.get(server, f"/threads/{notes}"))["metadata"]
                logs = [[event["type"] for event in await client.log(server, thread_id)] for thread_id in runs]
    assert acknowledged <= metadata.keys()
    assert [log.count("run.completed") for log in logs] == [1, 1, 1]
    assert [log.count("model.completed") for log in logs] == [1, 1, 1]
