"""The faults of a storm's platforms: see `tests.chaos.towns`."""

from __future__ import annotations

import random

import pytest

from tests.chaos.towns import TOWNS

OF_CALLS = {"reset", "reset when done", "502", "502 when done"}


@pytest.mark.parametrize("platform", TOWNS)
async def test_each_platform_breaks_calls_in_every_way(platform: str) -> None:
    towns = [(TOWNS[platform](), random.Random(seed)) for seed in range(200)]
    assert {town.disturb(dice) for town, dice in towns} >= {*OF_CALLS, "connections reset"}


@pytest.mark.parametrize("platform", TOWNS)
async def test_one_fault_at_most_waits_for_a_call(platform: str) -> None:
    town, dice = TOWNS[platform](), random.Random(1)
    brought = [town.disturb(dice) for _ in range(300)]
    assert sum(name in OF_CALLS for name in brought) <= 5
