"""A small storm of deaths between effects and their acknowledgements: each effect comes once, and none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.storm import Target, storm

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(900)]  # more than its waits


async def test_a_small_storm(tmp_path: Path) -> None:
    tally = await storm(tmp_path, threads=20, target=Target(kills=8), seed=3)
    print(tally.report())
    assert (tally.faults(), tally.threads) == ({}, 20)
    assert tally.kills >= 8
