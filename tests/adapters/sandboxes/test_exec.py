"""The contract of `exec`, on both local providers."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from adapters.sandboxes import supervisor, tail
from adapters.sandboxes.host import Host
from core.errors import Invalid
from core.ports.sandbox import SandboxSetup
from tests.adapters.sandboxes.conftest import SECRET, Local, run, running, settings, wait_for
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio


async def test_output_exit_code_and_place(sandbox: Local) -> None:
    result = await run(sandbox, "echo out; echo err >&2; pwd; exit 3")
    assert result.stdout == "out\n/mnt/user-data/workspace\n"
    assert (result.stderr, result.exit_code, result.ended) == ("err\n", 3, "exited")


async def test_a_signal_is_an_exit_code_as_in_shells(sandbox: Local) -> None:
    assert (await run(sandbox, "kill -9 $$")).exit_code == 137


async def test_python_runs(sandbox: Local) -> None:
    assert (await run(sandbox, "python3 -c 'print(6 * 7)'")).stdout == "42\n"


async def test_the_environment_is_the_configured_one_only(sandbox: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    result = await run(sandbox, "env")
    assert "CONFIGURED=yes" in result.stdout.splitlines()
    assert SECRET not in result.stdout


async def test_files_are_shared_with_commands(sandbox: Local) -> None:
    await sandbox.write("/mnt/user-data/outputs/in.txt", "hello")
    result = await run(sandbox, "cat /mnt/user-data/outputs/in.txt && echo made > made.txt")
    assert result.stdout == "hello"
    assert await sandbox.read("/mnt/user-data/workspace/made.txt") == b"made\n"


async def test_a_script_may_name_virtual_paths(sandbox: Local) -> None:
    await sandbox.write("go.py", "open('/mnt/user-data/outputs/x', 'w').write('done')")
    assert (await run(sandbox, "python3 go.py")).stderr == ""
    assert await sandbox.read("/mnt/user-data/outputs/x") == b"done"


async def test_the_same_call_runs_once(sandbox: Local, workspace: Path) -> None:
    for _ in range(2):
        result = await run(sandbox, "echo x >> count; cat count")
        assert result.stdout == "x\n"
    assert (workspace / "count").read_text() == "x\n"


async def test_concurrent_calls_with_one_id_run_once(sandbox: Local, workspace: Path) -> None:
    results = []

    async def call() -> None:
        results.append(await run(sandbox, "echo x >> count; cat count"))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(call)
    assert {result.stdout for result in results} == {"x\n"}
    assert (workspace / "count").read_text() == "x\n"


async def test_a_call_id_belongs_to_one_command(sandbox: Local) -> None:
    await run(sandbox, "true")
    with pytest.raises(Invalid, match="call_id"):
        await run(sandbox, "false")


@pytest.mark.parametrize("call_id", ["../../escape", "a/b", "", "x" * 200, "ünï", ".."])
async def test_any_call_id_makes_a_plain_directory(sandbox: Local, tmp_path: Path, call_id: str) -> None:
    assert (await run(sandbox, "echo ok", call_id)).stdout == "ok\n"
    assert len(list((tmp_path / "home/users/ada/threads/t1/calls").iterdir())) == 1


async def test_output_is_shown_while_it_grows(sandbox: Local, workspace: Path) -> None:
    shown: list[str] = []

    def on_output(text: str) -> None:
        shown.append(text)
        (workspace / "go").touch()

    command = "echo first ü; while [ ! -e go ]; do sleep 0.01; done; echo second"
    result = await sandbox.exec("c1", command, timeout=60, on_output=on_output)
    assert shown[0] == "first ü\n"
    assert "".join(shown) == result.stdout == "first ü\nsecond\n"


async def test_a_lot_of_output_keeps_head_and_tail(sandbox: Local) -> None:
    lines: list[str] = []
    command = "echo start; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end"
    result = await sandbox.exec("c1", command, timeout=60, on_output=lines.append)
    assert 0 < len("".join(lines)) <= tail.LIMIT
    assert result.stdout.startswith("start\nxxx")
    assert result.stdout.endswith("xxx\nend\n")
    assert " bytes skipped " in result.stdout
    assert len(result.stdout) < supervisor.HEAD + supervisor.TAIL + 100


async def test_a_timeout_ends_the_whole_tree(sandbox: Local) -> None:
    # Forked twice, with a session of its own: nobody's child any more.
    result = await run(
        sandbox, "(setsid sleep 987654 &) ; (setsid setsid sleep 987654 &); echo on; sleep 987654", timeout=1
    )
    assert (result.ended, result.exit_code, result.stdout) == ("timeout", None, "on\n")
    assert running("987654") == []
    assert (
        await run(sandbox, "(setsid sleep 987654 &) ; (setsid setsid sleep 987654 &); echo on; sleep 987654") == result
    )


async def test_background_processes_end_with_their_command(sandbox: Local) -> None:
    result = await run(sandbox, "(setsid sleep 987655 &); echo started")
    assert (result.stdout, result.exit_code) == ("started\n", 0)
    assert running("987655") == []


async def test_cancelling_leaves_the_command_and_kill_ends_it(sandbox: Local) -> None:
    command = "sleep 987656"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, sandbox, command)
        await to_thread.run_sync(wait_for, lambda: running("987656") != [])
        tasks.cancel_scope.cancel()
    assert running("987656") != []
    await sandbox.kill("c1")
    assert running("987656") == []
    assert (await run(sandbox, command)).ended == "interrupted"


async def test_a_call_killed_before_it_came_never_runs(sandbox: Local, workspace: Path) -> None:
    await sandbox.kill("c1")
    assert (await run(sandbox, "touch ran")).ended == "interrupted"
    assert not (workspace / "ran").exists()


async def test_too_many_processes_are_stopped(sandbox: Local) -> None:
    # Bounded by itself, so that a failure of this test does not take the machine down.
    fork = "import os, time\nfor _ in range(400):\n    os.fork() or time.sleep(60) or os._exit(0)\ntime.sleep(60)"
    result = await run(sandbox, f'exec -a crowd python3 -c "{fork}"')
    assert result.exit_code not in (0, None)
    assert running("crowd") == []


async def test_a_file_does_not_outgrow_its_limit(sandbox: Local, workspace: Path) -> None:
    assert (await run(sandbox, "head -c 50000000 /dev/zero > big")).exit_code != 0
    assert (workspace / "big").stat().st_size <= 8 << 20


async def test_memory_is_limited(sandbox: Local) -> None:
    result = await run(sandbox, "python3 -c 'x = bytearray(4 << 30)'")
    assert "MemoryError" in result.stderr


@pytest.mark.parametrize("command", ["echo \0", "x" * 200_000])
async def test_impossible_commands_are_refused(sandbox: Local, command: str) -> None:
    with pytest.raises(Invalid):
        await run(sandbox, command)


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
