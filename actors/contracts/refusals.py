"""Refusals are for the person who is refused: in a group nobody else sees them."""

from __future__ import annotations

from actors.chat.router import NOT_YOURS
from actors.contracts.deciding import asks
from actors.contracts.seat import WithWhispers
from actors.contracts.table import Table


class Refusals:
    """Groups with buttons, and something that one person alone sees."""

    async def test_a_press_of_somebody_else_is_refused_where_only_they_see_it(self, here: Table[WithWhispers]) -> None:
        await asks(here, "gail", "refusing")
        await here.seat.presses("hank", "Approve", "refusing")
        await here.until(lambda: NOT_YOURS in here.seat.whispered("hank", "refusing"))
        assert not [text for text in here.seat.shown("gail", "refusing") if NOT_YOURS in text]
        await here.seat.presses("gail", "Reject", "refusing")
        await here.until(lambda: any("Rejected by" in text for text in here.seat.shown("gail", "refusing")))
        assert not [text for text in here.seat.shown("gail", "refusing") if NOT_YOURS in text]
