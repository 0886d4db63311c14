"""A small batch on four workers, two of which are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fanout import KILLS, fan_out

pytestmark = pytest.mark.anyio


async def test_every_item_once(tmp_path: Path) -> None:
    tally = await fan_out(tmp_path, 40)
    assert (tally.rows_wrong, tally.ends_wrong, tally.killed) == (0, 0, KILLS)
    assert tally.batch_owners > 1
    assert tally.progressed[-1] == "40/40 done"
    assert tally.context_bytes < 4096
