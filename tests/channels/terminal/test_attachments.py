"""Names of files in a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.terminal.chat.attachments import check_names, names_files, pictures
from core.errors import Invalid


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ("Read @a.md", []),
        ("Read @b.md, please", ["b.md"]),
        ("Read @b.md and @b.md", ["b.md"]),
        ("Read @docs/plan", ["docs/plan"]),
        ('Read @"my notes"', ["my notes"]),
        ("Ask @alice, write to a@b.org", []),
        ("Read @a.md.", []),
        ("Install '@types/node' and `@b.md`", []),
        ("Explain\n@pytest.fixture\n@app.route('/x')\ndef f():\n    pass", []),
        ("Compare\n@b.md\n@c.md", ["b.md", "c.md"]),
    ],
)
def test_what_looks_like_a_file_and_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, names: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_text("a")
    assert names_files(message) == bool(names or "@a.md" in message)
    if not names:
        check_names(message)
        return
    with pytest.raises(Invalid) as caught:
        check_names(message)
    assert [part.partition(":")[0] for part in str(caught.value).split("; ")] == [f"@{name}" for name in names]


def test_a_folder_is_named_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    with pytest.raises(Invalid, match="@docs/: is a folder"):
        check_names("Read @docs/")


def test_pictures_are_told_from_other_files() -> None:
    names = ["a.PNG", "b.jpeg", "c.svg", "png", "d.md", "e"]
    assert pictures(map(Path, names)) == ["a.PNG", "b.jpeg", "c.svg"]
