"""A command in the background outlives `kill -9` of the server, and the next one answers for its id."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.sandboxes.conftest import running
from tests.e2e.servers import Browser, Server, browser, serving
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.anyio

ABOUT = {"description": "for the test"}
PORT = 8741
SERVE = f"(cd /tmp && echo served > page && exec python3 -m http.server {PORT} --bind 127.0.0.1) &"
ASK = f"python3 -c 'import urllib.request as r; print(r.urlopen(\"http://localhost:{PORT}/page\").read())'"
COMMAND = (
    f"{SERVE} echo before; while [ ! -e /mnt/user-data/workspace/go ]; do sleep 0.05; done; echo after; sleep 987691"
)


def started(messages: Any) -> str:
    """Returns the id of the command in a conversation."""
    words = next(str(m["content"]) for m in messages if "runs in the background" in str(m.get("content")))
    return words.split()[0]


def asks(tool: str) -> Any:
    """Returns a script of a model that calls a tool for the command, once."""

    def script(messages: Any) -> Turn:
        if messages[-1]["role"] == "tool":
            return Turn(text="Done.")
        return Turn(tool_calls=(ToolCall(tool, {**ABOUT, "id": started(messages)}),))

    return script


async def results(client: Browser, server: Server, thread_id: str) -> list[str]:
    return [str(m["content"]) for m in await client.messages(server, thread_id) if m["type"] == "tool"]


async def test_a_command_in_the_background_outlives_the_server(tmp_path: Path) -> None:
    scripts: dict[str, Any] = {
        "begins": [
            Turn(tool_calls=(ToolCall("bash", {**ABOUT, "command": COMMAND, "background": True}),)),
            Turn(text="It runs."),
        ],
        "reads": asks("bash_output"),
        "tries": [Turn(tool_calls=(ToolCall("bash", {**ABOUT, "command": ASK}),)), Turn(text="Done.")],
        "ends": asks("bash_kill"),
    }
    async with ModelServer(scripts) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models, runs={"lease_seconds": 2})
        async with serving(tmp_path / "home", config) as server:
            thread_id = await client.thread(server)

            async def done(model: str) -> list[str]:
                run_id = await client.run(server, thread_id, "go on", model)

                async def ended() -> bool:
                    return await client.status(server, thread_id, run_id) in ("success", "error")

                await wait_for(ended)
                return await results(client, server, thread_id)

            await done("begins")
            await server.kill()
            await server.start()
            workspace = server.home / f"users/default/threads/{thread_id}/user-data/workspace"
            (workspace / "go").touch()

            async def says_after() -> bool:
                last = (await done("reads"))[-1]
                return f"is running and listens on localhost:{PORT}." in last and "after" in last

            await asyncio.wait_for(wait_for(says_after), 120)
            assert "before" in "".join(await results(client, server, thread_id))
            assert "served" in (await done("tries"))[-1]
            assert "has ended: it was ended." in (await done("ends"))[-1]
            assert running("987691") == []
