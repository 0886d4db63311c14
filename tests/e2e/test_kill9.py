"""`kill -9` of a whole server in the middle of a run: started again, it goes on, and clients miss nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from core.bus import embedded
from core.runtime.servers import announced
from tests.e2e.servers import Browser, Frame, Server, browser, facts, last_id, run_of, serving, sika, texts, until
from tests.support.haiku import HAIKU
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.workers import DEADLINE, configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

MARK = "/mnt/user-data/workspace/go"
WAITING = f"echo started >> count.txt; while [ ! -e {MARK} ]; do sleep 0.05; done; echo real output"
SIGN = ToolCall("sign", {"note": "a"})
SCRIPTS: dict[str, Script | list[Turn]] = {
    "talks": [
        Turn(text="First I sign.", tool_calls=(SIGN,)),
        Turn(text="one two three four", gate="door", gate_after=2),
    ],
    "works": [
        Turn(text="Let me see.", tool_calls=(ToolCall("bash", {"description": "wait", "command": WAITING}), SIGN)),
        Turn(text="All is done."),
    ],
    "between": [
        Turn(tool_calls=(SIGN,)),
        Turn(text="And once more.", tool_calls=(ToolCall("sign", {"note": "b"}),), gate="door"),
        Turn(text="All is done."),
    ],
    "quick": [Turn(text="Yes?")],
}


@asynccontextmanager
async def one_server(path: Path, **sections: Any) -> AsyncIterator[tuple[Server, Browser, ModelServer]]:
    async with ModelServer(SCRIPTS) as models, browser() as client:
        config = configure(path / "config.yaml", models, runs={"lease_seconds": 2}, **sections)
        async with serving(path / "home", config) as server:
            yield server, client, models


@asynccontextmanager
async def cluster(path: Path, *, shared: bool = False) -> AsyncIterator[tuple[Server, Server, Browser, ModelServer]]:
    """Two servers on a nats-server that belongs to neither."""
    async with ModelServer(SCRIPTS) as models, browser() as client, embedded.start(path / "nats") as nats:
        where = {"url": nats.url, "token": nats.token}
        config = configure(path / "config.yaml", models, runs={"lease_seconds": 2}, nats=where)
        homes = [path / "home", path / "home"] if shared else [path / "home-a", path / "home-b"]
        async with serving(homes[0], config, name="a") as a, serving(homes[1], config, name="b") as b:
            yield a, b, client, models


def workspace(server: Server, thread_id: str) -> Path:
    return server.home / f"users/default/threads/{thread_id}/user-data/workspace"


async def check_stream(server: Server, client: Browser, thread_id: str, frames: list[Frame]) -> None:
    """The frames of a client that was cut off and went on are those of the whole run: every one, once."""
    run_id = run_of(frames)
    assert frames[-1].event == "end"
    replayed: list[Frame] = []
    await client.resume(server, thread_id, run_id, replayed, "-1")
    assert facts(frames) == facts(replayed)
    final = {m["id"]: m["content"] for m in await client.messages(server, thread_id) if m["type"] in ("ai", "tool")}
    seen = texts(frames)
    assert {identity: seen.get(identity) for identity in final} == final
    again = texts(replayed)
    assert {identity: again.get(identity) for identity in final} == final
    ids = [frame.id for frame in frames if frame.id]
    assert len(ids) == len(set(ids))


async def types(server: Server, client: Browser, thread_id: str) -> list[str]:
    return [event["type"] for event in await client.log(server, thread_id)]


async def test_while_the_model_speaks(tmp_path: Path) -> None:
    async with one_server(tmp_path) as (server, client, models):
        thread_id = await client.thread(server)
        frames: list[Frame] = []
        reading = asyncio.create_task(client.start(server, thread_id, "Count", "talks", frames))
        await until(lambda: "one two " in texts(frames).values())
        await server.kill()
        await reading
        assert frames[-1].event == "messages"
        await until(lambda: models.requests[-1].outcome == "abandoned")
        models.release("door")
        await server.start()
        await client.resume(server, thread_id, run_of(frames), frames, last_id(frames))
        await check_stream(server, client, thread_id, frames)
        messages = await client.messages(server, thread_id)
        events = await types(server, client, thread_id)
    assert [m["content"] for m in messages] == ["Count", "First I sign.", "signed a", "one two three four"]
    assert events.count("run.started") == 2
    assert events.count("run.completed") == 1
    assert models.answered("talks") == [0, 1]
    assert len(server.signed()) == 1


async def test_while_a_command_runs(tmp_path: Path) -> None:
    async with one_server(tmp_path) as (server, client, models):
        thread_id = await client.thread(server)
        frames: list[Frame] = []
        reading = asyncio.create_task(client.start(server, thread_id, "Work", "works", frames))
        files = workspace(server, thread_id)
        await until(lambda: (files / "count.txt").exists() and "signed a" in texts(frames).values())
        await server.kill()
        await reading
        await server.start()
        (files / "go").touch()
        await client.resume(server, thread_id, run_of(frames), frames, last_id(frames))
        await check_stream(server, client, thread_id, frames)
        messages = await client.messages(server, thread_id)
        events = await types(server, client, thread_id)
        count = (files / "count.txt").read_text()
    outcomes = {m["name"]: m["content"] for m in messages if m["type"] == "tool"}
    assert outcomes == {"bash": "real output", "sign": "signed a"}
    assert messages[-1]["content"] == "All is done."
    assert count == "started\n"
    assert len(server.signed()) == 1
    assert events.count("run.completed") == 1
    assert models.answered("works") == [0, 1]


async def test_between_two_calls(tmp_path: Path) -> None:
    async with one_server(tmp_path) as (server, client, models):
        thread_id = await client.thread(server)
        frames: list[Frame] = []
        reading = asyncio.create_task(client.start(server, thread_id, "Work", "between", frames))
        await models.reached("door")
        await server.kill()
        await reading
        await until(lambda: models.requests[-1].outcome == "abandoned")
        models.release("door")
        await server.start()
        await client.resume(server, thread_id, run_of(frames), frames, last_id(frames))
        await check_stream(server, client, thread_id, frames)
        messages = await client.messages(server, thread_id)
    assert [m["content"] for m in messages if m["type"] == "tool"] == ["signed a", "signed b"]
    assert messages[-1]["content"] == "All is done."
    assert len(server.signed()) == 2
    assert models.answered("between") == [0, 1, 2]


async def test_nobody_needs_to_look(tmp_path: Path) -> None:
    """Nothing is done after the restart: no request, no resume."""
    async with one_server(tmp_path) as (server, client, models):
        thread_id = await client.thread(server)
        run_id = await client.run(server, thread_id, "Count", "talks")
        await models.reached("door")
        await server.kill()
        models.release("door")
        await server.start()
        await until(lambda: models.answered("talks") == [0, 1])
        await until_status(server, client, thread_id, run_id, "success")


async def test_right_after_the_request_and_right_after_the_end(tmp_path: Path) -> None:
    """The run is started, and the actor that reacts to its end wakes up, although nobody was told before the kills."""
    async with one_server(tmp_path, actors=["tests.support.haiku:Haiku"]) as (server, client, models):
        thread_id = await client.thread(server)
        frames: list[Frame] = []
        run_id = await client.run(server, thread_id, "Hello", "quick")
        await server.kill()
        await server.start()
        await client.resume(server, thread_id, run_id, frames, "-1")
        await server.kill()
        await server.start()

        async def annotated() -> bool:
            return "thread.annotated" in await types(server, client, thread_id)

        await wait_for(annotated)
        events = await types(server, client, thread_id)
        thread = await client.get(server, f"/threads/{thread_id}")
    assert frames[-1].event == "end"
    assert events.count("run.completed") == events.count("thread.annotated") == 1
    assert thread["metadata"][f"haiku-{run_id}"] == HAIKU
    assert models.answered("quick") == [0]


async def until_status(server: Server, client: Browser, thread_id: str, run_id: str, status: str) -> None:
    """Also of a server that is not able to answer meanwhile."""

    async def reached() -> bool:
        return await client.status(server, thread_id, run_id) == status

    await wait_for(reached)


async def test_terminated_servers_drain(tmp_path: Path) -> None:
    async with one_server(tmp_path) as (server, client, models):
        thread_id = await client.thread(server)
        frames: list[Frame] = []
        reading = asyncio.create_task(client.start(server, thread_id, "Count", "talks", frames))
        await until(lambda: "one two " in texts(frames).values())
        assert await server.terminate() == 0
        await reading
        assert frames[-1].event != "end"
        models.release("door")
        await server.start()
        await client.resume(server, thread_id, run_of(frames), frames, last_id(frames))
        await check_stream(server, client, thread_id, frames)
        events = await types(server, client, thread_id)
    assert "run.cancel_requested" not in events
    assert events.count("run.completed") == 1
    assert models.answered("talks") == [0, 1]
    assert "Traceback" not in server.said()


async def test_nats_is_killed(tmp_path: Path) -> None:
    """The child dies under the server: it is started again, and runs go on."""
    async with one_server(tmp_path) as (server, client, models):
        thread_id = await client.thread(server)
        run_id = await client.run(server, thread_id, "Count", "talks")
        await models.reached("door")
        [child] = nats_of(server)
        os.kill(child, signal.SIGKILL)
        models.release("door")
        await until_status(server, client, thread_id, run_id, "success")
        assert nats_of(server) != [child]
        later = await client.run(server, thread_id, "Still there?", "quick")
        await until_status(server, client, thread_id, later, "success")
        events = await types(server, client, thread_id)
        assert server.process.returncode is None
    assert events.count("run.completed") == 2
    assert models.answered("talks") == [0, 1]
    assert len(server.signed()) == 1


def nats_of(server: Server) -> list[int]:
    """The nats-server processes of a server's data directory."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else [b""]
            if words[0].endswith(b"nats-server") and str(server.home / "nats/server.conf").encode() in words:
                found.append(int(entry.name))
    return found


