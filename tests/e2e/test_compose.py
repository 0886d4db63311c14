"""The compose file started for real: its image built, conversations through it, and `docker kill` in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.servers import Browser, Server, browser
from tests.support import images
from tests.support.engine import GNU_IMAGE, TestEngine
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.workers import wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.long]

ROOT = Path(__file__).parents[2]
PLUGINS = tuple(
    Path(place) / "cli-plugins/docker-compose"
    for place in ("/usr/libexec/docker", "/usr/lib/docker", "/usr/local/lib/docker", Path.home() / ".docker")
)
UP_SECONDS = 300
WAITS = "echo begun >> begun; while [ ! -e go ]; do sleep 0.1; done; echo after the kill"
SCRIPTS = {
    "shows": [
        Turn(
            tool_calls=(
                ToolCall(
                    "bash", {"description": "d", "command": "id -u; cat /etc/hostname; grep CapEff /proc/self/status"}
                ),
            )
        ),
        Turn(text="Done."),
    ],
    "waits": [Turn(tool_calls=(ToolCall("bash", {"description": "d", "command": WAITS}),)), Turn(text="Done.")],
}


def compose_program() -> str | None:
    """Returns Docker Compose 2, which runs without the command line of Docker, too."""
    paths = [path for path in (*map(str, PLUGINS), shutil.which("docker-compose")) if path and os.access(path, os.X_OK)]
    for path in paths:
        text = subprocess.run([path, "version", "--short"], capture_output=True, text=True, check=False).stdout
        if text.strip().lstrip("v").split(".")[0].isdigit() and int(text.strip().lstrip("v").split(".")[0]) >= 2:
            return path
    return None


class Stack:
    """The compose file of the repository, changed by variables and by the models of its configuration only."""

    def __init__(self, engine: TestEngine, program: str, folder: Path, **variables: str) -> None:
        self._engine, self._program, self._override = engine, program, folder / "models.yml"
        self.project = f"sika{os.getpid()}{folder.name[-6:].strip('-_').lower()}"
        self._variables = {
            **os.environ,
            **{"DOCKER_HOST": engine.host, "DOCKER_SOCKET": engine.host.removeprefix("unix://")},
            **{"COMPOSE_PROJECT_NAME": self.project, "SIKA_NATS_TOKEN": "sika_of_the_tests", "SIKA_PORT": "0"},
            **{"PYTHON_IMAGE": images.PYTHON_IMAGE, "NATS_IMAGE": images.NATS_IMAGE, "SIKA_NATS_PORT": "0"},
            **{"SIKA_BUILD_NETWORK": "none", "SIKA_IMAGE": "sika-test-server", "SIKA_SANDBOX_IMAGE": GNU_IMAGE},
            **variables,
        }
        self.server = Server(folder, folder)

    async def run(self, *words: str) -> str:
        files = ["--file", str(ROOT / "docker-compose.yml")]
        files += ["--file", str(self._override)] if self._override.exists() else []
        command = [self._program, *files, "--progress", "plain", *words]
        result = await asyncio.to_thread(self._run, command)
        if result.returncode:
            logs = await asyncio.to_thread(self._run, [self._program, *files, "logs", "--no-color", "--tail", "60"])
            pytest.fail(f"{words}: {(result.stdout + result.stderr)[-4000:]}\n{logs.stdout[-4000:]}")
        return str(result.stdout)

    async def up(self) -> None:
        await self.run("up", "--detach", "--wait")

    async def gateway(self) -> str:
        """Returns the address of this machine in the stack's network."""
        network = await asyncio.to_thread(self._ask, lambda client: client.inspect_network(f"{self.project}_default"))
        return str(network["IPAM"]["Config"][0]["Gateway"])

    async def start(self, models: ModelServer) -> None:
        """Starts everything with models of the test."""
        settings = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["configs"]["sika"]["content"]
        entries = [{"name": name, "model": name, "base_url": models.url, "api_key": "none"} for name in models.scripts]
        more = {
            "models": entries,
            "title": {"enabled": False},
            "memory": {"enabled": False},
            "runs": {"lease_seconds": 2},
        }
        content = settings + "".join(f"{key}: {json.dumps(value)}\n" for key, value in more.items())
        self._override.write_text(json.dumps({"configs": {"sika": {"content": content}}}))
        await self.up()
        await self.located()

    async def located(self) -> None:
        self.server.url = f"http://{(await self.run('port', 'sika', '2026')).strip()}"

    async def kill(self) -> None:
        """`docker kill`, which an engine takes for a wish: it does not start the container again by itself."""
        await asyncio.to_thread(self._ask, lambda client: client.kill(f"{self.project}-sika-1"))

    def volume(self) -> Path:
        """Returns where the data directory lies on this machine."""
        return Path(str(self._ask(lambda client: client.inspect_volume(f"{self.project}_sika"))["Mountpoint"]))

    def sandboxes(self) -> list[dict[str, Any]]:
        label = f"sika.socketproxy={self.project}_sika"
        ids = self._ask(lambda client: client.containers(filters={"label": label}))
        return [self._ask(lambda client, id=one["Id"]: client.inspect_container(id)) for one in ids]

    def close(self) -> None:
        with self._engine.client() as client:
            for one in client.containers(all=True, filters={"label": f"sika.socketproxy={self.project}_sika"}):
                client.remove_container(one["Id"], force=True)

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=ROOT, env=self._variables, capture_output=True, text=True, timeout=UP_SECONDS, check=False
        )

    def _ask(self, question: Any) -> Any:
        with self._engine.client() as client:
            return question(client)


