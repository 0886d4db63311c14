"""Pinned runs: by the policies of today, under `config.yaml` beside this file, they are decided as before."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from actors.debugging import pins

PINS = sorted(Path(__file__).parent.glob("*.jsonl"))


@pytest.mark.parametrize("path", PINS, ids=[path.stem for path in PINS])
def test_it_is_decided_as_it_was_pinned(path: Path, tmp_path: Path) -> None:
    assert not anyio.run(pins.check_alone, path, tmp_path)
