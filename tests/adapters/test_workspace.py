"""Scans of one thread's files at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from adapters import differences, workspace
from core.config.redaction import redactor
from core.config.sections import Secret
from core.thread.folder import Folder


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
