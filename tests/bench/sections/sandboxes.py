"""What a command costs in each sandbox, beside a bare process; how long one takes to begin; many threads; a lot of
output.

A tool call is the request of `bash` over the bus to the sandbox actor, and its answer. The providers take turns, which
leaves a pause between two calls of one, as an agent does while its model answers; "of a thread that has its sandbox" is
without a pause.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from actors.sandbox import Sandbox as Actor
from actors.sandbox.machines import machines_of
from adapters.sandboxes.bubblewrap import Bubblewrap
from adapters.sandboxes.docker.provider import Docker
from adapters.sandboxes.host.sandbox import Host
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.config.sandbox import Sandbox as Limits
from core.config.sandbox import Sandbox as Settings
from core.ports.sandbox import RunsInBackground, Sandbox, SandboxProvider, SandboxSetup, ShellCommand
from core.runtime import system
from core.runtime.system import System
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, memory_bytes, percentile, ratio
from tests.support import engine

OF_HOST, OF_BUBBLEWRAP = 1.5, 2.0
"""Most of a tool call in bubblewrap, of the host's; most of one in a container, of bubblewrap's."""
TOOL_MS = 25.0
"""Most of a tool call in bubblewrap."""
OUTPUT_BYTES = 1 << 30
GROWTH_MB = 64
"""Most that the server and the command's supervisor grow by a lot of output, which they store 4 MB of."""
THREADS, AT_ONCE = 200, 8
STARTS = 10
USER = "bench"


@dataclass
class Figures:
    """What was measured of one provider, in seconds and bytes."""

    command: list[float] = field(default_factory=list)
    tool: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    growth: int = 0
    crowd: list[float] = field(default_factory=list)
    crowd_bytes: float = 0.0
    """Of each thread."""


@dataclass(frozen=True)
class Subject:
    """A provider, the sandbox of a thread, and a worker that serves it."""

    provider: SandboxProvider
    sandbox: Sandbox
    worker: System
    memory: Callable[[], int]
    """Returns the bytes of the server, and of all processes of its sandboxes."""

    async def tool(self, call: str, thread: str = USER) -> None:
        request = {"op": "exec", "user": USER, "thread": thread, "run": "r", "call_id": call, "command": "true"}
        assert (await self.worker.call("sandbox", request | {"detailed": True}))["exit_code"] == 0


def sandboxes(lab: Laboratory) -> Iterator[Row]:
    bare, figures = anyio.run(_measured, lab)
    for name, own in figures.items():
        yield _row(f"{name}: a command, of a bare process", own.command, bare)
    for name, other, limit in (("bubblewrap", "host", OF_HOST), ("docker", "bubblewrap", OF_BUBBLEWRAP)):
        if name in figures:
            row = f"{name}: a whole tool call, of {other}'s"
            yield _row(row, figures[name].tool, figures[other].tool, limit)
    for name, own in figures.items():
        most = at_most(TOOL_MS) if name == "bubblewrap" else None
        yield Row(f"{name}: a whole tool call, p50 (ms)", _ms(own.tool), most, note=f"p95 {_ms(own.tool, 95):.1f}")
        note = f"p95 {_ms(own.cold, 95):.1f}; of a thread that has its sandbox {_ms(own.warm):.1f}"
        yield Row(f"{name}: first command of a thread (ms)", _ms(own.cold), note=note)
        note = f"p95 {_ms(own.crowd, 95):.1f}; each thread has a command that runs: {own.crowd_bytes / 1e6:.1f} MB"
        yield Row(f"{name}: tool calls of {_threads(lab)} threads, {AT_ONCE} at once (ms)", _ms(own.crowd), note=note)
        yield Row(f"{name}: growth by a lot of output (MB)", own.growth / (1 << 20), at_most(GROWTH_MB))
    if reason := engine.problem():
        yield Row("docker: not measured", 0, note=reason)


def _row(what: str, ours: list[float], bare: list[float], limit: float | None = None) -> Row:
    note = f"p95 {_ms(ours, 95):.1f} and {_ms(bare, 95):.1f} ms"
    return Row(what, ratio(ours, bare), at_most(limit) if limit else None, "ms", _ms(ours), _ms(bare), note=note)


def _ms(seconds: list[float], percent: float = 50) -> float:
    return 1000 * percentile(seconds, percent)


def _threads(lab: Laboratory) -> int:
    return THREADS // 10 if lab.quick else THREADS


