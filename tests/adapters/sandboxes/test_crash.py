"""Commands when the server, or the supervisor, is killed with SIGKILL. Real processes."""

from __future__ import annotations

import marshal
import os
import signal
from pathlib import Path
from subprocess import DEVNULL

import anyio
import pytest
from anyio import to_thread

from adapters.sandboxes.process import record
from adapters.sandboxes.process.supervisor import CALL
from adapters.sandboxes.process.template import template
from core.ports.sandbox import ExecResult, ShellCommand
from tests.adapters.sandboxes import doomed
from tests.adapters.sandboxes.conftest import Local, provider_of, run, running, wait_for
from tests.support import warm

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ["bubblewrap", "host"]), pytest.mark.long(keep=3)]

COMMAND = "echo x >> count; touch started; while [ ! -e go ]; do sleep 0.01; done; echo end"


def server(kind: str, tmp_path: Path, command: str, *, before_spawn: bool = False, timeout: float = 60) -> warm.Process:
    return warm.start(
        doomed.__name__, kind, str(tmp_path), command, "yes" if before_spawn else "no", str(timeout), stdout=DEVNULL
    )


async def run_apart(sandbox: Local, command: str) -> ExecResult:
    """Runs a command in a sandbox that no other one has made beforehand: it has a variable of its own."""
    return await sandbox.exec("after", ShellCommand(command, 60, {"OWN": "1"}), lambda text: None)


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
    first = server(kind, tmp_path, command, timeout=10)
    wait_for((workspace / "started").exists)
    first.kill()
    first.wait()
    wait_for((tmp_path / "home/users/ada/threads/t1/calls/c1/exit").exists)
    assert running("987658") == []
    assert (await run(await provider_of(kind, tmp_path).acquire("ada", "t1"), command)).ended == "timeout"


def test_orders_that_were_cut_start_nothing(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "record"
    place.mkdir()
    lock = os.open(place / "lock", os.O_CREAT | os.O_RDWR)
    orders_read, orders_write = os.pipe()
    news_read, news_write = os.pipe()
    with open(place / "log", "ab") as log:
        template.request(CALL, [lock, log.fileno(), orders_read, news_write])
    for fd in (orders_read, news_write, lock):
        os.close(fd)
    os.write(orders_write, marshal.dumps((str(place), {"argv": ["/bin/true"]}))[:-1])
    os.close(orders_write)
    assert os.read(news_read, 1) == b""  # the supervisor has ended
    os.close(news_read)
    assert not (place / "pid").exists()
    assert "EOFError" in (place / "log").read_text()


async def test_without_the_template_another_one_starts(kind: str, tmp_path: Path, workspace: Path) -> None:
    sandbox = await provider_of(kind, tmp_path).acquire("ada", "t1")
    assert (await run(sandbox, "true", "before")).exit_code == 0
    first = template.pid
    async with anyio.create_task_group() as tasks:
        results: list[ExecResult] = []

        async def call() -> None:
            results.append(await run(sandbox, COMMAND))

        tasks.start_soon(call)
        await to_thread.run_sync(wait_for, (workspace / "started").exists)
        os.kill(first, signal.SIGKILL)
        assert (await run_apart(sandbox, "echo again")).stdout == "again\n"
        assert template.pid != first
        (workspace / "go").touch()
    assert (results[0].stdout, results[0].exit_code) == ("end\n", 0)  # its supervisor lived on


async def test_a_template_that_hangs_is_replaced(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await provider_of(kind, tmp_path).acquire("ada", "t1")
    assert (await run(sandbox, "true", "before")).exit_code == 0
    monkeypatch.setattr(record, "START_SECONDS", 10.0)
    first = template.pid
    os.kill(first, signal.SIGSTOP)
    assert (await run_apart(sandbox, "echo on")).stdout == "on\n"
    assert template.pid != first


async def test_the_template_ends_with_the_server(kind: str, tmp_path: Path, workspace: Path) -> None:
    first = server(kind, tmp_path, COMMAND)
    wait_for((workspace / "started").exists)
    pid = int((tmp_path / "home/users/ada/threads/t1/calls/c1/pid").read_text())
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    first.kill()
    first.wait()
    wait_for(lambda: not Path(f"/proc/{parent}").exists())
    assert Path(f"/proc/{pid}").exists()
    (workspace / "go").touch()
    assert (await run(await provider_of(kind, tmp_path).acquire("ada", "t1"), COMMAND)).stdout == "end\n"
