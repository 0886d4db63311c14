"""Refusals are for the person who is refused: in a group nobody else sees them, on all platforms."""

from __future__ import annotations

import pytest

from actors.chat.router import NOT_YOURS
from core.events import ApprovalRequested, ModelCompleted, RunPaused
from core.thread import approvals
from tests.channels.contract.tables import Table
from tests.support.records import ai, call

pytestmark = pytest.mark.anyio


async def asks(here: Table, person: str, group: str) -> None:
    """Has the agent ask a person of a group whether it may do something."""
    routed = await here.works(await here.hears(person, "tidy up", group))
    asked = ApprovalRequested(
        approval=f"a-{routed.run_id}", call_id="c", tool="bash", args={"command": "rm -r x"}, digest="d"
    )
    answer = ModelCompleted(message=ai("m", "Let me see.", [call("c")]))
    await here.does(routed, answer, asked, RunPaused(next=["tools"], interrupts=[approvals.question(asked)]))
    await here.shows("May I do this?", person, group)


async def test_a_press_of_somebody_else_is_refused_where_only_they_see_it(here: Table) -> None:
    await asks(here, "gail", "refusing")
    await here.seat.presses("hank", "Approve", "refusing")
    await here.until(lambda: NOT_YOURS in here.seat.whispered("hank", "refusing"))
    await here.seat.presses("gail", "Reject", "refusing")
    await here.until(lambda: any("Rejected by" in text for text in here.seat.shown("gail", "refusing")))
    assert not [text for text in here.seat.shown("gail", "refusing") if NOT_YOURS in text]
