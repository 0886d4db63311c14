"""Real nats-servers for tests: one, or a JetStream cluster of three; they can be killed and come back where they were.

A server is shared by the tests of a file; each test has a prefix, hence streams, of its own. A test that kills
servers starts its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, TypeVar

import anyio
import anyio.to_thread
import nats
import nats.errors
import nats.js.errors

from core.bus import embedded
from core.bus.connection import Bus, connect
from core.bus.endpoint import Endpoint
from core.errors import Unavailable
from core.events import Aggregate, Event, Record
from core.ids import uuid7
from core.log.store import EventLog
from tests.support.ports import free_port

T = TypeVar("T")
READY_SECONDS = 120.0
DEADLINE = 120.0
"""How long a test waits for something that must happen; far more than it takes."""

# Streams in memory reserve their limit, and every test makes one: what is reserved is not used.
CONFIG = """\
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{store}", sync_interval: always, max_mem: 1TB }}
"""
CLUSTER = """\
cluster {{ name: test, listen: "127.0.0.1:{port}", no_advertise: true, routes: [{routes}] }}
"""


class Node:
    """One nats-server process with an address and a folder of its own."""

    def __init__(
        self, folder: Path, name: str, cluster: tuple[int, Sequence[int]] | None = None, store: Path | None = None
    ) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.last_lines: deque[str] = deque(maxlen=50)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()
        self._reader: threading.Thread | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "server.conf"
        text = CONFIG.format(name=name, port=self.port, store=store or folder / "js")
        if cluster is not None:
            own, every = cluster
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in every if port != own)
            text += CLUSTER.format(port=own, routes=routes)
        self._config.write_text(text)

    def launch(self) -> None:
        """Must be called from the main thread: on Linux the child dies with the thread that made it."""
        assert self._process is None
        command = [str(embedded.find_binary()), "--config", str(self._config)]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", embedded._LAUNCH_LINUX, str(os.getpid()), *command]
        self._ready = threading.Event()
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr, self._ready), daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        if not self._ready.wait(READY_SECONDS) or self._process is None or self._process.poll() is not None:
            raise RuntimeError("\n  ".join([f"{self.name} did not start:", *self.last_lines]))

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(READY_SECONDS)
        finally:
            self._process.kill()
        if self._reader is not None:
            self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process = None

    def _read(self, lines: IO[bytes], ready: threading.Event) -> None:
        for line in lines:
            self.last_lines.append(line.decode(errors="replace").rstrip())
            if b"Server is ready" in line:
                ready.set()
        ready.set()


class Nats:
    """One server or three. Killing and restarting leave the address and the data as they are."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.replicas = len(nodes)
        self.url = ",".join(node.url for node in nodes)

    def endpoint(self, prefix: str = "sika", url: str | None = None) -> Endpoint:
        return Endpoint(url or self.url, prefix=prefix, replicas=self.replicas)

    async def kill(self, number: int = 0, how: signal.Signals = signal.SIGKILL) -> None:
        """Returns when the process is gone."""
        await anyio.to_thread.run_sync(self.nodes[number].stop, how)

    async def restart(self, number: int = 0) -> None:
        """Returns when the server takes connections."""
        self.nodes[number].launch()
        await anyio.to_thread.run_sync(self.nodes[number].wait_ready)

    async def leader(self, bus: Bus, plane: str = "log") -> int:
        """Number of the node that leads a stream."""
        info = await bus.api(f"STREAM.INFO.{bus.names.stream(plane)}")
        name = info["cluster"]["leader"]
        return next(number for number, node in enumerate(self.nodes) if node.name == name)


@contextmanager
def running(folder: Path, nodes: int = 1) -> Iterator[Nats]:
    """Servers for a session's fixtures. A cluster has elected its leader when the block begins."""
    with _launched(folder, nodes) as made:
        asyncio.run(_formed(made))
        yield made


@asynccontextmanager
async def own(folder: Path, nodes: int = 1) -> AsyncIterator[Nats]:
    """Servers of one test's own, to be killed."""
    with _launched(folder, nodes) as made:
        await _formed(made)
        yield made


@contextmanager
def _launched(folder: Path, nodes: int) -> Iterator[Nats]:
    if nodes == 1:
        made = [Node(folder / "n0", "n0")]
    else:
        ports = [free_port() for _ in range(nodes)]
        made = [Node(folder / f"n{n}", f"n{n}", (port, ports)) for n, port in enumerate(ports)]
    try:
        for node in made:
            node.launch()
        for node in made:
            node.wait_ready()
        yield Nats(made)
    finally:
        for node in made:
            node.stop()


