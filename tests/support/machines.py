"""A sandbox provider whose machines are real processes, and a worker in a process of its own that serves them.

A machine is a process that sleeps. It does not belong to the worker that started it, so it survives that worker, and
can be killed under it. Commands run on this host; those of a machine, and their records, end with it.

As a process: `python -m tests.support.machines --url … --prefix … --home …` serves the sandbox actor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from actors.sandbox import Sandbox
from actors.sandbox.machines import Machines, Timing
from actors.sandbox.reaping import Reaper
from adapters.sandboxes.host.sandbox import Host, HostSandbox
from core.bus.endpoint import Endpoint
from core.config.sandbox import Sandbox as Limits
from core.config.sandbox import Sandbox as Settings
from core.errors import ungrouped
from core.ports.sandbox import ExecResult, Machine, MachineLost, Output, Resident, SandboxSetup, ShellCommand
from core.runtime import system
from core.runtime.system import System

T = TypeVar("T")
LOOK_SECONDS = 0.02


def quick(use: float = 4.0, start: float = 5.0) -> Timing:
    """Returns the times of a server in a hurry."""
    return Timing(use=use, claim=6.0, start=start, open=5.0, check=0.0)


class _Entry(msgspec.Struct, frozen=True):
    pid: int
    user: str
    thread: str


class Processes:
    """Starts a process for each thread. All workers of a home share its register of them."""

    name = "processes"

    def __init__(self, home: Path) -> None:
        self.home = home
        self.host = Host(SandboxSetup(home=home, allow_host_bash=True))
        self._register = home / "machines"
        self._register.mkdir(parents=True, exist_ok=True)

    async def check(self) -> str | None:
        return None

    async def acquire(self, user: str, thread: str) -> HostSandbox:
        raise NotImplementedError

    async def start(self, user: str, thread: str) -> Machine:
        return await anyio.to_thread.run_sync(self._start, user, thread)

    async def open(self, machine: Machine, user: str, thread: str) -> OnMachine:
        if not alive(int(machine.id)):
            raise MachineLost(f"the machine {machine.id} is gone")
        return OnMachine(int(machine.id), await self.host.acquire(user, thread))

    async def end(self, machine: Machine) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(machine.id), signal.SIGKILL)
        self._note("end", int(machine.id))
        await _gone(int(machine.id))

    async def residents(self) -> Sequence[Resident]:
        entries = [entry for entry in self._entries() if alive(entry.pid)]
        return [Resident(Machine(id=str(entry.pid)), entry.user, entry.thread) for entry in entries]

    def notes(self, what: str) -> list[int]:
        """Returns the machines that were started, or ended."""
        with contextlib.suppress(FileNotFoundError):
            lines = [line.split() for line in (self._register / "notes").read_text().splitlines()]
            return [int(pid) for word, pid in lines if word == what]
        return []

    def _start(self, user: str, thread: str) -> Machine:
        name = hashlib.sha256(f"{user}/{thread}".encode()).hexdigest()[:16]
        with self._locked():
            entry = next((e for e in self._entries() if (e.user, e.thread) == (user, thread)), None)
            if entry is None or not alive(entry.pid):
                entry = _Entry(_sleeper(), user, thread)
                (self._register / f"{name}.json").write_bytes(msgspec.json.encode(entry))
                self._note("start", entry.pid)
        return Machine(id=str(entry.pid))

    def _entries(self) -> list[_Entry]:
        return [msgspec.json.decode(path.read_bytes(), type=_Entry) for path in self._register.glob("*.json")]

    def _note(self, what: str, pid: int) -> None:
        with open(self._register / "notes", "a") as file:
            file.write(f"{what} {pid}\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._register / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def end_all(self) -> None:
        """Ends the machines that are left at the end of a test."""
        for entry in self._entries():
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGKILL)


def _sleeper() -> int:
    words = ["sleep", "600"]
    devnull = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    return os.posix_spawnp("sleep", words, dict(os.environ), setsid=True, file_actions=[devnull])


def alive(pid: int) -> bool:
    """Tells whether a process runs: one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def cut(pid: int) -> None:
    """Kills a machine, and returns when it is gone."""
    os.kill(pid, signal.SIGKILL)
    await _gone(pid)


