"""A process that stops while it starts leaves nothing behind that keeps it from ending."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import aiosqlite
import pytest

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.runtime import system

pytestmark = pytest.mark.anyio


async def test_a_start_that_is_given_up_leaves_no_thread(tmp_path: Path) -> None:
    async with embedded.start(tmp_path) as server:
        endpoint = Endpoint(server.url, token=server.token)
        for steps in range(0, 150, 6):
            async with system.start(endpoint, tmp_path / f"{steps}.db", lease_seconds=2, slots=1):
                for _ in range(steps):
                    await asyncio.sleep(0)
    left = [thing for thing in gc.get_objects() if isinstance(thing, aiosqlite.Connection) and thing._running]
    for connection in left:
        await connection.close()  # so that at least this process can end
    assert not left, "the thread of a connection that nobody closes keeps the process alive for ever"
