"""A short storm of freezes and kills over two servers: nothing is done twice, by the wrong one, or told wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.freezes import storm

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(900)]  # more than its waits


async def test_a_short_storm(tmp_path: Path) -> None:
    tally = await storm(tmp_path, runs=20, seed=7)
    print(tally)
    assert tally.faults() == {}
    assert tally.runs == 20
    assert tally.freezes > 0
