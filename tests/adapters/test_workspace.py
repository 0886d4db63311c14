"""Scans of one thread's files at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from adapters import differences, workspace
from core.config.redaction import redactor
from core.config.sections import Secret
from core.files.folder import Folder


def test_scans_of_one_thread_do_not_take_each_others_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path, "ada", "t1")
    folder.make()
    (folder.root / "user-data/workspace/a.txt").write_text("text")
    (folder.root / "user-data/workspace/b.txt").write_text("other text")
    write, others, failures = Path.write_bytes, list[threading.Thread](), list[BaseException]()

    def scan() -> None:
        try:
            workspace._Look(folder, {}, {}, range(0, 1 << 63)).scan()
        except BaseException as error:
            failures.append(error)

    def written(self: Path, data: bytes) -> int:
        count = write(self, data)
        if not others:  # another scan, from here until it ends or waits for this one
            others.append(threading.Thread(target=scan))
            others[0].start()
            others[0].join(0.3)
        return count

    monkeypatch.setattr(Path, "write_bytes", written)
    scan()
    others[0].join()
    assert failures == []
    assert len(list((folder.root / "texts").iterdir())) == 2


@pytest.mark.parametrize("end", ["\n", "\r", "\f", "\u2028"])
def test_a_text_of_many_lines_is_not_compared_whatever_ends_them(tmp_path: Path, end: str) -> None:
    folder, path = Folder(tmp_path, "ada", "t1"), "/mnt/user-data/workspace/a.txt"
    folder.make()
    file = folder.root / "user-data/workspace/a.txt"
    file.write_text(f"a{end}" * 2)
    seen = dict(workspace._Look(folder, {}, {}, range(0, 1 << 63)).scan().seen)
    file.write_text(f"b{end}" * (differences.MAX_LINES + 1))
    [change] = workspace._Look(folder, seen, seen, range(0, 1 << 63)).scan().changes
    assert (change.path, change.diff_unavailable_reason) == (path, "large")


def test_a_line_with_a_secret_that_stays_is_no_change(tmp_path: Path) -> None:
    redactor.learn({"api_key": Secret("hunter2-of-a-file")})
    folder = Folder(tmp_path, "ada", "t1")
    folder.make()
    file = folder.root / "user-data/workspace/a.txt"
    file.write_text("key: hunter2-of-a-file\none\n")
    seen = dict(workspace._Look(folder, {}, {}, range(0, 1 << 63)).scan().seen)
    file.write_text("key: hunter2-of-a-file\ntwo\n")
    [change] = workspace._Look(folder, seen, seen, range(0, 1 << 63)).scan().changes
    assert (change.additions, change.deletions) == (1, 1)
    assert "hunter2" not in change.diff


_FILES = """
    a.log logs/run.log build/app.js src/build/deep/x.o dist/a.whl env/settings.ini out/report.txt target/x.jar draft.tmp
    old.bak coverage/index.html .env.local .vscode/settings.json notes~ x.cache venvs/a.txt
"""
_NOISE = """
    node_modules/x/index.js .git/HEAD __pycache__/a.pyc .venv/pyvenv.cfg src/.git/HEAD .tool-results/a.txt
"""
FILES, NOISE = _FILES.split(), _NOISE.split()
HOME = "/mnt/user-data/workspace"


def test_people_see_what_there_is(tmp_path: Path) -> None:
    """Of libraries, version control and caches the directories are named, as far as they are the person's concern."""
    folder = Folder(tmp_path, "ada", "t1")
    folder.make()
    for name in (*FILES, *NOISE):
        place = folder.root / "user-data/workspace" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("text")
    scan = workspace._Look(folder, {}, {}, range(0, 1 << 63)).scan()
    assert {change.path for change in scan.changes} == {f"{HOME}/{name}" for name in FILES}
    assert scan.skipped == [f"{HOME}/{name}" for name in (".git", ".venv", "node_modules")]
    assert not scan.truncated
    assert workspace._Look(folder, scan.seen, scan.seen, range(0, 1 << 63)).scan().changes == []


def test_what_programs_make_takes_no_place_of_what_people_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path, "ada", "t1")
    folder.make()
    files = folder.root / "user-data/workspace"
    for name in ("build/a", "build/b", "build/c", "build/logs/d", "src/x", "z"):
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_text("text")
    monkeypatch.setattr(workspace, "MAX_FILES", 3)
    scan = workspace._Look(folder, {}, {}, range(0, 1 << 63)).scan()
    assert [change.path.removeprefix(f"{HOME}/") for change in scan.changes] == ["src/x", "z", "build/a"]
    assert scan.truncated
    monkeypatch.setattr(workspace, "MAX_SCANNED", 3)
    seen = workspace._Look(folder, {}, {}, range(0, 1 << 63)).scan().seen
    assert {f"{HOME}/src/x", f"{HOME}/z"} < set(seen)
    assert len(seen) == 3


def test_a_directory_that_becomes_a_link_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of builds are opened again, by their paths: an agent may have put a link in the place of one."""
    folder = Folder(tmp_path, "ada", "t1")
    folder.make()
    files, outside = folder.root / "user-data/workspace", tmp_path / "outside"
    (outside / "build").mkdir(parents=True)
    (outside / "build/secret").write_text("not the agent's")
    (files / "app/build").mkdir(parents=True)
    walk, walks = workspace._Look._walk, list[str]()

    def swapped(self: workspace._Look, directory: int, virtual: str, *, within: bool = False) -> None:
        walks.append(virtual)
        walk(self, directory, virtual, within=within)
        if virtual == HOME:
            (files / "app").rename(files / "old")
            (files / "app").symlink_to(outside)

    monkeypatch.setattr(workspace._Look, "_walk", swapped)
    scan = workspace._Look(folder, {}, {}, range(0, 1 << 63)).scan()
    assert HOME in walks
    assert f"{HOME}/app/build" not in walks
    assert not [path for path in scan.seen if "secret" in path]


def later_than(path: Path, text: str, time: int) -> None:
    """Writes a file so that its change is later than a time: the kernel's clock ticks."""
    path.write_text(text)
    while path.stat().st_ctime_ns <= time:
        path.write_text(text)


def test_a_file_that_changed_after_the_run_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "ada", "t1")
    folder.make()
    files = folder.root / "user-data/workspace"
    for name in ("same", "late", "run"):
        (files / name).write_text("one")
    seen = dict(workspace._Look(folder, {}, {}, range(0, 1 << 63)).scan().seen)
    (files / "run").write_text("two")
    end = (files / "run").stat().st_ctime_ns + 1
    later_than(files / "late", "three", end)
    later_than(files / "new", "four", end)
    scan = workspace._Look(folder, seen, seen, range(0, end)).scan()
    assert [change.path for change in scan.changes] == [f"{HOME}/run"]
    assert scan.later == [f"{HOME}/late", f"{HOME}/new"]
