"""Snapshots of a person's folder around a run: what is shown, and what is taken back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters import project
from adapters.project import Project, forget
from core.errors import Refused
from core.files.paths import PROJECT, Mount
from core.files.secret_names import Rules
from tests.adapters.test_workspace import later_than


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    (folder / "src").mkdir(parents=True)
    (folder / "src/main.py").write_text("print(1)\n")
    (folder / "src/run.sh").write_text("#!/bin/sh\n")
    (folder / "src/run.sh").chmod(0o755)
    (folder / "logo.png").write_bytes(b"\x89PNG\0\1\2")
    (folder / "old.txt").write_text("old without an end")
    (folder / "node_modules/x").mkdir(parents=True)
    (folder / "node_modules/x/index.js").write_text("1")
    (folder / ".env").write_text("KEY=1")
    (folder / "link").symlink_to("src/main.py")
    return folder


@pytest.fixture
def snapshots(tmp_path: Path, folder: Path) -> Project:
    return Project(tmp_path / "home", "ada", Mount(folder, PROJECT, writable=True, rules=Rules()))


def tree(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    files: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            files[str(path.relative_to(folder))] = (0, os.readlink(path))
        elif path.is_file():
            files[str(path.relative_to(folder))] = (path.stat().st_mode, path.read_bytes())
    return files


def work(folder: Path) -> None:
    """Changes a file of each kind in each way."""
    (folder / "src/main.py").write_text("print(2)\n")
    (folder / "src/new/deep").mkdir(parents=True)
    (folder / "src/new/deep/made.py").write_text("made\n")
    (folder / "src/run.sh").unlink()
    (folder / "old.txt").write_text("new")
    (folder / "logo.png").write_bytes(b"\x89PNG\0\3")
    (folder / "link").unlink()
    (folder / "link").write_text("a file now")
    (folder / "other").symlink_to("/etc/passwd")
    (folder / ".vscode").mkdir()
    (folder / ".vscode/tasks.json").write_text("{}")


def test_what_a_run_changed_is_shown_and_taken_back(snapshots: Project, folder: Path) -> None:
    before = tree(folder)
    snapshots.begin("t", "r1")
    work(folder)
    snapshots.begin("t", "r1")  # a second effect of the run
    scanned = snapshots.end("t", "r1", time.time())
    statuses = {change.path.removeprefix(f"{PROJECT}/"): change.status for change in scanned.changes}
    assert statuses == {
        ".vscode/tasks.json": "created",
        "link": "modified",
        "logo.png": "modified",
        "old.txt": "modified",
        "other": "symlink_created",
        "src/main.py": "modified",
        "src/new/deep/made.py": "created",
        "src/run.sh": "deleted",
    }
    [main] = [change for change in scanned.changes if change.path == f"{PROJECT}/src/main.py"]
    assert main.diff.splitlines()[3:] == ["-print(1)", "+print(2)"]
    assert (main.root, main.additions, main.deletions) == ("project", 1, 1)
    assert scanned.skipped == ["node_modules"]
    assert not scanned.truncated
    paths = snapshots.undo("t", "r1")
    assert {path.removeprefix(f"{PROJECT}/") for path in paths} == set(statuses)
    assert tree(folder) == before


@pytest.mark.parametrize("late", ["src/main.py", "old.txt", "new.txt"])
def test_what_changed_after_the_run_is_named_and_not_taken_back(snapshots: Project, folder: Path, late: str) -> None:
    snapshots.begin("t", "r1")
    (folder / "src/main.py").write_text("print(2)\n")
    (folder / "old.txt").write_text("the run's")
    until = max((folder / name).stat().st_ctime_ns for name in ("src/main.py", "old.txt")) + 1000
    later_than(folder / late, "the person's", until)
    (folder / "src/run.sh").touch()
    scanned = snapshots.end("t", "r1", (until - project.CLOCK) / 1e9)
    assert scanned.later == [f"{PROJECT}/{late}"]
    changes = {change.path for change in scanned.changes}
    assert changes == {f"{PROJECT}/src/main.py", f"{PROJECT}/old.txt"} - {f"{PROJECT}/{late}"}
    before = tree(folder)
    with pytest.raises(Refused, match=f"nothing was taken back: {late} changed after the run's end"):
        snapshots.undo("t", "r1")
    assert tree(folder) == before


def _edit(folder: Path) -> None:
    (folder / "src/main.py").write_text("print(3)\n")


def _remove(folder: Path) -> None:
    (folder / "src/new/deep/made.py").unlink()


def _restore(folder: Path) -> None:
    (folder / "src/run.sh").write_text("mine")


def _relink(folder: Path) -> None:
    (folder / "other").unlink()
    (folder / "other").symlink_to("/etc/hosts")


def _replace(folder: Path) -> None:
    (folder / "src/main.py").unlink()
    (folder / "src/main.py").symlink_to("/etc/passwd")


def _trap(folder: Path) -> None:
    (folder / "src").rename(folder / "away")
    (folder / "src").symlink_to("/etc")


@pytest.mark.parametrize("change", [_edit, _remove, _restore, _relink, _replace, _trap])
def test_nothing_is_taken_back_where_the_person_changed_a_file(
    snapshots: Project, folder: Path, change: Callable[[Path], None]
) -> None:
    snapshots.begin("t", "r1")
    work(folder)
    snapshots.end("t", "r1", time.time())
    change(folder)
    before = tree(folder)
    with pytest.raises(Refused, match=r"nothing was taken back: .* was changed since"):
        snapshots.undo("t", "r1")
    assert tree(folder) == before


def test_what_the_person_changed_between_runs_is_not_of_the_next_one(snapshots: Project, folder: Path) -> None:
    snapshots.begin("t", "r1")
    work(folder)
    snapshots.end("t", "r1", time.time())
    (folder / "mine.txt").write_text("mine")
    snapshots.begin("t", "r2")
    (folder / "theirs.txt").write_text("theirs")
    scanned = snapshots.end("t", "r2", time.time())
    assert [change.path for change in scanned.changes] == [f"{PROJECT}/theirs.txt"]
    snapshots.undo("t", "r2")
    assert (folder / "mine.txt").read_text() == "mine"
    assert not (folder / "theirs.txt").exists()


def test_a_file_that_cannot_be_written_leaves_all_as_it_was(
    snapshots: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.begin("t", "r1")
    work(folder)
    snapshots.end("t", "r1", time.time())
    before, put, count = tree(folder), project._put, 0

    def fails(*arguments: object) -> None:
        nonlocal count
        count += 1
        if count == 6:
            raise OSError(28, "No space left on device")
        put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(project, "_put", fails)
    with pytest.raises(Refused, match="No space left"):
        snapshots.undo("t", "r1")
    assert tree(folder) == before


def test_more_than_is_looked_at_is_said_and_not_taken_back(
    snapshots: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "MAX_SCANNED", 2)
    snapshots.begin("t", "r1")
    (folder / "zzz").write_text("x")
    assert snapshots.end("t", "r1", time.time()).truncated
    with pytest.raises(Refused, match="more files than are looked at"):
        snapshots.undo("t", "r1")
    assert (folder / "zzz").exists()


def test_what_is_too_large_to_be_stored_is_said(
    snapshots: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "MAX_CONTENT", 4)
    snapshots.begin("t", "r1")
    (folder / "src/main.py").write_text("longer than that")
    [change] = snapshots.end("t", "r1", time.time()).changes
    assert (change.status, change.diff) == ("modified", "")
    with pytest.raises(Refused, match="too large"):
        snapshots.undo("t", "r1")


def test_secrets_are_never_stored(snapshots: Project, folder: Path, tmp_path: Path) -> None:
    snapshots.begin("t", "r1")
    (folder / ".env").write_text("KEY=2")
    assert snapshots.end("t", "r1", time.time()).changes == []
    stored = [path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert not any(b"KEY=" in content for content in stored)


def test_a_thread_that_is_forgotten_leaves_nothing(snapshots: Project, tmp_path: Path) -> None:
    snapshots.begin("t", "r1")
    forget(tmp_path / "home", "ada", "other")
    assert list((tmp_path / "home/users/ada/folders").glob("*/objects/*"))
    forget(tmp_path / "home", "ada", "t")
    assert not list((tmp_path / "home/users/ada/folders").glob("*"))


def test_a_scan_reads_again_only_what_changed(
    snapshots: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "CLOCK", 0)
    snapshots.begin("t", "r1")
    read: list[str] = []
    store = project._Scan._store

    def counted(self: project._Scan, directory: int, name: str) -> str:
        read.append(name)
        return store(self, directory, name)

    monkeypatch.setattr(project._Scan, "_store", counted)
    (folder / "src/main.py").write_text("print(9)\n")
    snapshots.end("t", "r1", time.time())
    assert read == ["main.py"]
