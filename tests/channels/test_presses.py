"""Texts that answer pressed buttons."""

from __future__ import annotations

import pytest

from channels.chat.presses import Presses
from core.chat.facts import Target
from core.chat.port import Rejected

pytestmark = pytest.mark.anyio


async def test_each_press_gets_its_own_text() -> None:
    """Also when a person presses again before the first one was answered."""
    presses, target = Presses(), Target("C", reply_to="m", sender="U")
    first, second = presses.note(target), presses.note(target)
    for text in ("one", "two"):
        presses.whisper(target, text, "Telegram")
    assert [await presses.text(target, each) for each in (first, second)] == ["one", "two"]
    with pytest.raises(Rejected):
        presses.whisper(target, "three", "Telegram")
