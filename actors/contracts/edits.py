"""A question that is changed after its answer is answered anew on request."""

from __future__ import annotations

from actors.contracts.seat import WithEdits
from actors.contracts.table import Table
from core.chat.facts import ANEW, ChatReceived


class Edits:
    """Messages that people change."""

    async def test_the_last_question_is_answered_anew(self, here: Table[WithEdits]) -> None:
        await here.answers(await here.hears("mona", "what is blue?"), "A colour.")
        await here.shows("A colour.", "mona")
        event = await here.hears("mona", "what is red?")
        await here.answers(event, "A colour, too.")
        await changes(here, "mona", event, "what is green?")
        await here.until(lambda: here.seat.has_label("mona", ANEW.label))
        await here.seat.presses("mona", ANEW.label)
        press = await here.until(
            lambda: next((e for e in here.received if e.choice and e.choice.button == ANEW.id), None)
        )
        run = await here.run(press)
        [message] = (run.request.input or {})["messages"]
        assert (message["content"], run.request.base is not None) == ("what is green?", True)
        await here.answers(press, "The colour of grass.")
        await here.shows("The colour of grass.", "mona")
        await here.until(lambda: not here.seat.has_label("mona", ANEW.label))

    async def test_an_earlier_question_stays_as_it_was(self, here: Table[WithEdits]) -> None:
        first = await here.hears("nils", "what is blue?")
        await here.answers(first, "A colour.")
        await here.answers(await here.hears("nils", "and red?"), "A colour, too.")
        edit = await changes(here, "nils", first, "what is green?")
        assert (await here.routed(edit)).outcome == "ignored"


async def changes(here: Table[WithEdits], person: str, event: ChatReceived, text: str) -> ChatReceived:
    """Has a person change a message of a private chat, and returns the change as it was received."""
    await here.seat.edits(person, event.message, text)
    await here.until(lambda: any(e.edited and e.message == event.message for e in here.received))
    return next(e for e in here.received if e.edited and e.message == event.message)