async def refused(path: Path, *arguments: str) -> list[str]:
    """Start a server that must not start: what it says. The exit code is 2."""
    stderr = path / "second.log"
    second = await sika("serve", *arguments, ledger=path / "ledger.txt", stderr=stderr)
    try:
        async with asyncio.timeout(DEADLINE):
            assert await second.waited() == 2, stderr.read_text()
    finally:
        second.kill()
        await second.waited()
    return stderr.read_text().splitlines()


async def test_one_server_per_data_directory(tmp_path: Path) -> None:
    async with one_server(tmp_path) as (server, _, models):
        config = configure(tmp_path / "other.yaml", models)
        [line] = await refused(tmp_path, "--home", str(server.home), "--config", str(config), "--port", "0")
    assert line.startswith("sika: data directory")
    assert "in use" in line


async def test_a_busy_port(tmp_path: Path) -> None:
    async with one_server(tmp_path) as (server, _, models):
        port = server.url.rpartition(":")[2]
        config = configure(tmp_path / "other.yaml", models)
        lines = await refused(tmp_path, "--home", str(tmp_path / "else"), "--config", str(config), "--port", port)
    assert lines[-1].startswith(f"sika: port {port} is in use")


# ── two servers ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def workers(server: Server, client: Browser, thread_id: str) -> list[int]:
    """Process ids of those who started the thread's runs, in order."""
    log = await client.log(server, thread_id)
    return [int(event["worker"].split("-")[-2]) for event in log if event["type"] == "run.started"]


