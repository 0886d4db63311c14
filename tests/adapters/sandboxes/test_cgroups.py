"""Control groups: the kernel limits all processes of a command together, where the server may make groups."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from anyio import to_thread

from adapters.sandboxes.process import cgroups
from core.ports.sandbox import ShellCommand
from tests.adapters.sandboxes.conftest import Local, provider_of, run, wait_for
from tests.adapters.sandboxes.test_crash import server

pytestmark = [
    pytest.mark.long(keep=2),
    pytest.mark.anyio,
    pytest.mark.skipif(not {"memory", "pids"} <= cgroups.controllers(), reason="no control groups for this user"),
]


def left(mark: str) -> list[str]:
    return [path for path, _ in cgroups.groups(mark, 1, 1) if os.path.isdir(path)]


async def test_a_command_has_groups_while_it_runs(sandbox: Local, workspace: Path) -> None:
    mark = sandbox.calls.record("c1").mark
    shown: list[list[str]] = []

    def on_output(text: str) -> None:
        shown.append(left(mark))
        (workspace / "go").touch()

    command = "echo here; while [ ! -e go ]; do sleep 0.01; done"
    assert (await sandbox.exec("c1", ShellCommand(command, 60), on_output)).exit_code == 0
    assert len(shown[0]) == len(cgroups.bases())
    await to_thread.run_sync(wait_for, lambda: left(mark) == [])


async def test_out_of_memory_is_the_reason(sandbox: Local) -> None:
    """Twelve processes with 100 MB each: none of them exceeds the limit of a process."""
    hold = "import mmap,time; m=mmap.mmap(-1,100<<20); m.write(bytes(100<<20)); time.sleep(60)"
    result = await run(sandbox, f'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do python3 -c "{hold}" & done; wait')
    assert result.exit_code == 137
    assert "out of memory: more than 1024 MB of memory in all (sandbox.memory_mb)" in result.stderr


async def test_fork_fails_at_the_limit(sandbox: Local) -> None:
    code = """
import os, time
made = 0
try:
    for _ in range(300):
        os.fork() or time.sleep(60) or os._exit(0)
        made += 1
except BlockingIOError:
    print("refused after", made)
"""
    await sandbox.write("storm.py", code)
    result = await run(sandbox, "python3 storm.py")
    refused, made = result.stdout.rsplit(" ", 1)
    assert refused == "refused after"
    assert 50 < int(made) <= 100 + cgroups.OVERHEAD


@pytest.mark.parametrize("kind", ["bubblewrap", "host"])
async def test_groups_of_a_killed_supervisor_go_when_the_call_is_settled(
    kind: str, tmp_path: Path, workspace: Path
) -> None:
    first = server(kind, tmp_path, "touch started; sleep 987659")
    wait_for((workspace / "started").exists)
    first.kill()
    first.wait()
    os.kill(int((tmp_path / "home/users/ada/threads/t1/calls/c1/pid").read_text()), signal.SIGKILL)
    sandbox = await provider_of(kind, tmp_path).acquire("ada", "t1")
    assert (await run(sandbox, "touch started; sleep 987659")).ended == "interrupted"
    assert left(sandbox.calls.record("c1").mark) == []
