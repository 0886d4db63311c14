"""A long answer is its beginning and a file with all of it, on all platforms."""

from __future__ import annotations

import pytest

from actors.delivery.delivering import WHOLE
from tests.channels.contract.tables import Table

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=2)]
LONG = "\n\n".join(f"Paragraph {n} of a long answer: {'words and more words ' * 20}" for n in range(200)).strip()


async def test_an_answer_of_many_messages_is_a_file(here: Table) -> None:
    event = await here.hears("kate", "tell me all")
    routed = await here.answers(event, LONG)
    plan = await here.delivered(event, routed.run_id)
    assert (plan.failed, plan.parts) == ("", 3), "the beginning, a line about the file, and the file"
    assert await here.shows("Paragraph 0 of", "kate")
    assert await here.shows(WHOLE, "kate")
    assert not [text for text in here.seat.shown("kate") if "Paragraph 199" in text]
    assert here.seat.files("kate") == [LONG]


async def test_an_answer_of_some_messages_is_none(here: Table) -> None:
    event = await here.hears("liam", "tell me some")
    routed = await here.answers(event, LONG[:5000])
    plan = await here.delivered(event, routed.run_id)
    assert (plan.failed, len(plan.messages)) == ("", plan.parts)
    assert here.seat.files("liam") == []
