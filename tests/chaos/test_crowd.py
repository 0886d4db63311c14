"""Many runs under way at once while servers and NATS are killed: no effect is lost or doubled, and all end somehow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.crowd import storm

pytestmark = pytest.mark.anyio


@pytest.mark.long
@pytest.mark.timeout(2400)  # beside others, a thousand runs take minutes to begin, and minutes to end
async def test_a_thousand_runs_in_a_storm(tmp_path: Path) -> None:
    tally = await storm(tmp_path, runs=1000, seed=3)
    print(tally.report())
    assert (tally.faults(), tally.at_once) == ({}, 1000)
    assert min(tally.kills, tally.freezes, tally.nats_kills) > 0
