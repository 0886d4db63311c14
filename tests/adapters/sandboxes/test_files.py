"""The file operations of the port, on both local providers, against an agent that plays foul."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from adapters.sandboxes.bubblewrap import Bubblewrap
from adapters.sandboxes.files import changes, search
from adapters.sandboxes.host.sandbox import Host
from adapters.sandboxes.process import quota
from adapters.sandboxes.process.record import Record
from core.errors import Invalid
from core.ports.sandbox import Query
from tests.adapters.sandboxes.conftest import SECRET, Local, run, running, wait_for
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio
W = "/mnt/user-data/workspace"
BOMB = Query(pattern="(a+)+$")
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text(SECRET)
    return tmp_path / "private"


@pytest.mark.parametrize("wrote", [False, True])
async def test_a_change_that_crashed(sandbox: Local, monkeypatch: pytest.MonkeyPatch, wrote: bool) -> None:
    """The intent is recorded, then the machine stops, before or after the file was replaced."""
    await sandbox.write("a", "x")
    publish = changes._publish

    def crash(record: Record, change: changes.Change) -> None:
        if wrote != change.done:
            return publish(record, change)
        if not wrote:
            publish(record, change)
        raise KeyboardInterrupt

    monkeypatch.setattr(changes, "_publish", crash)
    with pytest.raises(KeyboardInterrupt):
        await sandbox.write("a", "y", append=True, call_id="c1")
    monkeypatch.undo()
    assert await sandbox.read("a") == (b"xy" if wrote else b"x")
    await sandbox.write("a", "y", append=True, call_id="c1")
    assert await sandbox.read("a") == b"xy"


@pytest.mark.parametrize(
    ("left", "then"),
    [("", "xlong"), ("lo", "xlong"), ("long", "xlong"), ("longer", "xlonger"), ("other", "xother"), (None, None)],
)
async def test_an_append_that_crashed_is_completed(
    sandbox: Local, workspace: Path, monkeypatch: pytest.MonkeyPatch, left: str | None, then: str | None
) -> None:
    """The intent is recorded, then the machine stops; `left` is there of the text, or what somebody wrote since."""
    await sandbox.write("a", "x")
    publish, file = changes._publish, workspace / "a"

    def crash(record: Record, change: changes.Change) -> None:
        publish(record, change)
        raise KeyboardInterrupt

    monkeypatch.setattr(changes, "_publish", crash)
    with pytest.raises(KeyboardInterrupt):
        await sandbox.write("a", "long", append=True, call_id="c1")
    monkeypatch.undo()
    file.unlink() if left is None else file.write_text(f"x{left}")
    for _ in range(2):
        await sandbox.write("a", "long", append=True, call_id="c1")
        assert (file.read_text() if file.exists() else None) == then


async def test_an_append_does_not_write_the_file_anew(sandbox: Local, workspace: Path) -> None:
    await sandbox.write("a", "x")
    before = (workspace / "a").stat().st_ino
    for call_id in (None, "c1"):
        await sandbox.write("a", "y", append=True, call_id=call_id)
    assert ((workspace / "a").read_text(), (workspace / "a").stat().st_ino) == ("xyy", before)


async def test_appends_reach_only_files_that_may_be_written(sandbox: Local, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "fixed").symlink_to("/mnt/readonly/fixed.txt")
    for path, reason in {"pipe": "not a file", W: "a directory", "fixed": "read-only"}.items():
        with pytest.raises(Invalid, match=reason):
            await sandbox.write(path, "y", append=True)


async def test_a_write_keeps_the_mode_and_leaves_no_traces(sandbox: Local, workspace: Path) -> None:
    await sandbox.write("tool.sh", "1")
    (workspace / "tool.sh").chmod(0o755)
    await sandbox.write("tool.sh", "2")
    assert (workspace / "tool.sh").stat().st_mode & 0o777 == 0o755
    assert os.listdir(workspace) == ["tool.sh"]


async def test_host_paths_are_refused_and_never_shown(sandbox: Local, workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        await sandbox.read(str(workspace / "a"))
    with pytest.raises(Invalid) as error:
        await sandbox.read("missing")
    assert str(tmp_path) not in str(error.value)


async def test_mounts_are_there(sandbox: Local) -> None:
    assert await sandbox.read("/mnt/skills/demo/SKILL.md") == b"a skill"
    await sandbox.write("/mnt/shared/x", "y")
    assert (await sandbox.list("/mnt")).found == [
        "/mnt/readonly/",
        "/mnt/readonly/fixed.txt",
        "/mnt/shared/",
        "/mnt/shared/x",
        "/mnt/skills/",
        "/mnt/skills/demo/",
        "/mnt/skills/user/",
        "/mnt/user-data/",
        "/mnt/user-data/outputs/",
        "/mnt/user-data/uploads/",
        "/mnt/user-data/workspace/",
    ]


async def test_links_that_lead_outside(sandbox: Local, workspace: Path, secret: Path) -> None:
    (workspace / "file").symlink_to(secret / "key")
    (workspace / "dir").symlink_to(secret)
    (workspace / "up").symlink_to("../../../../../../../private")
    (workspace / "loop").symlink_to("loop")
    for path in ("file", "dir/key", "up/key", "loop"):
        with pytest.raises(Invalid):
            await sandbox.read(path)
        with pytest.raises(Invalid):
            await sandbox.write(path, "overwritten")
    assert (await sandbox.list(W)).found == []
    for path in ("dir", "up"):
        with pytest.raises(Invalid):
            await sandbox.list(path)
        with pytest.raises(Invalid):
            await sandbox.grep(path, Query(pattern=SECRET, literal=True))
    assert (await sandbox.grep(W, Query(pattern=SECRET, literal=True))).found == []
    assert (secret / "key").read_text() == SECRET


async def test_links_within_mean_what_the_agent_means(sandbox: Local, workspace: Path) -> None:
    await sandbox.write("/mnt/user-data/outputs/real", "text")
    (workspace / "virtual").symlink_to("/mnt/user-data/outputs/real")
    (workspace / "relative").symlink_to("../outputs/real")
    (workspace / "outputs").symlink_to("/mnt/user-data/outputs")
    for path in ("virtual", "relative", "outputs/real"):
        assert await sandbox.read(path) == b"text"
    await sandbox.write("relative", "new")
    assert await sandbox.read("/mnt/user-data/outputs/real") == b"new"
    assert (workspace / "relative").is_symlink()
    assert f"{W}/outputs/" in (await sandbox.list(W)).found


async def test_a_link_swapped_during_the_operation(sandbox: Local, workspace: Path, secret: Path) -> None:
    (workspace / "good").mkdir()
    (workspace / "good" / "key").write_text("harmless")
    (workspace / "evil").symlink_to(secret)
    stop = threading.Event()

    def swap() -> None:
        good, evil = (os.fsencode(workspace / name) for name in ("good", "evil"))
        while not stop.is_set():
            ctypes.CDLL(None).renameat2(AT_FDCWD, good, AT_FDCWD, evil, RENAME_EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = 0
        for _ in range(300):
            try:
                assert await sandbox.read("good/key") in (b"harmless", b"written")
                await sandbox.write("good/key", "written")
                seen += 1
            except Invalid:
                continue
    finally:
        stop.set()
        thread.join()
    assert seen > 0
    assert (secret / "key").read_text() == SECRET
    assert os.listdir(secret) == ["key"]


async def test_a_catastrophic_pattern_is_stopped(sandbox: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.sandboxes.files.operations.SEARCH_SECONDS", 1.0)
    monkeypatch.setattr("adapters.sandboxes.files.operations.KILL_SECONDS", 0.0)
    monkeypatch.setattr("adapters.sandboxes.files.operations.ripgrep", lambda: None)
    await sandbox.write("a", "a" * 100 + "!")
    with pytest.raises(Invalid, match="longer than"):
        await sandbox.grep(W, BOMB)


async def test_ripgrep_has_no_catastrophic_patterns(sandbox: Local) -> None:
    await sandbox.write("a", "a" * 100 + "!")
    assert (await sandbox.grep(W, BOMB)).total == 0


async def test_writes_beyond_the_quota_are_refused_and_deleting_helps(sandbox: Local, workspace: Path) -> None:
    """The limit of the fixture is 5000 files, and 64 MB."""
    for number in range(9):
        fd = os.open(workspace / f"{number}.bin", os.O_WRONLY | os.O_CREAT)
        os.posix_fallocate(fd, 0, 7 << 20)
        os.close(fd)
    await run(sandbox, "true")
    wait_for(lambda: quota.recorded(str(workspace.parent.parent)) is not None)  # counted when the command had ended
    with pytest.raises(
        Invalid, match=r"a\.txt: was not written, because the files of this thread take more than 64 MB"
    ):
        await sandbox.write("a.txt", "x" * (2 << 20))
    await sandbox.write("0.bin", "")
    await sandbox.write("a.txt", "x" * (2 << 20))


async def test_the_quota_of_a_user_counts_all_threads(provider: Bubblewrap | Host, tmp_path: Path) -> None:
    one, other = await provider.acquire("ada", "t1"), await provider.acquire("ada", "t2")
    await one.write("a", "x")
    quota.record(str(tmp_path / "home/users/ada/threads/t1"), (95 << 20, 10))
    with pytest.raises(Invalid, match="all threads of this user take more than 96 MB"):
        await other.write("b", "x" * (2 << 20))
    await other.write("b", "x")
    await (await provider.acquire("grace", "t2")).write("b", "x" * (2 << 20))


async def test_many_slow_searches_hold_up_others(sandbox: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.sandboxes.files.operations.ripgrep", lambda: None)
    await sandbox.write("slow.txt", "a" * 40 + "b")
    mine = str(search.__file__)

    async def slow() -> None:
        with suppress(Invalid):
            await sandbox.grep(W, BOMB)

    async def begun() -> bool:
        return [os.getpriority(os.PRIO_PROCESS, pid) >= 10 for pid in running(mine)] == [True] * (os.cpu_count() or 2)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(slow)
        await eventually(begun)
        assert to_thread.current_default_thread_limiter().borrowed_tokens == 0
        assert await sandbox.read("slow.txt")
        tasks.cancel_scope.cancel()
        for pid in running(mine):
            os.kill(pid, signal.SIGKILL)
