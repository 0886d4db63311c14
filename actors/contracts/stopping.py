"""An answer that grows in a message has a button that stops its run."""

from __future__ import annotations

from actors.contracts.seat import WithButtons
from actors.contracts.table import Table, ai
from core.chat.facts import STOP, ChatReceived, ChatRouted
from core.events import ModelCompleted, RunCancelled, RunCompleted


class Stopping:
    """Chats in which answers grow in messages with buttons: `group`, or private ones."""

    group = ""

    async def test_a_button_stops_the_answer_that_grows(self, here: Table[WithButtons]) -> None:
        event, routed = await self._growing(here, "iris", "count to a million", "One, two")
        await here.seat.presses("iris", STOP.label, self.group)
        await here.cancelled(event)
        await here.does(routed, RunCancelled())
        await here.until(lambda: not here.seat.has_label("iris", STOP.label, self.group))
        assert await here.shows("Stopped.", "iris", self.group)

    async def test_a_button_of_an_answer_that_stands_there_is_gone(self, here: Table[WithButtons]) -> None:
        _, routed = await self._growing(here, "jack", "hello", "Hello, Jack.")
        await here.does(routed, ModelCompleted(message=ai("a", "Hello, Jack.")), RunCompleted())
        await here.until(lambda: not here.seat.has_label("jack", STOP.label, self.group))
        assert await here.shows("Hello, Jack.", "jack", self.group)

    async def _growing(
        self, here: Table[WithButtons], person: str, question: str, text: str
    ) -> tuple[ChatReceived, ChatRouted]:
        """Returns the person's message, and its run, once the button of the answer is there."""
        event = await here.hears(person, question, self.group)
        routed = await here.works(event)
        await here.says(routed, text)
        await here.until(lambda: here.seat.has_label(person, STOP.label, self.group))
        return event, routed
