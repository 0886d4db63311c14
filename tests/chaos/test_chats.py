"""A small storm over each chat platform: see `tests.chaos.chats`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.chats import storm
from tests.chaos.people import PARTS
from tests.chaos.towns import TOWNS

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=7)]
SHORT = (0.1, 0.5)
"""Seconds between kills: the storms are short, too."""


@pytest.mark.parametrize("platform", TOWNS)
async def test_every_message_is_answered_once(tmp_path: Path, platform: str) -> None:
    town = TOWNS[platform]()
    tally = await storm(tmp_path, town, people=6, turns=2, kills=2, seed=7, pauses=SHORT)
    assert tally.faults() == 0, tally.report()
    assert tally.kinds.keys() == {"text", *PARTS} - (set() if town.takes_files else {"file"})
    assert tally.kills
    assert tally.connections == 1


@pytest.mark.long
async def test_two_replicas_have_one_connection(tmp_path: Path) -> None:
    tally = await storm(tmp_path, TOWNS["dingtalk"](), people=8, turns=4, kills=2, seed=8, servers=2, pauses=SHORT)
    assert tally.faults() == 0, tally.report()
    assert tally.fail_over_seconds is not None, "the other replica has taken over"
    assert tally.remembered, "else nobody's memory could be in a prompt"
