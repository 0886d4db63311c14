"""The table of the page about files names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_feature_has_a_test() -> None:
    page = (ROOT / "channels/http/docs/debugging-files.md").read_text()
    names = re.findall(r"^\| .* \| `(test_\w+)` \|$", page, re.MULTILINE)
    assert len(names) >= 8
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name in names if f"def {name}(" not in tests]
