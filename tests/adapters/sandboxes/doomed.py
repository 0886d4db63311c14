"""A server that is killed during a command: `python -m tests.adapters.sandboxes.doomed KIND HOME COMMAND DIES TIMEOUT`.

DIES: `yes` if it dies before it starts the command, `background` if after it has started it in the background.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio

from adapters.sandboxes.process import record
from core.ports.sandbox import RunsInBackground, ShellCommand
from tests.adapters.sandboxes.conftest import provider_of, run


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(*words: str) -> None:
    kind, home, command, dies, timeout = words
    if dies == "yes":
        record.Record._start = _die  # type: ignore[assignment,method-assign]
    sandbox = await provider_of(kind, Path(home)).acquire("ada", "t1")
    if dies == "background":
        assert isinstance(sandbox, RunsInBackground)
        await sandbox.start("c1", ShellCommand(command, float(timeout)))
        _die()
    await run(sandbox, command, timeout=float(timeout))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
