"""The changes of a run to a thread's own files, taken back from what is recorded of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from adapters.workspace import LocalWorkspace
from core.errors import Refused
from core.files.folder import Folder
from core.files.paths import OUTPUTS
from core.files.workspace import FileChange

pytestmark = pytest.mark.anyio


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    folder = Folder(tmp_path, "ada", "t")
    folder.make()
    return folder.root / "user-data/outputs"


async def changed(home: Path, outputs: Path) -> list[FileChange]:
    """Returns what a run changes that writes, creates and deletes."""
    for name in ("a.txt", "gone.txt"):
        (outputs / name).write_text(f"{name}\none\n")
    workspace, began = LocalWorkspace(home), time.time()
    before = (await workspace.scan("ada", "t", {}, {}, began - 60, began)).seen
    (outputs / "a.txt").write_text("a.txt\ntwo\n")
    (outputs / "gone.txt").unlink()
    (outputs / "made.txt").write_text("made\n")
    return (await workspace.scan("ada", "t", before, before, began - 60, time.time() + 60)).changes


async def test_all_is_as_before(tmp_path: Path, outputs: Path) -> None:
    changes = await changed(tmp_path, outputs)
    assert {change.status for change in changes} == {"created", "modified", "deleted"}
    paths = await LocalWorkspace(tmp_path).undo("ada", "t", "r", None, changes)
    assert set(paths) == {f"{OUTPUTS}/{name}" for name in ("a.txt", "gone.txt", "made.txt")}
    files = {path.name: path.read_text() for path in outputs.iterdir()}
    assert files == {"a.txt": "a.txt\none\n", "gone.txt": "gone.txt\none\n"}


@pytest.mark.parametrize("name", ["a.txt", "gone.txt", "made.txt"])
async def test_nothing_is_taken_back_where_a_file_was_changed_since(tmp_path: Path, outputs: Path, name: str) -> None:
    changes = await changed(tmp_path, outputs)
    (outputs / name).write_text("mine")
    before = {path.name: path.read_text() for path in outputs.iterdir()}
    with pytest.raises(Refused, match=rf"nothing was taken back: {OUTPUTS}/{name} was changed since"):
        await LocalWorkspace(tmp_path).undo("ada", "t", "r", None, changes)
    assert {path.name: path.read_text() for path in outputs.iterdir()} == before
