"""A sandbox actor killed under a command in bubblewrap: another one has the outcome of the call's record."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from actors.sandbox import Sandbox
from adapters.sandboxes.bubblewrap import Bubblewrap
from core.bus import rpc
from core.bus.endpoint import Endpoint
from core.config.sandbox import Sandbox as Limits
from core.ports.sandbox import SandboxSetup
from core.runtime import system
from core.runtime.system import System
from tests.support.workers import wait_for

SERVE = "import asyncio, sys; from tests.actors.sandbox.test_killed import serve; asyncio.run(serve(*sys.argv[1:]))"
COMMAND = "echo x >> count; touch begun; while [ ! -e go ]; do sleep 0.05; done; echo done"


@asynccontextmanager
async def worker(endpoint: Endpoint, home: Path) -> AsyncIterator[System]:
    """A worker that serves the sandbox actor."""
    async with system.start(endpoint, home / f"{os.urandom(4).hex()}.db", lease_seconds=3, slots=4) as running:
        actor = Sandbox(Bubblewrap(SandboxSetup(home=home)), Limits(timeout_seconds=60), log=running.log)
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(running.serve, [actor], alone=False))
            yield running
            tasks.cancel_scope.cancel()


async def serve(url: str, prefix: str, home: str) -> None:
    """Serves in a process of its own, to be killed."""
    async with worker(Endpoint(url, prefix=prefix), Path(home)):
        print("serving", flush=True)
        await anyio.sleep_forever()


async def test_a_command_outlives_its_actor_and_another_one_has_the_outcome(
    endpoint: Endpoint, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "SILENCE_SECONDS", 5.0)
    words = ["-c", SERVE, endpoint.url, endpoint.prefix, str(home)]
    first = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    assert first.stdout is not None
    assert await asyncio.wait_for(first.stdout.readline(), 60) == b"serving\n"
    workspace = home / "users/ada/threads/t1/user-data/workspace"

    async def begun() -> bool:
        return (workspace / "begun").exists()

    async with system.start(endpoint, home / "reader.db", lease_seconds=3, slots=4, loops=False) as reader:
        request = {"op": "exec", "user": "ada", "thread": "t1", "run": "r1", "call_id": "c1", "command": COMMAND}
        call = asyncio.create_task(reader.call("sandbox", request))
        await wait_for(begun)
        first.send_signal(signal.SIGKILL)
        await first.wait()
        async with worker(endpoint, home):
            (workspace / "go").touch()
            assert await asyncio.wait_for(call, 60) == "done"
    assert (workspace / "count").read_text() == "x\n"