async def _formed(cluster: Nats) -> None:
    """A replicated stream can be made and unmade: the cluster works. There is no event for that, hence the tries."""
    client = await nats.connect(cluster.nodes[0].url, error_cb=_silent)
    js = client.jetstream()
    with anyio.fail_after(READY_SECONDS):
        while True:
            try:
                await js.add_stream(name="formed", subjects=["formed"], num_replicas=cluster.replicas)
                await js.delete_stream("formed")
                break
            except (nats.errors.Error, nats.js.errors.Error):
                await anyio.sleep(0.1)
    await client.close()


async def _silent(_: Exception) -> None:
    """nats-py prints errors unless somebody takes them."""


# ── a process of ours ───────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def bus_on(nats: Nats, prefix: str = "sika", url: str | None = None) -> AsyncIterator[Bus]:
    """A connection. A cluster that has just lost a node may refuse the first tries."""
    with anyio.fail_after(DEADLINE):
        while True:
            opened = connect(nats.endpoint(prefix, url))
            try:
                bus = await opened.__aenter__()
                break
            except Unavailable:
                await anyio.sleep(0.2)
    try:
        yield bus
    finally:
        await opened.__aexit__(None, None, None)


@asynccontextmanager
async def log_on(bus: Bus) -> AsyncIterator[EventLog]:
    """A log that listens and heals, as a process of the system has it."""
    log = EventLog(bus)
    await log.start()
    async with running_tasks(log.watch):
        yield log


@asynccontextmanager
async def running_tasks(*loops: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Loops that run for as long as the block lasts. An error of the block comes out as it is."""
    tasks = [asyncio.ensure_future(loop()) for loop in loops]
    try:
        yield
    finally:
        while any(not task.done() for task in tasks):  # again and again, as anyio does: nats-py swallows some
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.1)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()):
            raise error


# ── waiting and reading ─────────────────────────────────────────────────────────────────────────────────────────────


async def eventually(probe: Callable[[], Awaitable[T]], seconds: float = DEADLINE) -> T:
    """The first true answer of a probe: for what only asking can find out. Lost connections meanwhile are fine."""
    with anyio.fail_after(seconds):
        while True:
            try:
                if found := await probe():
                    return found
            except Unavailable:
                pass
            await anyio.sleep(0.02)


async def read(log: EventLog, aggregate: Aggregate, after: int = 0) -> list[Record]:
    return [record async for record in log.read(aggregate, after=after)]


async def take(follower: AsyncIterator[Record], count: int) -> list[Record]:
    """The next records of a follower."""
    found: list[Record] = []
    with anyio.fail_after(DEADLINE):
        async for record in follower:
            found.append(record)
            if len(found) == count:
                break
    return found


async def append(log: EventLog, aggregate: Aggregate, *events: Event, expected: int = 0) -> list[Record]:
    return await log.append(aggregate, events, expected=expected, actor="test")


def fresh(kind: str = "thread") -> Aggregate:
    return Aggregate(kind, uuid7())


# ── a bad line ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Proxy:
    """A line to one server. `deaf`: what the server says is held back; `mute`: what the client says is lost."""

    def __init__(self) -> None:
        self.url = ""
        self._deaf = False
        self._mute = False
        self._held: list[tuple[asyncio.StreamWriter, bytes]] = []
        self._said = bytearray()
        self._more = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    def deafen(self) -> None:
        self._deaf = True

    def silence(self) -> None:
        self._mute = True

    def restore(self) -> None:
        """As if nothing had been, except for what was lost."""
        self._deaf = self._mute = False
        for writer, data in self._held:
            writer.write(data)
        self._held.clear()

    def cut(self) -> None:
        """Close all connections; what is held back is lost. New ones work."""
        self._held.clear()
        self._deaf = self._mute = False
        for writer in list(self._writers):
            writer.close()

    async def said(self, words: bytes) -> None:
        """Wait until the client has said this (since the last call)."""
        with anyio.fail_after(DEADLINE):
            while words not in self._said:
                self._more.clear()
                await self._more.wait()
        self._said.clear()

    async def _serve(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", node.port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, forth}
        try:
            await asyncio.gather(self._up(reader, forth), self._down(back, writer))
        finally:
            self._writers -= {writer, forth}

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress_lost():
            while data := await reader.read(65536):
                self._said += data
                self._more.set()
                if not self._mute:
                    writer.write(data)
                    await writer.drain()
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress_lost():
            while data := await reader.read(65536):
                if self._deaf:
                    self._held.append((writer, data))
                else:
                    writer.write(data)
                    await writer.drain()
        writer.close()


@contextmanager
def suppress_lost() -> Iterator[None]:
    """Connections end; that is what the proxy is for."""
    try:
        yield
    except (OSError, asyncio.IncompleteReadError):
        return


@asynccontextmanager
async def proxy(node: Node) -> AsyncIterator[Proxy]:
    line = Proxy()
    served: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(line._serve(node, reader, writer))
        served.add(task)
        task.add_done_callback(served.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    line.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        server.close()
        line.cut()
        await asyncio.gather(*served, return_exceptions=True)
