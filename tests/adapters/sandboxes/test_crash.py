"""Commands when the server, or the supervisor, is killed with SIGKILL. Real processes."""

from __future__ import annotations

import marshal
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.sandboxes import record
from tests.adapters.sandboxes.conftest import provider_of, run, running, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ["bubblewrap", "host"])]

SERVER = """
import asyncio, sys
from pathlib import Path
from tests.adapters.sandboxes.conftest import provider_of, run
from adapters.sandboxes import record

async def main(kind, home, command, before_spawn, timeout):
    if before_spawn == "yes":
        record.Record._start = lambda *a: __import__("os").kill(__import__("os").getpid(), 9)
    sandbox = await provider_of(kind, Path(home)).acquire("ada", "t1")
    print(await run(sandbox, command, timeout=float(timeout)), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
COMMAND = "echo x >> count; touch started; while [ ! -e go ]; do sleep 0.01; done; echo end"


def server(
    kind: str, tmp_path: Path, command: str, *, before_spawn: bool = False, timeout: float = 60
) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", SERVER, kind, str(tmp_path), command, "yes" if before_spawn else "no", str(timeout)]
    return subprocess.Popen(words, cwd=Path(__file__).parents[3])


async def test_the_command_outlives_the_server(kind: str, tmp_path: Path, workspace: Path) -> None:
    first = server(kind, tmp_path, COMMAND)
    wait_for((workspace / "started").exists)
    first.kill()
    first.wait()
    (workspace / "go").touch()
    result = await run(await provider_of(kind, tmp_path).acquire("ada", "t1"), COMMAND)
    assert (result.stdout, result.exit_code, result.ended) == ("end\n", 0, "exited")
    assert (workspace / "count").read_text() == "x\n"


async def test_killed_before_the_start_it_runs_now(kind: str, tmp_path: Path, workspace: Path) -> None:
    first = server(kind, tmp_path, COMMAND, before_spawn=True)
    assert first.wait() == -signal.SIGKILL
    assert not (workspace / "count").exists()
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "go").touch()
    result = await run(await provider_of(kind, tmp_path).acquire("ada", "t1"), COMMAND)
    assert (result.stdout, result.exit_code) == ("end\n", 0)
    assert (workspace / "count").read_text() == "x\n"


async def test_a_zombie_and_its_successor_run_it_once(kind: str, tmp_path: Path, workspace: Path) -> None:
    servers = [server(kind, tmp_path, COMMAND) for _ in range(3)]
    wait_for((workspace / "started").exists)
    (workspace / "go").touch()
    assert [one.wait() for one in servers] == [0, 0, 0]
    assert (workspace / "count").read_text() == "x\n"


async def test_without_its_supervisor_it_is_interrupted_for_ever(kind: str, tmp_path: Path, workspace: Path) -> None:
    command = "(setsid sleep 987657 &); touch started; sleep 987657"
    first = server(kind, tmp_path, command)
    wait_for((workspace / "started").exists)
    first.kill()
    first.wait()
    calls = tmp_path / "home/users/ada/threads/t1/calls/c1"
    os.kill(int((calls / "pid").read_text()), signal.SIGKILL)
    sandbox = await provider_of(kind, tmp_path).acquire("ada", "t1")
    result = await run(sandbox, command)
    assert (result.ended, result.exit_code) == ("interrupted", None)
    wait_for(lambda: running("987657") == [])  # the kernel's own clean-up of the namespace is not instantaneous
    assert await run(sandbox, command) == result


async def test_an_orphan_is_stopped_in_time(kind: str, tmp_path: Path, workspace: Path) -> None:
    command = "touch started; sleep 987658"
    first = server(kind, tmp_path, command, timeout=3)
    wait_for((workspace / "started").exists)
    first.kill()
    first.wait()
    wait_for((tmp_path / "home/users/ada/threads/t1/calls/c1/exit").exists)
    assert running("987658") == []
    assert (await run(await provider_of(kind, tmp_path).acquire("ada", "t1"), command)).ended == "timeout"


def test_orders_that_were_cut_start_nothing(kind: str, tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    lock = os.open(tmp_path / "record" / "lock", os.O_CREAT | os.O_RDWR)
    words, orders = record.supervising(tmp_path / "record", lock), marshal.dumps({"argv": ["/bin/true"]})
    done = subprocess.run(words, input=orders[:-1], pass_fds=[lock], capture_output=True, check=False)
    os.close(lock)
    assert done.returncode != 0
    assert not (tmp_path / "record" / "pid").exists()
