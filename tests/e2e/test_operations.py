"""The recipes of the operations page, each carried out on whole servers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from core.replay.exchanges import ROLES
from core.thread.messages import text_of
from tests.e2e.servers import SIKA, Browser, Frame, Server, browser, run_of, serving
from tests.support import warm
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.nats import Node
from tests.support.workers import DEADLINE, configure

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]

WRITES = ToolCall("write_file", {"description": "d", "path": "/mnt/user-data/workspace/a.txt", "content": "otters"})
SCRIPT = {"m": [Turn(tool_calls=(WRITES,)), Turn(text="Done.")]}


async def run(client: Browser, server: Server) -> str:
    """Returns a thread with a run that wrote a file."""
    thread, frames = await client.thread(server), list[Frame]()
    await client.start(server, thread, "go", "m", frames)
    assert await client.status(server, thread, run_of(frames)) == "success"
    return thread


async def whole(client: Browser, server: Server, thread: str) -> bool:
    """Tells whether a thread has its messages and its file."""
    messages = await client.messages(server, thread)
    [file] = server.home.glob(f"users/*/threads/{thread}/user-data/workspace/a.txt")
    return messages[-1]["content"] == "Done." and file.read_text() == "otters"


async def doctor(home: Path, *options: str) -> str:
    """Returns what `sika doctor` says of a data directory that nobody serves."""
    return (await asyncio.to_thread(warm.run, SIKA, "doctor", "--home", str(home), *options)).stdout


@asynccontextmanager
async def nats(folder: Path, store: Path) -> AsyncIterator[str]:
    """Runs a nats-server of one's own, whose log lies in `store`. Yields its address."""
    node = Node(folder, "n0", store=store)
    node.launch()
    try:
        await asyncio.to_thread(node.wait_ready)
        yield node.url
    finally:
        node.stop()


async def test_a_log_moves_to_a_nats_of_ones_own_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with ModelServer(SCRIPT) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models)
        async with serving(home, config) as server:
            thread = await run(client, server)
            assert await server.terminate() == 0
        async with nats(tmp_path / "wrong", tmp_path / "wrong/js") as url:
            lost = Server(home, config, "--nats", url, name="lost")
            with pytest.raises(AssertionError):
                await lost.start()
            async with asyncio.timeout(DEADLINE):
                assert await lost.process.waited() == 2
            assert f"the log at {url} is empty, but {home}/users has the files of 1 thread" in lost.said()
            assert f"{home}/nats/js" in lost.said()
            assert "the log at nats" in await doctor(home, "--nats", url)
        assert "fail  log" not in await doctor(home)
        (home / "nats/js").rename(tmp_path / "away")
        assert f"fail  log            the log at {home}/nats/js is empty" in await doctor(home)
        (tmp_path / "away").rename(home / "nats/js")
        async with nats(tmp_path / "right", home / "nats/js") as url, serving(home, config, "--nats", url) as server:
            assert await whole(client, server, thread)
            assert await whole(client, server, await run(client, server))


async def test_what_a_model_got_can_be_read(tmp_path: Path) -> None:
    """The system prompt, the tools and the conversation of each call, compared with what came over the wire."""
    async with ModelServer(SCRIPT) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models)
        async with serving(tmp_path / "home", config) as server:
            thread = await run(client, server)
            events = await client.log(server, thread)
            calls = [number for number, event in enumerate(events, 1) if event["type"] == "model.completed"]
            sent = [record.body for record in models.requests if record.model == "m"]
            assert len(calls) == len(sent) == 2
            for call, body in zip(calls, sent, strict=True):
                command = ("log", "request", thread, str(call), "--json", "--home", str(server.home))
                shown = await asyncio.to_thread(warm.run, SIKA, *command, timeout=DEADLINE)
                assert shown.returncode == 0, shown.stderr
                request = json.loads(shown.stdout)
                system, *conversation = body["messages"]
                assert (system["role"], request["prompt"]) == ("system", system["content"])
                names = {tool["function"]["name"] for tool in body["tools"]}
                assert names <= {tool["name"] for tool in request["tools"]}
                own = [message for message in conversation if "<system-reminder>" not in text_of(message["content"])]
                for message, other in zip(request["messages"], own, strict=True):
                    assert ROLES[message["type"]] == other["role"]
                    assert text_of(message["content"]) in text_of(other["content"])
                assert request["model"]["models"][0]["name"] == "m"
            show = ("log", "request", thread, str(calls[-1]), "--home", str(server.home))
            text = (await asyncio.to_thread(warm.run, SIKA, *show, timeout=DEADLINE)).stdout
            assert "\nuser user-input\n  go\n" in text
            assert "→ write_file" in text


async def test_a_new_data_directory_begins_on_an_empty_log(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(ModelServer(SCRIPT))
        url = await stack.enter_async_context(nats(tmp_path / "n", tmp_path / "n/js"))
        config = configure(tmp_path / "config.yaml", models)
        server = await stack.enter_async_context(serving(tmp_path / "home", config, "--nats", url))
        client = await stack.enter_async_context(browser())
        assert await whole(client, server, await run(client, server))


async def test_a_backup_is_restored_elsewhere(tmp_path: Path) -> None:
    async with ModelServer(SCRIPT) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models)
        async with serving(tmp_path / "home", config) as server:
            thread = await run(client, server)
            assert await server.terminate() == 0
        shutil.copytree(tmp_path / "home", tmp_path / "restored", symlinks=True)
        shutil.rmtree(tmp_path / "home")
        async with serving(tmp_path / "restored", config) as server:
            assert await whole(client, server, thread)
            command = ("log", "verify", thread, "--home", str(server.home), "--config", str(config))
            checked = await asyncio.to_thread(warm.run, SIKA, *command, timeout=DEADLINE)
            assert checked.returncode == 0, checked.stderr
