"""A server with one sandbox, for tests that need it under another uid: a command a line (JSON) in, a result out."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import anyio
import msgspec

from adapters.sandboxes.bubblewrap import Bubblewrap
from adapters.sandboxes.confine import seccomp
from adapters.sandboxes.host.sandbox import Host
from core.errors import Invalid
from core.ports.sandbox import SandboxSetup
from tests.adapters.sandboxes.conftest import Local, run, settings

KEY = b"sika-test-key"


def with_a_key() -> None:
    """What a server has that was started from a session with keys."""
    libc = ctypes.CDLL(None)
    libc.syscall(seccomp.number("keyctl"), 1, None)
    libc.syscall(seccomp.ABSENT["add_key"][0 if os.uname().machine == "x86_64" else 1], b"user", KEY, b"x", 1, -3)


async def main(home: str) -> None:
    bounds = settings(Path(home)) | {"memory_mb": 128, "max_processes": 32}
    bounds["quota"] = {"thread_bytes": 64 << 20, "thread_files": 2000, "user_bytes": 0, "user_files": 0}
    boxes: dict[str, Local] = {
        "bubblewrap": await Bubblewrap(SandboxSetup(**bounds)).acquire("ada", "t1"),
        "host": await Host(SandboxSetup(**bounds, allow_host_bash=True)).acquire("ada", "t2"),
    }
    for number, line in enumerate(sys.stdin):
        kind, script = msgspec.json.decode(line, type=tuple[str, str])
        box = boxes[kind]
        try:
            await box.write("probe.py", script)
            result = await run(box, "python3 probe.py", f"c{number}", timeout=30)
        except Invalid as error:
            result = str(error)  # type: ignore[assignment]
        print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    os.umask(0o022)
    with_a_key()
    anyio.run(main, sys.argv[1])
