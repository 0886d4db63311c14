"""Images on the disk, beside an agent that makes links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actors.workspace import Workspace
from adapters.images import LocalImages
from adapters.workspace import LocalWorkspace
from core.config.load import ConfigSource
from core.errors import Invalid
from core.events import FolderAttached, ThreadCreated
from core.files.paths import PROJECT, make_thread, thread_root
from core.ports.images import MAX_BYTES
from core.testing import acting

pytestmark = pytest.mark.anyio
W = "/mnt/user-data/workspace"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = thread_root(tmp_path, "ada", "t1")
    make_thread(root)
    (tmp_path / "secret.png").write_bytes(b"secret")
    return root / "user-data/workspace"


async def load(home: Path, path: str, thread: str = "t1") -> bytes:
    return await LocalImages(home).load("ada", thread, path)


async def test_load(workspace: Path, tmp_path: Path) -> None:
    (workspace / "a.png").write_bytes(b"\0one")
    (workspace / "l.png").symlink_to("a.png")
    (workspace / "v.png").symlink_to(f"{W}/a.png")
    assert [await load(tmp_path, f"{W}/{name}.png") for name in "alv"] == [b"\0one"] * 3


async def test_what_cannot_be_loaded(workspace: Path, tmp_path: Path) -> None:
    (workspace / "out.png").symlink_to(tmp_path / "secret.png")
    (workspace / "up.png").symlink_to("../../../../../../../secret.png")
    (workspace / "ring.png").symlink_to("ring.png")
    (workspace / "d.png").mkdir()
    os.mkfifo(workspace / "f.png")
    with (workspace / "large.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for name in ("out", "up", "ring", "d", "f", "large", "none"):
        with pytest.raises(Invalid) as error:
            await load(tmp_path, f"{W}/{name}.png")
        assert str(tmp_path) not in str(error.value)


async def test_a_persons_folder(workspace: Path, tmp_path: Path) -> None:
    """Of the thread that works on it, for its user, and but for what is hidden there."""
    home, folder = tmp_path / "home", tmp_path / "app"
    (folder / ".ssh").mkdir(parents=True)
    for name in ("a.png", ".ssh/b.png"):
        (folder / name).write_bytes(b"one")
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "config.yaml").write_text("{}")
    config = ConfigSource(tmp_path / "config.yaml")
    async with acting(lambda system: Workspace(system.log, LocalWorkspace(home)), home=tmp_path / "nats") as stage:
        threads = stage.system.threads
        attached = FolderAttached(path=str(folder), access="read-only", by="ada")
        await threads.decide("t1", lambda _: [ThreadCreated(user="ada"), attached], actor="test")
        images = LocalImages(home, config, threads)
        assert await images.load("ada", "t1", f"{PROJECT}/a.png") == b"one"
        for user, thread, name in (
            ("ada", "t1", ".ssh/b.png"),
            ("ada", "t1", "out.png"),
            ("bob", "t1", "a.png"),
            ("ada", "t2", "a.png"),
        ):
            with pytest.raises(Invalid) as error:
                await images.load(user, thread, f"{PROJECT}/{name}")
            assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize("path", ["/mnt/skills/a.png", "/etc/passwd", f"{W}/../../a.png", "/mnt/user-data", W])
async def test_other_places(workspace: Path, tmp_path: Path, path: str) -> None:
    with pytest.raises(Invalid):
        await load(tmp_path, path)


@pytest.mark.parametrize("thread", ["t2", "../t1"])
async def test_other_threads(workspace: Path, tmp_path: Path, thread: str) -> None:
    (workspace / "a.png").write_bytes(b"one")
    with pytest.raises(Invalid):
        await load(tmp_path, f"{W}/a.png", thread)