async def test_any_server_shows_and_stops_any_run(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (a, b, client, models):
        thread_id = await client.thread(a)
        run_id = await client.run(a, thread_id, "Count", "talks")
        await models.reached("door")
        frames: list[Frame] = []
        reading = asyncio.create_task(client.resume(b, thread_id, run_id, frames, "-1"))
        joining = asyncio.create_task(client.get(b, f"/threads/{thread_id}/runs/{run_id}/join"))
        await until(lambda: "signed a" in texts(frames).values())
        await client.post(b, f"/threads/{thread_id}/runs/{run_id}/cancel?wait=1")
        await reading
        joined = await joining
        assert await client.status(a, thread_id, run_id) == "interrupted"
        messages = await client.messages(a, thread_id)
        assert await client.messages(b, thread_id) == messages
        await check_stream(a, client, thread_id, frames)
    assert joined["messages"] == messages
    assert [m["content"] for m in messages] == ["Count", "First I sign.", "signed a", "one two "]


async def test_streams_through_both_are_the_same(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (a, b, client, models):
        thread_id = await client.thread(a)
        frames: dict[str, list[Frame]] = {"a": [], "b": []}
        starting = asyncio.create_task(client.start(a, thread_id, "Count", "talks", frames["a"]))
        await models.reached("door")
        await until(lambda: bool(frames["a"]))
        joining = asyncio.create_task(client.resume(b, thread_id, run_of(frames["a"]), frames["b"], "-1"))
        await until(lambda: "signed a" in texts(frames["b"]).values())
        models.release("door")
        await asyncio.gather(starting, joining)
        for seen in frames.values():
            await check_stream(b, client, thread_id, seen)
    assert facts(frames["a"]) == facts(frames["b"])


@pytest.mark.parametrize("shared", [False, True], ids=["own homes", "one home"])
async def test_the_other_server_takes_over(tmp_path: Path, shared: bool) -> None:
    async with cluster(tmp_path, shared=shared) as (a, b, client, models):
        thread_id = await client.thread(a)
        run_id = await client.run(a, thread_id, "Count", "talks")
        await models.reached("door")
        [first] = await workers(a, client, thread_id)
        killed, left = (a, b) if first == a.process.pid else (b, a)
        frames: list[Frame] = []
        reading = asyncio.create_task(client.resume(left, thread_id, run_id, frames, "-1"))
        await until(lambda: "signed a" in texts(frames).values())
        await killed.kill()
        assert [address.url for address in announced(left.home)] == [left.url]
        models.release("door")
        await reading
        await check_stream(left, client, thread_id, frames)
        assert await workers(left, client, thread_id) == [first, left.process.pid]
        messages = await client.messages(left, thread_id)
    assert messages[-1]["content"] == "one two three four"
    assert models.answered("talks") == [0, 1]
    assert len(a.signed()) == 1


async def test_a_command_outlives_its_server_in_a_shared_home(tmp_path: Path) -> None:
    async with cluster(tmp_path, shared=True) as (a, b, client, models):
        thread_id = await client.thread(a)
        run_id = await client.run(a, thread_id, "Work", "works")
        files = workspace(a, thread_id)
        await until(lambda: (files / "count.txt").exists())
        [first] = await workers(a, client, thread_id)
        killed, left = (a, b) if first == a.process.pid else (b, a)
        await killed.kill()
        (files / "go").touch()
        await until_status(left, client, thread_id, run_id, "success")
        messages = await client.messages(left, thread_id)
    assert {m["content"] for m in messages if m["name"] == "bash"} == {"real output"}
    assert (files / "count.txt").read_text() == "started\n"
    assert models.answered("works") == [0, 1]
    assert len(a.signed()) == 1
