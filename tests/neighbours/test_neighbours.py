"""Conversations, extensions and clients of the bus do something nasty; ten others see nothing of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.neighbours.suite import NASTY, World, beside, others, settled, world

pytestmark = [pytest.mark.anyio, pytest.mark.long]

AT_ONCE = 5


async def test_ten_others_see_no_error(tmp_path: Path) -> None:
    """Several nasty things at once, and one server for all: what they leave behind must not hurt beside the next."""
    seen: dict[str, list[str]] = {}
    every = tuple(NASTY)
    async with world(tmp_path) as here:
        seen["nothing"] = (await others(here)).errors
        for names in [every[n : n + AT_ONCE] for n in range(0, len(every), AT_ONCE)]:

            async def nasty(world: World, names: tuple[str, ...] = names) -> None:
                await asyncio.gather(*(NASTY[name](world) for name in names), return_exceptions=True)

            outcome = await beside(here, nasty)
            await settled(here)
            seen[", ".join(names)] = outcome.errors
    assert {name: errors for name, errors in seen.items() if errors} == {}
    assert len(NASTY) >= 24
