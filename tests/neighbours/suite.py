"""Ten conversations go on while one does something nasty: what they notice of it.

`python -m tests.neighbours` prints, for each nasty thing, how many of the ten saw an error, and their p95 beside that
of before; `test_neighbours.py` asserts that none did.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import sqlite3
import time
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import nats
from nats.aio.client import Client

from core.events import thread
from tests.e2e.servers import Browser, Frame, Server, browser, run_of, serving, texts
from tests.support import documents
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.workers import configure, wait_for

OTHERS = 10
ROUNDS_BEFORE = 3
"""Rounds of the others with nothing nasty going on: what p95 is compared with."""
SECONDS = 60.0
"""Deadline of one conversation's round; each takes about a second."""
LEASE = 2
SAID = ["Let me see.", "All is done."]


def bash(command: str) -> tuple[ToolCall, ...]:
    return (ToolCall("bash", {"description": "x", "command": command}),)


def calls(*calls: ToolCall) -> Script:
    return Script((Turn(text="", tool_calls=calls), Turn(text="Done.")))


COMMANDS = {
    "binary flood": "head -c 20000000 /dev/urandom",
    "300 kB of NUL": "head -c 300000 /dev/zero",
    "1 GB of output": "head -c 1073741824 /dev/zero | tr '\\0' x",
    "fork bomb": "b() { b | b & }; b; sleep 1",
    "memory bomb": 'python3 -c "x = bytearray(1 << 34); print(len(x))"',
    "names that are no text": "touch $'\\xff\\xfe' $'a\\nb' $'\\e[2J'; ls; cat $'\\xff\\xfe'",
}
TOOL = ["raises", "exits", "hangs", "returns no text", "returns a flood", "floods"]
SCRIPTS: dict[str, Script | list[Turn]] = {
    "kind": Script((Turn(text=SAID[0], tool_calls=bash("echo real output")), Turn(text=SAID[1]))),
    "plain": Script((Turn(text="Done."),)),
    **{name: calls(*bash(command)) for name, command in COMMANDS.items()},
    **{f"tool {how}": calls(ToolCall("nasty", {"how": how})) for how in TOOL},
    "policy raises at the call": calls(ToolCall("nasty", {"how": "policy raises at the call"})),
    "pattern that explodes": calls(
        *bash("printf 'a%.0s' $(seq 50000) > a.txt"),
        *(ToolCall("grep", {"path": "/mnt/user-data/workspace", "pattern": "(a+)+$"}) for _ in range(4)),
    ),
    "model fails": Script((Turn(error=Failure(status=400, message="\udcff".encode("utf-8", "replace").decode() * 9)),)),
    "model breaks off": Script((Turn(text="one two three", disconnect_after=2),)),
    "a million tokens": Script((Turn(text="word " * 30_000),)),
}


class World:
    """A server, a second one to be frozen, and what lies beneath."""

    def __init__(self, server: Server, client: Browser, models: ModelServer) -> None:
        self.server, self.client, self.models = server, client, models
        self.frames: dict[int, list[Frame]] = {}

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Client]:
        """With the server's own token, as an actor in another language would have it."""
        lines = (self.server.home / "nats/server.conf").read_text()
        port = lines.split("listen:", 1)[1].split("\n", 1)[0].strip().strip('"').rpartition(":")[2]
        token = (self.server.home / "secrets/nats_token").read_text().strip()
        client = await nats.connect(f"nats://127.0.0.1:{port}", token=token)
        try:
            yield client
        finally:
            await client.close()

    async def run(self, model: str, text: str = "Go on.", *, seconds: float = 8.0, **more: Any) -> None:
        """A conversation with this model, to its end; one that hangs is cancelled."""
        thread_id = await self.client.thread(self.server)
        run_id = await self.client.run(self.server, thread_id, text, model, **more)

        async def over() -> bool:
            status = await self.client.status(self.server, thread_id, run_id)
            return status not in ("pending", "running", "503")

        with suppress(TimeoutError):
            await wait_for(over, seconds)
            return
        path = f"/threads/{thread_id}/runs/{run_id}/cancel?wait=0&action=interrupt"
        await self.client.post(self.server, path)


Nasty = Callable[[World], Awaitable[None]]


