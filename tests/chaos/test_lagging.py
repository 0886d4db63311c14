"""A cluster shares the load by lag: a process that is late pulls nothing while another is not, and goes on alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.runtime.governor import FLOOR
from tests.chaos.lagging import begun, settled, two

pytestmark = [pytest.mark.anyio, pytest.mark.long]


async def test_a_process_that_lags_pulls_nothing_while_another_has_room(tmp_path: Path) -> None:
    """Fewer runs than may always be at work, so that each could begin where it comes first."""
    async with two(tmp_path) as place:
        await settled(place)
        workers = await begun(place.client, [f"t{number}" for number in range(FLOOR - 4)])
        assert set(workers.values()) == {place.free.pid}
        place.free.kill()
        await place.free.waited()
        assert await begun(place.client, ["alone-again"]) == {"alone-again": place.late.pid}
