"""One conversation, extension or client of the bus does something nasty; ten others see nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.neighbours.suite import NASTY, beside, others, settled, world

pytestmark = pytest.mark.anyio


async def test_ten_others_see_no_error(tmp_path: Path) -> None:
    """One server for all: what one nasty thing leaves behind must not hurt beside the next either."""
    seen: dict[str, list[str]] = {}
    async with world(tmp_path) as here:
        seen["nothing"] = (await others(here)).errors
        for name, nasty in NASTY.items():
            outcome = await beside(here, nasty)
            await settled(here)
            seen[name] = outcome.errors
    assert {name: errors for name, errors in seen.items() if errors} == {}
    assert len(NASTY) >= 24
