"""`sika log pin`: what a pin expects, and how decisions differ from it."""

from __future__ import annotations

import msgspec

from channels.terminal.text import one_line
from core.replay.pins import Difference, decision

TEST = '''"""Pinned runs: by the policies of today, under `config.yaml` beside this file, they are decided as before."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from actors.debugging import pins

PINS = sorted(Path(__file__).parent.glob("*.jsonl"))


@pytest.mark.parametrize("path", PINS, ids=[path.stem for path in PINS])
def test_it_is_decided_as_it_was_pinned(path: Path, tmp_path: Path) -> None:
    assert not anyio.run(pins.check_alone, path, tmp_path)
'''
"""The test of a folder of pins."""
MOST = 300
"""Limit of the characters of a decision on a line."""


def lines(difference: Difference) -> list[str]:
    """Returns both sides of a decision that differs."""
    rows = [one_line(difference.text, MOST)]
    for name, step in (("recorded", difference.recorded), ("now", difference.now)):
        if shown := decision(step):
            rows.append(f"  {name:<8}  {one_line(msgspec.json.encode(shown).decode(), MOST)}")
    return rows