async def _gone(pid: int) -> None:
    with anyio.fail_after(60):
        while True:
            if not alive(pid):
                return
            await anyio.sleep(LOOK_SECONDS)


class OnMachine:
    """A sandbox on a machine: everything it is asked ends when the machine does."""

    def __init__(self, pid: int, host: HostSandbox) -> None:
        self._pid, self._host = pid, host

    def _own(self, call_id: str) -> str:
        return f"{self._pid}-{call_id}"

    async def _while_alive(self, work: Callable[[], Awaitable[T]]) -> T:
        async def watch() -> None:
            while True:
                await anyio.sleep(LOOK_SECONDS)
                if not alive(self._pid):
                    raise MachineLost(f"the machine {self._pid} is gone")

        if not alive(self._pid):
            raise MachineLost(f"the machine {self._pid} is gone")
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                result = await work()
                tasks.cancel_scope.cancel()
        return result

    async def exec(self, call_id: str, command: ShellCommand, on_output: Callable[[str], None]) -> ExecResult:
        own = self._own(call_id)
        try:
            return await self._while_alive(lambda: self._host.exec(own, command, on_output))
        except MachineLost:
            await self._host.kill(own)
            raise

    async def start(self, call_id: str, command: ShellCommand) -> None:
        own = self._own(call_id)
        await self._while_alive(lambda: self._host.start(own, command))

    async def output(self, call_id: str, after: int = 0) -> Output:
        if not alive(self._pid):
            raise MachineLost(f"the machine {self._pid} is gone")
        return await self._host.output(self._own(call_id), after)

    async def kill(self, call_id: str) -> None:
        await self._host.kill(self._own(call_id))

    async def read(self, path: str) -> bytes:
        return await self._while_alive(lambda: self._host.read(path))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._host, name)

        async def checked(*positional: Any, **named: Any) -> Any:
            return await self._while_alive(lambda: method(*positional, **named))

        return checked


@asynccontextmanager
async def worker(
    endpoint: Endpoint,
    home: Path,
    provider: Processes,
    settings: Settings | Callable[[], Settings],
    timing: Timing,
    limits: Limits | None = None,
    *,
    begin: bool = True,
) -> AsyncIterator[System]:
    """A worker in this process that serves the sandbox actor, as a server does."""
    async with system.start(endpoint, home / f"views-{os.urandom(4).hex()}.db", lease_seconds=3, slots=16) as running:
        current = settings if callable(settings) else lambda: settings
        machines = Machines(running, provider, current, timing)
        actor = Sandbox(provider, limits or Limits(timeout_seconds=60), machines=machines)
        async with anyio.create_task_group() as tasks:

            async def serve(task_status: anyio.abc.TaskStatus[None]) -> None:
                await running.serve([actor], alone=False, task_status=task_status)

            await tasks.start(serve)
            if begin:
                await Reaper(machines).begin()
            try:
                yield running
            finally:
                tasks.cancel_scope.cancel()
                await Reaper(machines).stop()


async def _serve(options: argparse.Namespace) -> None:
    endpoint = Endpoint(options.url, prefix=options.prefix)
    home = Path(options.home)
    settings = Settings(idle_seconds=options.idle)
    async with worker(endpoint, home, Processes(home), settings, quick(), begin=False):
        print("serving", flush=True)
        await anyio.sleep_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="A worker that serves the sandbox actor, to be killed.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--home", required=True)
    parser.add_argument("--idle", type=int, default=600)
    asyncio.run(_serve(parser.parse_args()))


@asynccontextmanager
async def process(url: str, prefix: str, home: Path, idle: int = 600) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker in a process of its own, which serves when the block begins."""
    words = ["-m", "tests.support.machines", "--url", url, "--prefix", prefix, "--home", str(home), "--idle", str(idle)]
    child = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    try:
        assert child.stdout is not None
        async with asyncio.timeout(60):
            line = await child.stdout.readline()
        assert line == b"serving\n", line
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


if __name__ == "__main__":
    main()
