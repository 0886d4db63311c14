"""Names of files in a message that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.terminal.attachments import missing


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
    ],
)
def test_what_looks_like_a_file_and_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, names: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_text("a")
    assert missing(message) == names