async def junk_everywhere(world: World) -> None:
    """On every plane that a client of the bus can write to."""
    aggregate = thread("junk")
    async with world.bus() as bus:
        for junk in (b"", b"{not json", b"\xff\xfe" * 5000, b'{"seq":"x"}', b"[]", b"null", b"{}"):
            for actor in ("lead", "sandbox", "webhooks", "janitor", "scheduler", "nasty", "nobody"):
                for plane in ("cmd", "wake", "dlq", "call", "place", "timer"):
                    tail = "" if plane in ("call", "place") else f".{aggregate.kind}.{aggregate.id}"
                    await bus.publish(f"sika.{plane}.{actor}{tail}", junk)
                    await bus.publish(f"sika.{plane}.{actor}.short", junk)
            for subject in ("log.thread.junk", "live.thread.junk", "tok.junk", "log.junk", "live.junk"):
                await bus.publish(f"sika.{subject}", junk)
        await bus.flush()


async def hostile_files(world: World) -> None:
    form = aiohttp.FormData()
    form.add_field("files", documents.pdf("x", filler=10 << 20), filename="big.pdf")
    for name in ("bomb.docx", "bomb.xlsx", "bomb.pptx"):
        form.add_field("files", bomb(), filename=name)
    form.add_field("files", os.urandom(1 << 20), filename="noise.pdf")
    thread_id = await world.client.thread(world.server)
    url = f"{world.server.url}/api/threads/{thread_id}/uploads"
    async with aiohttp.ClientSession() as session, session.post(url, data=form) as response:
        await response.read()


@cache
def bomb() -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("[Content_Types].xml", b" " * (200 << 20))
        return file.getvalue()


async def slow_readers(world: World) -> None:
    """Twenty who ask for everything and read nothing."""
    thread_id = await world.client.thread(world.server)
    run_id = await world.client.run(world.server, thread_id, "Go on.", "a million tokens")
    port = int(world.server.url.rpartition(":")[2])
    path = f"/api/threads/{thread_id}/runs/{run_id}/stream?stream_mode=values&stream_mode=messages-tuple"
    writers = []
    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nLast-Event-ID: -1\r\n\r\n".encode())
        await writer.drain()
        writers.append(writer)
    await asyncio.sleep(3)
    for writer in writers:
        writer.transport.abort()


