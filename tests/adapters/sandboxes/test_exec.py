"""The contract of `exec`, on both local providers."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from adapters.sandboxes.host.sandbox import Host, HostSandbox
from core.errors import Invalid
from core.ports.sandbox import SandboxSetup
from tests.adapters.sandboxes.conftest import Local, run, running, settings
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio


async def test_python_runs(sandbox: Local) -> None:
    assert (await run(sandbox, "python3 -c 'print(6 * 7)'")).stdout == "42\n"


async def test_a_script_may_name_virtual_paths(sandbox: Local) -> None:
    await sandbox.write("go.py", "open('/mnt/user-data/outputs/x', 'w').write('done')")
    assert (await run(sandbox, "python3 go.py")).stderr == ""
    assert await sandbox.read("/mnt/user-data/outputs/x") == b"done"


@pytest.mark.parametrize("call_id", ["../../escape", "a/b", "", "x" * 200, "ünï", ".."])
async def test_any_call_id_makes_a_plain_directory(sandbox: Local, tmp_path: Path, call_id: str) -> None:
    assert (await run(sandbox, "echo ok", call_id)).stdout == "ok\n"
    assert len(list((tmp_path / "home/users/ada/threads/t1/calls").iterdir())) == 1


async def test_too_many_processes_are_stopped(sandbox: Local) -> None:
    # Bounded by itself, so that a failure of this test does not take the machine down.
    fork = "import os, time\nfor _ in range(400):\n    os.fork() or time.sleep(60) or os._exit(0)\ntime.sleep(60)"
    result = await run(sandbox, f'exec -a crowd python3 -c "{fork}"')
    assert result.exit_code not in (0, None)
    assert running("crowd") == []


async def test_memory_is_limited(sandbox: Local) -> None:
    result = await run(sandbox, "python3 -c 'x = bytearray(4 << 30)'")
    assert "MemoryError" in result.stderr


async def test_old_records_are_swept(tmp_path: Path, sandbox: Local) -> None:
    await run(sandbox, "true", "old")
    await run(sandbox, "true", "new")
    calls = tmp_path / "home/users/ada/threads/t1/calls"
    os.utime(calls / "old", (0, 0))
    sandbox.calls.sweep()
    assert [path.name for path in calls.iterdir()] == ["new"]


async def test_one_sandbox_per_thread(tmp_path: Path) -> None:
    host = Host(SandboxSetup(**settings(tmp_path), allow_host_bash=False))
    made = []

    async def acquire() -> None:
        made.append(await host.acquire("ada", "t1"))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(acquire)
    assert len({id(one) for one in made}) == 1


@pytest.mark.parametrize("bad", ["", "..", "a/b", "a b", "ä", "a\n"])
async def test_ids_are_plain(tmp_path: Path, bad: str) -> None:
    host = Host(SandboxSetup(**settings(tmp_path), allow_host_bash=False))
    with pytest.raises(Invalid):
        await host.acquire(bad, "t1")
    with pytest.raises(Invalid):
        await host.acquire("ada", bad)


async def test_a_supervisor_is_reaped_without_another_command(sandbox: Local, tmp_path: Path) -> None:
    await run(sandbox, "true")
    pid = int((tmp_path / "home/users/ada/threads/t1/calls/c1/pid").read_text())

    async def gone() -> bool:
        return not Path(f"/proc/{pid}").exists()

    await eventually(gone)


@pytest.mark.parametrize(
    "closing",
    ["chmod 000 /mnt/user-data/workspace", "chmod 500 /mnt/user-data/outputs", "chmod 000 /mnt/user-data/uploads"],
)
async def test_a_command_cannot_close_the_folders_of_later_ones(sandbox: Local, closing: str) -> None:
    await run(sandbox, closing, "closes")
    places = [f"/mnt/user-data/{name}/late" for name in ("workspace", "outputs", "uploads")]
    result = await run(sandbox, "; ".join(f"echo x > {place} && cat {place}" for place in places), "later")
    assert (result.stdout, result.stderr) == ("x\nx\nx\n", "")


async def test_a_command_cannot_close_tmp_for_later_ones(sandbox: Local) -> None:
    if isinstance(sandbox, HostSandbox):
        return  # the /tmp of the machine
    await run(sandbox, "chmod 000 /tmp", "closes")
    assert (await run(sandbox, "echo x > /tmp/late && cat /tmp/late", "later")).stdout == "x\n"
