"""What goes wrong with the all-in-one image, and the copies of a thread's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from aiohttp import ClientSession

from adapters.sandboxes.confine.confinement import binary
from adapters.sandboxes.remote.provider import Aio
from adapters.sandboxes.remote.sandbox import AioSandbox
from core.errors import Unavailable
from core.ports.sandbox import MachineLost, SandboxSetup, ShellCommand
from tests.adapters.sandboxes.conftest import running, settings
from tests.support.aio_image import Container
from tests.support.nats import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(binary() is None, reason="the stand-in needs bubblewrap"),
    pytest.mark.long(keep=3),
]
W = "/mnt/user-data/workspace"


@pytest.fixture
def container(aio_images: Callable[[bool], Container]) -> Container:
    container = aio_images(False)
    container.clear()
    return container


@pytest.fixture
def provider(container: Container, tmp_path: Path) -> Aio:
    return Aio(SandboxSetup(**settings(tmp_path), settings={"url": container.url}))


@pytest.fixture
async def sandbox(provider: Aio) -> AioSandbox:
    return await provider.acquire("ada", "t1")


async def run(sandbox: AioSandbox, command: str, call_id: str = "c1") -> tuple[str, str, int | None]:
    result = await sandbox.exec(call_id, ShellCommand(command, 60), lambda text: None)
    return result.stdout, result.stderr, result.exit_code


async def trouble(container: Container, **orders: object) -> None:
    async with ClientSession() as session, session.post(f"{container.url}/test", json=orders) as response:
        assert response.status == 200


@pytest.mark.parametrize("failures", [["502", "502"], ["reset"], ["lost"], ["lost", "502", "lost", "reset"]])
async def test_a_command_runs_once_whatever_becomes_of_requests(
    sandbox: AioSandbox, container: Container, failures: list[str]
) -> None:
    await run(sandbox, "true", "before")
    await trouble(container, failures=failures)
    assert await run(sandbox, "echo x >> count; cat count") == ("x\n", "", 0)


async def test_sessions_that_are_gone_are_replaced(sandbox: AioSandbox, container: Container) -> None:
    await run(sandbox, "true", "before")
    await trouble(container, forget=True)
    assert await run(sandbox, "echo on") == ("on\n", "", 0)


async def test_exit_ends_the_command_only(sandbox: AioSandbox) -> None:
    assert (await run(sandbox, "echo a; exit 7"))[2] == 7
    assert await run(sandbox, "echo b", "c2") == ("b\n", "", 0)


async def test_a_container_that_was_started_anew_is_a_lost_machine(
    sandbox: AioSandbox, provider: Aio, container: Container
) -> None:
    await sandbox.write("kept", "on the server")
    await run(sandbox, "true")
    container.clear()
    with pytest.raises(MachineLost):
        await run(sandbox, "true", "c2")
    successor = await provider.acquire("ada", "t1")
    assert await run(successor, "cat kept", "c3") == ("on the server", "", 0)
    assert (await run(successor, "true", "c1"))[2] == 0  # of before: recorded


async def test_one_thread_at_a_time(sandbox: AioSandbox, provider: Aio) -> None:
    with pytest.raises(Unavailable, match="another thread"):
        await provider.start("ada", "t2")
    (resident,) = await provider.residents()
    assert (resident.user, resident.thread) == ("ada", "t1")
    await run(sandbox, "echo secret > mine")
    await provider.end(resident.machine)
    assert await provider.residents() == []
    other = await provider.acquire("ada", "t2")
    assert (await run(other, "ls"))[0] == ""
    assert await sandbox.read("mine") == b"secret\n"


async def test_an_address_where_nothing_answers_is_named(tmp_path: Path) -> None:
    problem = await Aio(SandboxSetup(**settings(tmp_path), settings={"url": "http://127.0.0.1:1"})).check()
    assert problem is not None
    assert "http://127.0.0.1:1" in problem


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def here(tmp_path: Path, sandbox: AioSandbox) -> Path:
    return tmp_path / "home/users/ada/threads/t1/user-data"


async def test_what_people_change_is_there_for_the_next_command(sandbox: AioSandbox, here: Path) -> None:
    (here / "uploads/data.bin").write_bytes(bytes(range(256)))
    (here / "uploads/run").write_text("#!/bin/sh\necho ran\n")
    (here / "uploads/run").chmod(0o755)
    text = "cksum < ../uploads/data.bin; ../uploads/run"
    assert (await run(sandbox, text))[0] == "1313719201 256\nran\n"
    (here / "uploads/data.bin").unlink()
    assert (await run(sandbox, "ls ../uploads", "c2"))[0] == "run\n"


async def test_what_commands_change_is_here_afterwards(sandbox: AioSandbox, here: Path) -> None:
    await run(sandbox, "mkdir -p ../outputs/a; printf '\\377\\0' > ../outputs/a/b; echo x > gone; ln -s gone link")
    assert (here / "outputs/a/b").read_bytes() == b"\xff\0"
    assert (here / "workspace/link").is_symlink()
    await run(sandbox, "rm gone link; rm -r ../outputs/a; echo file > ../outputs/a", "c2")
    assert sorted(path.name for path in here.glob("*/*")) == ["a"]
    assert (here / "outputs/a").read_text() == "file\n"


async def test_links_of_a_machine_are_not_followed(sandbox: AioSandbox, here: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (here / "workspace/dir").symlink_to(outside)
    (here / "workspace/file").symlink_to(outside / "file")
    await run(sandbox, "rm -f dir file; mkdir dir; echo bad > dir/x; echo bad > file")
    assert list(outside.iterdir()) == []
    assert (here / "workspace/dir/x").read_text() == "bad\n"


async def test_changed_on_both_sides_the_command_wins_and_says_so(sandbox: AioSandbox, here: Path) -> None:
    await sandbox.write("both", "old")
    began = anyio.Event()
    results: list[tuple[str, str, int | None]] = []

    async def command() -> None:
        text = "echo on; while [ ! -e go ]; do sleep 0.01; done; echo agent > both"
        result = await sandbox.exec("c1", ShellCommand(text, 60), lambda _: began.set())
        results.append((result.stdout, result.stderr, result.exit_code))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(command)
        await began.wait()
        await sandbox.write("go", "")
        (here / "workspace/both").write_text("a person")
    assert (here / "workspace/both").read_text() == "agent\n"
    assert "/mnt/user-data/workspace/both: was changed by somebody else" in results[0][1]


async def test_files_over_the_limit_are_named(tmp_path: Path, container: Container) -> None:
    setup = settings(tmp_path)
    setup["quota"] = setup["quota"] | {"thread_bytes": 1 << 20}
    sandbox = await Aio(SandboxSetup(**setup, settings={"url": container.url})).acquire("ada", "t1")
    _, stderr, code = await run(sandbox, "head -c 2000000 /dev/zero > big; echo s > small")
    assert code == 0
    assert "big: over the limit" in stderr
    assert await sandbox.read("small") == b"s\n"
    assert await sandbox.version("big") is None


FILL = "i=0; while [ $i -lt 20 ]; do head -c 8000000 /dev/zero > f$i; i=$((i + 1)); done; sleep 987655"
"""160 MB; the limit of the settings is 64 MB."""


async def test_the_quota_ends_a_command(sandbox: AioSandbox) -> None:
    _, stderr, code = await run(sandbox, FILL)
    assert code == 137
    assert "sandbox.max_thread_mb" in stderr
    assert running("987655") == []
    assert (await run(sandbox, "rm f*; echo free", "c2"))[0] == "free\n"


async def test_the_quota_ends_a_command_in_the_background(provider: Aio, sandbox: AioSandbox) -> None:
    async def ended() -> bool:
        return (await sandbox.output("c1")).result is not None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.run)
        await anyio.wait_all_tasks_blocked()
        await sandbox.start("c1", ShellCommand(FILL, 100))
        await eventually(ended)
        tasks.cancel_scope.cancel()
    assert "sandbox.max_thread_mb" in (await sandbox.output("c1")).text
    assert running("987655") == []


async def test_a_thread_without_changes_sends_no_files(sandbox: AioSandbox, container: Container) -> None:
    await sandbox.write("a", "x")
    await run(sandbox, "true")
    base = container.root / "user-data/workspace/a"
    before = base.stat().st_ctime_ns
    await run(sandbox, "true", "c2")
    assert base.stat().st_ctime_ns == before


async def test_an_older_image_has_shells_only(aio_images: Callable[[bool], Container], tmp_path: Path) -> None:
    container = aio_images(True)
    container.clear()
    sandbox = await Aio(SandboxSetup(**settings(tmp_path), settings={"url": container.url})).acquire("ada", "t1")
    out, err, code = await run(sandbox, "head -c 100000 /dev/zero | tr '\\0' x; echo e >&2; exit 4")
    assert (len(out), err, code) == (100_000, "e\n", 4)


async def test_a_background_command_ends_with_the_kill(sandbox: AioSandbox) -> None:
    await sandbox.start("c1", ShellCommand("echo on; sleep 987644", 60))

    async def shown() -> bool:
        return (await sandbox.output("c1")).text == "on\n"

    await eventually(shown)
    await sandbox.kill("c1")
    result = (await sandbox.output("c1", (await sandbox.output("c1")).place)).result
    assert result is not None
    assert result.ended == "interrupted"