async def _measured(lab: Laboratory) -> tuple[list[float], dict[str, Figures]]:
    bare: list[float] = []
    async with AsyncExitStack() as stack:
        subjects = await _subjects(lab.new_home(), stack)
        figures = {name: Figures() for name in subjects}
        calls = 20 if lab.quick else 200
        lab.say(f"{calls} commands in each of {', '.join(subjects)}")
        for number in range(-2, calls):  # two to warm up
            begun = time.perf_counter()
            _bare()
            alone = time.perf_counter() - begun
            command = {
                name: await _timed(partial(_run, subject.sandbox, f"c{number}", "true"))
                for name, subject in subjects.items()
            }
            tool = {name: await _timed(partial(subject.tool, f"t{number}")) for name, subject in subjects.items()}
            if number >= 0:
                bare.append(alone)
                for name in subjects:
                    figures[name].command.append(command[name])
                    figures[name].tool.append(tool[name])
        for name, subject in subjects.items():
            lab.say(f"starts, output and {_threads(lab)} threads in {name}")
            await _starts(subject, figures[name])
            await _output(subject, figures[name], OUTPUT_BYTES >> (5 if lab.quick else 0))
            await _crowd(subject, figures[name], _threads(lab))
    return bare, figures


async def _starts(subject: Subject, figures: Figures) -> None:
    for number in range(STARTS):

        async def command(call: str, thread: str = f"new{number}") -> None:
            await _run(await subject.provider.acquire(USER, thread), call, "true")

        figures.cold.append(await _timed(partial(command, "first")))
        figures.warm.append(await _timed(partial(command, "second")))


async def _output(subject: Subject, figures: Figures, output: int) -> None:
    before = subject.memory()
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while True:
                now = await anyio.to_thread.run_sync(subject.memory)
                figures.growth = max(figures.growth, now - before)
                await anyio.sleep(0.2)

        tasks.start_soon(watch)
        await _run(subject.sandbox, "output", f"head -c {output} /dev/zero")
        tasks.cancel_scope.cancel()


async def _crowd(subject: Subject, figures: Figures, threads: int) -> None:
    before, limiter = subject.memory(), anyio.CapacityLimiter(AT_ONCE)

    async def begin(number: int) -> None:
        async with limiter:
            sandbox = await subject.provider.acquire(USER, f"crowd{number}")
            assert isinstance(sandbox, RunsInBackground)
            await sandbox.start("long", ShellCommand("sleep 600", 600))

    async def ask(number: int) -> None:
        async with limiter:
            figures.crowd.append(await _timed(partial(subject.tool, "t", f"crowd{number}")))

    async def end(number: int) -> None:
        async with limiter:
            await (await subject.provider.acquire(USER, f"crowd{number}")).kill("long")

    await _each(begin, threads)
    figures.crowd_bytes = (subject.memory() - before) / threads
    for work in (ask, end):
        await _each(work, threads)


async def _each(work: Callable[[int], Coroutine[None, None, None]], count: int) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(work, number)


# ── providers ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _subjects(home: Path, stack: AsyncExitStack) -> Mapping[str, Subject]:
    nats = await stack.enter_async_context(embedded.start(home))
    providers: dict[str, SandboxProvider] = {
        "host": Host(SandboxSetup(home=home / "host", allow_host_bash=True)),
        "bubblewrap": Bubblewrap(SandboxSetup(home=home / "bubblewrap")),
    }
    shims = ""
    if engine.problem() is None:
        running = stack.enter_context(engine.engine())
        shims = running.host.removeprefix("unix://").removesuffix("sock")
        options = {"host": running.host, "image": engine.GNU_IMAGE}
        providers["docker"] = Docker(SandboxSetup(home=home / "docker", settings=options))
    return {
        name: Subject(
            provider,
            await provider.acquire(USER, USER),
            await stack.enter_async_context(_worker(Endpoint(nats.url, token=nats.token, prefix=name), home, provider)),
            partial(_memory, shims if name == "docker" else ""),
        )
        for name, provider in providers.items()
    }


@asynccontextmanager
async def _worker(endpoint: Endpoint, home: Path, provider: SandboxProvider) -> AsyncIterator[System]:
    """Serves the sandbox actor as a server does."""
    async with system.start(endpoint, home / f"{provider.name}.db", lease_seconds=30, slots=16) as running:
        machines = machines_of(running, provider, lambda: Settings(replicas=0))
        actor = Actor(provider, Limits(), log=running.log, machines=machines)
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(running.serve, [actor], alone=False))
            yield running
            tasks.cancel_scope.cancel()


def _memory(shims: str) -> int:
    """Returns the bytes of this process and all that it started; those of containers belong to processes that have the
    engine's folder in their command line.
    """
    pids = [os.getpid()]
    for name in filter(str.isdigit, os.listdir("/proc") if shims else ()):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if b"containerd-shim" in words and shims.encode() in words:
            pids.append(int(name))
    return sum(memory_bytes(pid) for pid in pids)


async def _run(sandbox: Sandbox, call: str, command: str) -> None:
    result = await sandbox.exec(call, ShellCommand(command, 300), lambda _: None)
    assert result.exit_code == 0, result.stderr


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


def _bare() -> None:
    subprocess.run(["sh", "-c", "true"], check=True)
