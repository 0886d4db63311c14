"""A connection that ends costs nothing: what people write meanwhile is answered once, and what the bot says arrives."""

from __future__ import annotations

from actors.contracts.seat import Disconnecting
from actors.contracts.table import Table


class Connections:
    """Platforms whose connection ends without a word."""

    async def test_a_connection_that_ends_loses_nothing_and_doubles_nothing(self, here: Table[Disconnecting]) -> None:
        routed = await here.works(await here.hears("odo", "one"))
        await here.says(routed, "I begin.")
        here.seat.hang_up()
        event = await here.hears("odo", "two")
        await here.ends(routed, "The first answer.")
        await here.answers(event, "The second answer.")
        await here.shows("The second answer.", "odo")
        shown = here.seat.shown("odo")
        answers = [text for text in shown if "answer." in text]
        assert [len(answers), "The first" in answers[0], "The second" in answers[-1]] == [2, True, True], shown
        await here.becomes("connected")
