"""A server that is attacked: `python -m tests.adapters.sandboxes.escape.server BASE PROVIDER [ENGINE IMAGE]` prints the
verdicts.

It listens, has secrets in its environment, its home and its keyring, and the threads of other people. Runs under the
uid that it is started with.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from adapters.sandboxes.bubblewrap import Bubblewrap
from adapters.sandboxes.confine import seccomp
from adapters.sandboxes.docker.provider import Docker
from adapters.sandboxes.host.sandbox import Host
from core.files.paths import WORKSPACE
from core.ports.sandbox import SandboxSetup
from tests.adapters.sandboxes.conftest import SECRET, run, settings
from tests.adapters.sandboxes.escape import inside
from tests.adapters.sandboxes.escape.outside import OUTSIDE, Outside, World

AT_ONCE = 5
Provider = Bubblewrap | Docker | Host
PROVIDERS: dict[str, Callable[[SandboxSetup], Provider]] = {"bubblewrap": Bubblewrap, "docker": Docker, "host": Host}
"""Another provider is one more entry here, and one more column in `table.COLUMNS`."""
Verdicts = dict[str, tuple[str, str]]


def provider_of(kind: str, base: Path, options: Mapping[str, str]) -> Provider:
    bounds = settings(base) | {"memory_mb": 128, "max_processes": 32}
    bounds["quota"] = {"thread_bytes": 64 << 20, "thread_files": 2000, "user_bytes": 0, "user_files": 0}
    return PROVIDERS[kind](SandboxSetup(**bounds, allow_host_bash=kind == "host", settings=options))


def listener(stack: ExitStack, family: int, address: Any) -> Any:
    server = stack.enter_context(socket.socket(family))
    server.bind(address)
    server.listen(64)
    return server.getsockname()


def facts_of(base: Path, stack: ExitStack) -> dict[str, Any]:
    """Makes what is worth stealing, and returns where it is."""
    home, libc = base / "home", ctypes.CDLL(None)
    column = seccomp.ARCHITECTURES[os.uname().machine][1]
    by_their_arguments = {"clone": seccomp._CLONE, "unshare": seccomp._UNSHARE, "personality": seccomp._PERSONALITY}
    tables = (seccomp.REFUSED, seccomp.ABSENT, by_their_arguments)
    numbers = {name: table[name][column] for table in tables for name in table} | {"ptrace": (101, 117)[column]}
    libc.syscall(numbers["keyctl"], 1, None)
    libc.syscall(numbers["add_key"], b"user", b"sika-escape", b"x", 1, -3)
    files = {
        "config": home / "config.yaml",
        "token": home / "secrets/token",
        "other_thread": home / "users/ada/threads/other/user-data/workspace/note",
        "other_user": home / "users/bob/threads/t1/user-data/workspace/note",
    }
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)
    home.chmod(0o700)
    abstract, place = f"sika-escape-{os.getpid()}", tempfile.mkdtemp(dir=base)
    listener(stack, socket.AF_UNIX, "\0" + abstract)
    segment = libc.shmget(os.getpid(), 4096, 0o1600)
    stack.callback(libc.shmctl, segment, 0, None)
    return {
        **{name: str(path) for name, path in files.items()},
        **{"home": str(home), "base": str(base), "secret": SECRET, "pid": os.getpid(), "group": os.getpgid(0)},
        **{"calls": numbers, "machine": os.uname().machine, "abstract": abstract, "shm": os.getpid()},
        "program": "escape.server",
        "nats": listener(stack, socket.AF_INET, ("0.0.0.0", 0))[1],
        "http": listener(stack, socket.AF_INET, ("0.0.0.0", 0))[1],
        "socket": listener(stack, socket.AF_UNIX, f"{place}/socket"),
    }


async def attacked(kind: str, base: Path, facts: dict[str, Any], options: Mapping[str, str]) -> Verdicts:
    provider = provider_of(kind, base, options)
    verdicts: Verdicts = {}
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def one(attempt: Outside, number: int) -> None:
        async with limiter:
            acquire = partial(provider.acquire, "ada", f"t{number}")
            neighbour = partial(provider.acquire, "ada", f"n{number}")
            root = base / "home/users/ada/threads" / f"t{number}"
            state, _, detail = (await attempt.run(World(facts, await acquire(), root, acquire, neighbour))).partition(
                ": "
            )
            verdicts[f"{attempt.category}: {attempt.name}"] = (state, detail)
            await _end(provider, f"t{number}")
            await _end(provider, f"n{number}")

    box = await provider.acquire("ada", "inside")
    await box.write("inside.py", Path(inside.__file__).read_text())
    attempts = [one for one in inside.ATTEMPTS if kind != "host" or one.host is not None]
    names = [f"{attempt.category}: {attempt.name}" for attempt in attempts]
    await box.write("facts.json", msgspec.json.encode((facts, names)).decode())
    if kind == "host":  # its paths were translated for the host, where the attempts read those of the server
        (base / "home/users/ada/threads/inside/user-data/workspace/facts.json").write_bytes(
            msgspec.json.encode((facts, names))
        )
    await run(box, "true", "first")  # the attempts run in a sandbox that was made beforehand (`spare`), others do not
    result = await run(box, f"cd {WORKSPACE} && python3 inside.py facts.json", timeout=120)
    for line in result.stdout.splitlines():
        name, state, detail = msgspec.json.decode(line, type=tuple[str, str, str])
        verdicts[name] = (state, detail)
    if result.exit_code:
        verdicts["all: the attempts themselves"] = ("broken", result.stderr)
    await _end(provider, "inside")
    async with anyio.create_task_group() as tasks:
        for number, attempt in enumerate(OUTSIDE):
            if kind != "host" or attempt.host is not None:
                tasks.start_soon(one, attempt, number)
    return verdicts


async def _end(provider: Provider, thread: str) -> None:
    """Ends the machine of a thread, if the provider starts machines."""
    if isinstance(provider, Docker):
        for resident in await provider.residents():
            if resident.thread == thread:
                await provider.end(resident.machine)


def main(base: str, kind: str, *options: str) -> None:
    os.umask(0o022)
    with ExitStack() as stack:
        facts = facts_of(Path(base), stack)
        print(
            msgspec.json.encode(
                anyio.run(attacked, kind, Path(base), facts, dict(zip(("host", "image"), options, strict=False)))
            ).decode()
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
