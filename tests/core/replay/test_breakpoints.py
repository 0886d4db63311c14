"""Breakpoints, by the table that those of the page pass, too (tests/page/scripts/breakpoints.test.mjs)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import Invalid
from core.replay.breakpoints import Breakpoint

TABLE = Path(__file__).parents[2] / "page/scripts/breakpoints.json"


@pytest.mark.parametrize(("text", "step", "outcome"), json.loads(TABLE.read_text()))
def test_where_a_breakpoint_stops(text: str, step: dict[str, Any], outcome: bool | str) -> None:
    if isinstance(outcome, bool):
        assert Breakpoint.of(text).matches(step) == outcome
    else:
        with pytest.raises(Invalid, match=outcome):
            Breakpoint.of(text)