@pytest.fixture(scope="module")
def program() -> str:
    if reason := images.problem():
        pytest.skip(reason)
    path = compose_program()
    return path or pytest.skip("needs Docker Compose 2")


@pytest.fixture(scope="module")
def engine(program: str, docker_engine: TestEngine) -> TestEngine:
    images.add_images(docker_engine)
    return docker_engine


@asynccontextmanager
async def started(engine: TestEngine, program: str, folder: Path, **variables: str) -> AsyncIterator[Stack]:
    stack = Stack(engine, program, folder, **variables)
    try:
        await stack.run("build", "sika")
        await stack.run("up", "--detach", "nats")  # makes the network
        async with ModelServer(
            {name: Script(tuple(turns)) for name, turns in SCRIPTS.items()}, host=await stack.gateway()
        ) as models:
            await stack.start(models)
            yield stack
    finally:
        await asyncio.to_thread(stack.close)
        await stack.run("down", "--volumes", "--timeout", "5")


async def ended(client: Browser, server: Server, thread_id: str, run_id: str) -> str:
    """Returns the text of the last result of a tool, when the run has ended."""

    async def done() -> bool:
        return await client.status(server, thread_id, run_id) in ("success", "error")

    await wait_for(done, 120)
    results = [str(m["content"]) for m in await client.messages(server, thread_id) if m["type"] == "tool"]
    return results[-1]


async def test_a_server_and_its_nats_whose_commands_run_in_bubblewrap(
    engine: TestEngine, program: str, tmp_path: Path
) -> None:
    async with started(engine, program, tmp_path) as stack, browser() as client:
        thread_id = await client.thread(stack.server)
        run_id = await client.run(stack.server, thread_id, "hello", "shows")
        result = await ended(client, stack.server, thread_id, run_id)
        assert "CapEff:\t0000000000000000" in result
        assert stack.sandboxes() == []
        bill = json.loads(await stack.run("exec", "-T", "sika", "cat", "/app/sbom.cdx.json"))
        assert bill["metadata"]["component"]["name"] == "sika"
        assert {"nats-py", "aiohttp", "langgraph"} <= {part["name"] for part in bill["components"]}


async def test_a_run_goes_on_after_the_server_was_killed_and_its_command_ran_on_in_a_container(
    engine: TestEngine, program: str, tmp_path: Path
) -> None:
    nodes = ",".join(f"nats://{name}:4222" for name in ("nats", "nats-2", "nats-3"))
    cluster = {"SIKA_NATS": "cluster", "SIKA_NATS_REPLICAS": "3", "SIKA_NATS_URL": nodes}
    profiles = {"COMPOSE_PROFILES": "containers,cluster", "SIKA_SANDBOX": "docker"}
    async with started(engine, program, tmp_path, **cluster, **profiles) as stack, browser() as client:
        server = stack.server
        thread_id = await client.thread(server)
        shown = await ended(client, server, thread_id, await client.run(server, thread_id, "hello", "shows"))
        assert shown.split()[:2] == ["1000", "sandbox"], shown
        (sandbox,) = await asyncio.to_thread(stack.sandboxes)
        assert sandbox["HostConfig"]["NetworkMode"] == "none"
        assert sandbox["HostConfig"]["ReadonlyRootfs"] is True

        run_id = await client.run(server, thread_id, "wait", "waits")
        workspace = stack.volume() / f"users/default/threads/{thread_id}/user-data/workspace"

        async def begun() -> bool:
            return (workspace / "begun").exists()

        await wait_for(begun, 120)
        await stack.kill()
        (workspace / "go").touch()
        await stack.run("up", "--detach", "--wait", "--no-recreate", "sika")
        await stack.located()
        assert "after the kill" in await ended(client, server, thread_id, run_id)
        assert await client.status(server, thread_id, run_id) == "success"
        assert (workspace / "begun").read_text() == "begun\n"
        assert [one["Id"] for one in await asyncio.to_thread(stack.sandboxes)] == [sandbox["Id"]]
