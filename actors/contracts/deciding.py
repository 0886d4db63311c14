"""Approvals: decided by a button or in words, once, by who was asked."""

from __future__ import annotations

from actors.chat import questions
from actors.contracts.seat import WithButtons
from actors.contracts.table import Table, ai, call
from core.chat.facts import ChatReceived
from core.events import ApprovalRequested, ModelCompleted, RunPaused
from core.thread import approvals


class Decisions:
    """Questions with buttons."""

    async def test_a_call_is_approved_by_a_button(self, here: Table[WithButtons]) -> None:
        await asks(here, "adam")
        await here.seat.presses("adam", "Approve")
        await here.shows("Approved by", "adam")
        await here.until(lambda: not here.seat.has_label("adam", "Approve"))

    async def test_a_call_is_decided_in_words_and_by_number(self, here: Table[WithButtons]) -> None:
        for person, text, decision in (("berta", "Yes", "approve"), ("carl", "2", "reject"), ("dora", "no.", "reject")):
            await asks(here, person)
            event = await here.hears(person, text)
            assert (await here.routed(event)).outcome == "answer"
            resume = (await here.run(event)).request.resume
            assert resume is not None
            assert [each["decision"] for each in resume.value.values()] == [decision]

    async def test_whoever_writes_on_decides_nothing(self, here: Table[WithButtons]) -> None:
        await asks(here, "emil")
        event = await here.hears("emil", "what would that remove?")
        assert (await here.run(event)).request.resume is None
        await here.shows(questions.GONE_ON, "emil")
        await here.until(lambda: not here.seat.has_label("emil", "Approve"))

    async def test_a_change_of_a_file_is_shown_as_a_difference(self, here: Table[WithButtons]) -> None:
        event = await here.hears("fred", "mend it")
        routed = await here.works(event)
        args = {"path": "/mnt/user-data/workspace/a.py", "old_str": "x = one\ny = 2", "new_str": "x = three\ny = 2"}
        request = ApprovalRequested(
            approval=f"a-{routed.run_id}", call_id="c", tool="str_replace", args=args, digest="d"
        )
        answer = ModelCompleted(message=ai("m", "Let me see.", [call("c", "str_replace")]))
        await here.does(routed, answer, request, RunPaused(next=["tools"], interrupts=[approvals.question(request)]))
        shown = await here.shows("May I do this?", "fred")
        assert shown.index("a.py") < shown.index("-x = one") < shown.index("+x = three") < shown.index("y = 2")
        assert "old_str" not in shown


async def asks(here: Table[WithButtons], person: str, group: str = "") -> ChatReceived:
    """Has the agent ask a person whether it may do something. Returns the message that the run is about."""
    event = await here.hears(person, "tidy up", group)
    routed = await here.works(event)
    asked = ApprovalRequested(
        approval=f"a-{routed.run_id}", call_id="c", tool="bash", args={"command": "rm -r x"}, digest="d"
    )
    answer = ModelCompleted(message=ai("m", "Let me see.", [call("c")]))
    await here.does(routed, answer, asked, RunPaused(next=["tools"], interrupts=[approvals.question(asked)]))
    await here.shows("May I do this?", person, group)
    return event