async def malformed_requests(world: World) -> None:
    port = int(world.server.url.rpartition(":")[2])
    for junk in (b"\x00" * 9000, b"GET / HTTP/9.9\r\n\r\n", b"POST /api/threads HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        for _ in range(50):
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(junk)
                await writer.drain()
                writer.close()
    deep = "[" * 100_000
    for body in (deep, '{"a":' * 50_000, '{"input": {"messages": 7}}', '{"config": {"configurable": null}}', "\x00"):
        async with aiohttp.ClientSession() as session:
            url = f"{world.server.url}/api/threads/x/runs"
            async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
                await response.read()


async def null_options(world: World) -> None:
    with suppress(AssertionError):  # refused, or a run that fails
        await world.run("plain", config={"configurable": None})


async def mistyped_events(world: World) -> None:
    """One that the extension's actor appends, and one that lies in the log already."""
    await world.run("plain", "mistyped event")
    thread_id = await world.client.thread(world.server)
    head = {"id": os.urandom(8).hex(), "kind": "thread", "aggregate": thread_id, "actor": "x", "at": "2026-11-22"}
    async with world.bus() as bus:
        for event in ({"type": "thread.annotated", "metadata": 17}, {"type": "run.requested", "run": "r", "input": 5}):
            body = json.dumps({**head, **event, "id": os.urandom(8).hex()}).encode()
            await bus.request(f"sika.log.thread.{thread_id}", body, timeout=5)
    await world.client.post(world.server, "/threads/search", {"limit": 100})
    await world.client.get(world.server, f"/threads/{thread_id}")


async def actors_asked(world: World) -> None:
    """Questions that are answered by an exception, by nothing, by a flood; and timers whose handler raises."""
    async with world.bus() as bus:
        for how in ("raises", "exits", "hangs", "floods"):
            await bus.publish("sika.call.nasty", json.dumps({"how": how}).encode(), reply=bus.new_inbox())
        await bus.publish("sika.wake.nasty.thread.x", b"{}")
        await bus.flush()


async def views_gone(world: World) -> None:
    for name in ("views.db", "views.db-wal", "views.db-shm"):
        (world.server.home / name).unlink(missing_ok=True)
    await world.client.post(world.server, "/threads/search", {})


async def views_damaged(world: World) -> None:
    with contextlib.closing(sqlite3.connect(world.server.home / "views.db")) as db, suppress(sqlite3.Error):
        db.execute("DROP TABLE threads")
        db.commit()
    await world.client.post(world.server, "/threads/search", {"query": "real"})


async def nats_killed(world: World) -> None:
    """The child of the server; its keeper starts it again."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if b"nats-server" in words and str(world.server.home / "nats/server.conf").encode() in words:
                os.kill(int(process.name), signal.SIGKILL)


async def deleted_while_at_work(world: World) -> None:
    thread_id = await world.client.thread(world.server)
    await world.client.run(world.server, thread_id, "Go on.", "tool hangs")
    url = f"{world.server.url}/api/threads/{thread_id}"
    async with aiohttp.ClientSession() as session, session.delete(url) as response:
        await response.read()


async def many_requests(world: World) -> None:
    """Fifty runs at once."""
    await asyncio.gather(*(world.run("plain") for _ in range(50)))


def conversation(model: str, text: str = "Go on.") -> Nasty:
    async def converse(world: World) -> None:
        await world.run(model, text)

    return converse


NASTY: dict[str, Nasty] = {
    **{name: conversation(name) for name in COMMANDS},
    **{f"tool {how}": conversation(f"tool {how}") for how in TOOL},
    **{f"policy {how}": conversation("plain", f"policy {how}") for how in ("raises", "exits", "hangs")},
    "policy raises at the call": conversation("policy raises at the call"),
    **{f"handler {how}": conversation("plain", f"handler {how}") for how in ("raises", "exits", "hangs")},
    "pattern that explodes": conversation("pattern that explodes"),
    "model fails": conversation("model fails"),
    "model breaks off": conversation("model breaks off"),
    "a million tokens": conversation("a million tokens"),
    "answers and timers of an actor": actors_asked,
    "mistyped events": mistyped_events,
    "junk on every subject": junk_everywhere,
    "hostile files": hostile_files,
    "slow readers": slow_readers,
    "malformed requests": malformed_requests,
    "null options": null_options,
    "views gone": views_gone,
    "views damaged": views_damaged,
    "nats killed": nats_killed,
    "deleted while at work": deleted_while_at_work,
    "fifty runs at once": many_requests,
}


class Outcome(NamedTuple):
    """What the ten saw: seconds of each of their rounds, and what went wrong in them."""

    seconds: list[float]
    errors: list[str]

    @property
    def p95(self) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]


async def others(world: World) -> Outcome:
    """One round of each of the ten, at once: a run with a command, streamed to its end."""
    seconds, errors = list[float](), list[str]()

    async def one(number: int) -> None:
        frames: list[Frame] = []
        begun = time.monotonic()
        try:
            async with asyncio.timeout(SECONDS):
                thread_id = await world.client.thread(world.server)
                await world.client.start(world.server, thread_id, f"Round of {number}", "kind", frames)
        except Exception as error:
            errors.append(f"{number}: {type(error).__name__}: {error}"[:300])
            return
        seconds.append(time.monotonic() - begun)
        if problem := _wrong(frames):
            errors.append(f"{number}: {problem} ({run_of(frames) if frames else 'no frames'})")

    await asyncio.gather(*(one(number) for number in range(OTHERS)))
    return Outcome(seconds, errors)


def _wrong(frames: list[Frame]) -> str | None:
    if not frames or frames[-1].event != "end":
        return f"the stream ended with {frames[-1].event if frames else 'nothing'}"
    final = [frame.data for frame in frames if frame.event == "values"][-1]["messages"]
    contents = [message["content"] for message in final if message["type"] in ("ai", "tool")]
    if contents != [SAID[0], "real output", SAID[1]]:
        return f"the conversation reads {contents}"
    seen = texts(frames)
    if any(seen.get(message["id"]) != message["content"] for message in final if message["type"] == "ai"):
        return f"the streamed text reads {seen}"
    return None


@asynccontextmanager
async def world(path: Path) -> AsyncIterator[World]:
    sections = {
        "runs": {"lease_seconds": LEASE},
        "sandbox": {"bash_timeout": 20},
        "tools": [{"name": "nasty", "use": "tests.neighbours.extension:nasty"}],
        "actors": ["tests.neighbours.extension:Nasty"],
        "middlewares": [{"use": "tests.neighbours.extension:Policy"}],
        "summarization": {"enabled": False},
    }
    async with ModelServer(SCRIPTS) as models, browser() as client:
        config = configure(path / "config.yaml", models, **sections)  # type: ignore[arg-type]
        async with serving(path / "home", config) as server:
            yield World(server, client, models)


async def beside(world: World, nasty: Nasty) -> Outcome:
    """A round of the others while somebody does something nasty. What that one comes to is its own affair."""
    doing = asyncio.ensure_future(nasty(world))
    await asyncio.sleep(0.3)
    outcome = await others(world)
    with suppress(Exception):
        await doing
    return outcome


async def settled(world: World) -> None:
    """The server answers, after whatever was done to it."""

    async def well() -> bool:
        with suppress(aiohttp.ClientError, AssertionError):
            await world.client.thread(world.server)
            return True
        return False

    await wait_for(well, SECONDS)
