"""A question that is changed after its answer is answered anew on request, where the platform tells of changes."""

from __future__ import annotations

import pytest

from core.chat.facts import ANEW
from tests.channels.contract.tables import Table

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=2)]
TELL = pytest.mark.parametrize("here", ["slack", "telegram"], indirect=True)


@TELL
async def test_the_last_question_is_answered_anew(here: Table) -> None:
    await here.answers(await here.hears("mona", "what is blue?"), "A colour.")
    await here.shows("A colour.", "mona")
    event = await here.hears("mona", "what is red?")
    await here.answers(event, "A colour, too.")
    await here.changes("mona", event, "what is green?")
    await here.until(lambda: here.seat.has_label("mona", ANEW.label))
    await here.seat.presses("mona", ANEW.label)
    press = await here.until(lambda: next((e for e in here.received if e.choice and e.choice.button == ANEW.id), None))
    run = await here.run(press)
    [message] = (run.request.input or {})["messages"]
    assert (message["content"], run.request.base is not None) == ("what is green?", True)
    await here.answers(press, "The colour of grass.")
    await here.shows("The colour of grass.", "mona")
    await here.until(lambda: not here.seat.has_label("mona", ANEW.label))


@TELL
async def test_an_earlier_question_stays_as_it_was(here: Table) -> None:
    first = await here.hears("nils", "what is blue?")
    await here.answers(first, "A colour.")
    await here.answers(await here.hears("nils", "and red?"), "A colour, too.")
    edit = await here.changes("nils", first, "what is green?")
    assert (await here.routed(edit)).outcome == "ignored"
