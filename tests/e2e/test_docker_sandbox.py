"""Whole servers whose sandboxes are containers: killed, two on one thread, and a container that somebody removes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from core.bus import embedded
from tests.e2e.servers import Browser, Server, browser, serving
from tests.support.engine import IMAGE, TestEngine
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

WAITING = "echo x >> count; touch began; while [ ! -e go ]; do sleep 0.05; done; echo end"


def bash(command: str, gate: str = "") -> Turn:
    return Turn(tool_calls=(ToolCall("bash", {"description": "d", "command": command}),), gate=gate)


def looks(messages: Any) -> Turn:
    """Runs a command in each run, another one each time: the same one again and again would be warned of."""
    if messages[-1]["role"] == "tool":
        return Turn(text="Done.")
    return bash(f"echo {len(messages)} >> looked")


class House:
    """A server's thread, its files, and the container that its commands run in."""

    def __init__(
        self, client: Browser, server: Server, engine: TestEngine, models: ModelServer, thread_id: str
    ) -> None:
        self.models = models
        self.client, self.server, self._engine, self.thread_id = client, server, engine, thread_id
        self.workspace = server.home / f"users/default/threads/{thread_id}/user-data/workspace"

    async def runs(self, model: str, server: Server | None = None) -> str:
        return await self.client.run(server or self.server, self.thread_id, "go on", model)

    async def began(self) -> None:
        await wait_for(self._exists)

    async def ended(self, run_id: str) -> list[str]:
        """Waits for a run that succeeds. Returns the results of all tools."""

        async def over() -> bool:
            return await self.client.status(self.server, self.thread_id, run_id) in ("success", "error")

        await wait_for(over)
        assert await self.client.status(self.server, self.thread_id, run_id) == "success"
        messages = await self.client.messages(self.server, self.thread_id)
        return [str(message["content"]) for message in messages if message["type"] == "tool"]

    def containers(self) -> list[str]:
        with self._engine.client() as client:
            return [str(one["Id"]) for one in client.containers(filters={"label": f"sika.thread={self.thread_id}"})]

    async def restart_engine(self) -> None:
        """Stops the engine, which ends its containers, and starts it again."""
        await to_thread.run_sync(self._engine.stop)
        await to_thread.run_sync(self._engine.start)

    def remove(self, container: str) -> None:
        with self._engine.client() as client:
            client.remove_container(container, force=True)

    async def _exists(self) -> bool:
        return (self.workspace / "began").exists()


Opens = Callable[[dict[str, Any]], Any]


def settings(engine: TestEngine, **more: Any) -> dict[str, Any]:
    sandbox = {"provider": "docker", "docker": {"host": engine.host, "image": IMAGE}}
    return {"runs": {"lease_seconds": 2}, "sandbox": sandbox, **more}


@pytest.fixture
def house(tmp_path: Path, docker_engine: TestEngine) -> Opens:
    @asynccontextmanager
    async def opened(scripts: dict[str, Any]) -> AsyncIterator[House]:
        async with ModelServer(scripts) as models, browser() as client:
            config = configure(tmp_path / "config.yaml", models, **settings(docker_engine))
            async with serving(tmp_path / "home", config) as server:
                thread = House(client, server, docker_engine, models, await client.thread(server))
                try:
                    yield thread
                finally:
                    for container in thread.containers():
                        thread.remove(container)

    return opened


async def test_a_command_outlives_the_server_and_the_next_one_has_its_result(house: Opens) -> None:
    async with house({"waits": [bash(WAITING), Turn(text="Done.")]}) as thread:
        run_id = await thread.runs("waits")
        await thread.began()
        [container] = thread.containers()
        await thread.server.kill()
        (thread.workspace / "go").touch()
        await thread.server.start()
        [result] = await thread.ended(run_id)
        assert result.split() == ["end"]
        assert (thread.workspace / "count").read_text() == "x\n"
        assert thread.containers() == [container]


@pytest.mark.parametrize("end", ["container", "engine"])
async def test_a_container_that_ends_under_a_command_is_told(house: Opens, end: str) -> None:
    """Somebody removes the container, or stops the engine and starts it again."""
    async with house({"waits": [bash(WAITING), bash("ls", gate="back"), Turn(text="Done.")]}) as thread:
        run_id = await thread.runs("waits")
        await thread.began()
        [container] = thread.containers()
        if end == "engine":
            await thread.restart_engine()
        else:
            thread.remove(container)
        thread.models.release("back")  # an engine may take longer to come back than a command waits for it
        first, second = await thread.ended(run_id)
        assert "interrupted" in first
        assert "the sandbox was replaced" in (first + second if end == "engine" else first)  # the engine takes its time
        assert {"began", "count"} <= set(second.split())
        assert (thread.workspace / "count").read_text() == "x\n"
        assert thread.containers() != [container]


async def test_two_servers_use_one_container_and_one_ends_under_a_command(
    tmp_path: Path, docker_engine: TestEngine
) -> None:
    """Both have the same data directory, and a bus that belongs to neither. Whichever has the command is killed first
    or second: the run goes on with the other one, and then with the first one's successor.
    """
    scripts: dict[str, Any] = {"looks": looks, "waits": [bash(WAITING), Turn(text="Done.")]}
    async with ModelServer(scripts) as models, browser() as client, embedded.start(tmp_path / "nats") as nats:
        about = settings(docker_engine, nats={"url": nats.url, "token": nats.token})
        config, home = configure(tmp_path / "config.yaml", models, **about), tmp_path / "home"
        async with serving(home, config, name="one") as one, serving(home, config, name="two") as two:
            thread = House(client, one, docker_engine, models, await client.thread(one))
            for server in (one, two, one, two):
                await thread.ended(await thread.runs("looks", server))
            [container] = thread.containers()
            run_id = await thread.runs("waits", two)
            await thread.began()
            await two.kill()
            await two.start()
            await one.kill()
            await one.start()
            (thread.workspace / "go").touch()
            assert (await thread.ended(run_id))[-1].split() == ["end"]
            assert (thread.workspace / "count").read_text() == "x\n"
            lines = (thread.workspace / "looked").read_text().split()
            assert len(lines) == len(set(lines)) == 4
            assert thread.containers() == [container]
            thread.remove(container)
