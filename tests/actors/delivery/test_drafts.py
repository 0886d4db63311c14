"""Drafts: one message per answer, at the platform's pace, handed over to the answer without a word too many."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from actors.delivery import drafts, job
from actors.delivery.delivering import AGAIN
from core.chat.facts import Button, Target, TopicNoted, sent_message
from core.chat.port import Pace
from core.events import (
    ModelCompleted,
    RunCompleted,
    RunPaused,
    SubagentCompleted,
    SubagentStarted,
    ThreadErased,
    ToolCompleted,
    ToolRequested,
)
from core.runs.previews import Previewer
from tests.actors.delivery.conftest import HERE, Side
from tests.support.chat_platform import ACCOUNT, Fault, Message, Store, serving, store
from tests.support.nats import eventually
from tests.support.records import ai, call

pytestmark = pytest.mark.anyio
BOTH = pytest.mark.parametrize("findable", [True, False])
GROUP = Target("G1", topic="t7", kind="group")
PACED = Pace(0.1, 0.2, 0.1, 0, 0)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PAUSES", (0.05,))
    monkeypatch.setattr(drafts, "PAUSES", (0.05,))


async def until(condition: Callable[[], object]) -> None:
    async def probe() -> bool:
        return bool(condition())

    await eventually(probe)


async def typing(side: Side, run: str, after: int, message: str = "ai-1") -> Previewer:
    return side.system.pump.message(run, message, after=after)


async def say(previewer: Previewer, text: str) -> None:
    await previewer.add("text", text)
    await previewer.flush()


def shown(platform: Store) -> Message | None:
    return next(iter(platform.messages.values()), None)


def shows(platform: Store, text: str, status: str = "") -> bool:
    message = shown(platform)
    return message is not None and (message.text, message.status) == (text, status)


@BOTH
@pytest.mark.parametrize("target", [HERE, GROUP])
async def test_an_answer_grows_in_its_message(side: Side, findable: bool, target: Target) -> None:
    platform = store(findable=findable, pace=PACED, topics=True)
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1", target))
        await say(previewer, "The ans")
        await until(lambda: shows(platform, "The ans"))
        await say(previewer, "wer is")
        await until(lambda: shows(platform, "The answer is"))
        await side.run("r1", ModelCompleted(message=ai("ai-1", "The answer is 42.")), RunCompleted())
        await side.plan("r1", "The answer is 42.\n\nThat is all.", purpose="answer", target=target)
        state = await side.done(target)
    assert platform.texts() == ["The answer is 42.", "That is all."]
    assert state.plans["r1"].draft == state.plans["r1"].messages[0] == "m1"
    assert platform.violations == []
    assert platform.working[target.chat][0] is True
    assert platform.working[target.chat][-1] is False
    noted = await side.read(sent_message(ACCOUNT, target.chat, "m1"))
    assert [record.event for record in noted] == ([TopicNoted(topic="t7")] if target is GROUP else [])


async def test_a_question_takes_the_place_of_what_was_said_before_it(side: Side) -> None:
    platform = store(pace=PACED)
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "Let me see.")
        await until(lambda: shows(platform, "Let me see."))
        await side.run(
            "r1", ModelCompleted(message=ai("ai-1", "Let me see.")), RunPaused(next=["tools"], interrupts=[])
        )
        buttons = (Button("y", "Yes"),)
        await side.plan("r1", "Let me see. May I?", purpose="question", buttons=buttons)
        await side.done()
    [message] = platform.messages.values()
    assert (message.text, message.buttons) == ("Let me see. May I?", buttons)


async def test_the_line_about_what_it_does(side: Side) -> None:
    """One line, that is replaced; what tools return and what the model thinks is not shown."""
    platform = store()
    todos = [{"content": "look", "status": "completed"}, {"content": "write", "status": "in_progress"}]
    bash = call("c1", description="list the files", command="cat /secret")
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1"))
        await previewer.add("reasoning", "hidden thought")
        await previewer.add("text", "Let me see.")
        await previewer.flush()
        await until(lambda: shows(platform, "Let me see."))
        completed = ModelCompleted(message=ai("ai-1", "Let me see.", [bash]))
        await side.run("r1", completed, ToolRequested(call_id="c1", name="bash", effect="once"))
        await until(lambda: shows(platform, "Let me see.", "bash: list the files"))
        result = {"type": "tool", "tool_call_id": "c1", "name": "bash", "content": "hidden result"}
        await side.run("r1", ToolCompleted(call_id="c1", message=result, update={"todos": todos}))
        await until(lambda: shows(platform, "Let me see.", "1/2 done: write"))
        started = SubagentStarted(call_id="c2", subagent="s1", name="general-purpose", description="read it")
        await side.run("r1", started)
        await until(lambda: shows(platform, "Let me see.", "general-purpose: read it · 1/2 done: write"))
        await side.run("r1", SubagentCompleted(call_id="c2", status="completed"))
        await until(lambda: shows(platform, "Let me see.", "1/2 done: write"))
        await side.run("r1", RunCompleted())
        await side.plan("r1", "Done.", purpose="answer")
        await side.done()
    assert platform.texts() == ["Done."]
    assert platform.violations == []


@BOTH
async def test_a_draft_in_flight_is_waited_for(side: Side, findable: bool) -> None:
    """The first show is slow; the answer comes meanwhile, and takes its message."""
    platform = store(findable=findable)
    platform.fail("show", Fault("slow", 0.5))
    async with serving(side.endpoint, side.home, platform):
        await say(await typing(side, "r1", await side.begin("r1")), "One")
        await until(lambda: platform.made("show"))
        await side.run("r1", RunCompleted())
        await side.plan("r1", "One and all.", purpose="answer")
        await side.done()
    assert platform.texts() == ["One and all."]
    assert [call.method for call in platform.calls if call.method in ("show", "finish")] == ["show", "finish"]


@BOTH
async def test_a_process_goes_on_with_the_draft_of_another(side: Side, findable: bool) -> None:
    platform = store(findable=findable)
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "One")
        await side.until(lambda state: state.drafts.get("r1"))
    async with serving(side.endpoint, side.home, platform):
        await say(previewer, " and two")
        await until(lambda: shows(platform, "One and two"))
    async with serving(side.endpoint, side.home, platform):
        await side.run("r1", RunCompleted())
        await side.plan("r1", "One and all.", purpose="answer")
        await side.done()
    assert platform.texts() == ["One and all."]


@pytest.mark.parametrize("planned", [True, False])
async def test_a_draft_that_was_not_recorded_is_found(side: Side, planned: bool) -> None:
    """The process died between the two; the answer may be planned by then."""
    platform = store()
    platform.fail("show", Fault("death"))
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "One")
        await platform.died.wait()
    if planned:
        await side.run("r1", RunCompleted())
        await side.plan("r1", "One and all.", purpose="answer")
    async with serving(side.endpoint, side.home, platform):
        if not planned:
            await say(previewer, " and two")
            await until(lambda: shows(platform, "One and two"))
            await side.run("r1", RunCompleted())
            await side.plan("r1", "One and all.", purpose="answer")
        await side.plan("next", "Next.")
        await side.done()
    assert platform.texts() == ["One and all.", "Next."]


@BOTH
@pytest.mark.parametrize("kind", ["lost", "missed"])
async def test_a_first_show_of_unknown_fate(side: Side, findable: bool, kind: str) -> None:
    """Its message is found. Else nothing more is shown, and the answer says that it may be the second one."""
    platform = store(findable=findable)
    platform.fail("show", Fault(kind))  # type: ignore[arg-type]
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "One")
        await until(lambda: platform.made("show"))
        await say(previewer, " and two")
        if findable:
            await until(lambda: shows(platform, "One and two"))
        await side.run("r1", RunCompleted())
        await side.plan("r1", "One and all.", purpose="answer")
        await side.done()
    left = ["One"] if kind == "lost" and not findable else []
    assert platform.texts() == [*left, *([] if findable else [AGAIN]), "One and all."]


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_first_show_of_unknown_fate_that_was_not_found_before_the_answer(side: Side, keyed: bool) -> None:
    """Its message becomes the answer: nothing is left beside it."""
    platform = store(keyed=keyed)
    platform.fail("show", Fault("lost"))
    platform.fail("find", Fault("down"))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("before", "Before.")  # from here on, no other process can have begun a draft
        await side.done()
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "One")
        await until(lambda: platform.made("find"))
        await side.run("r1", RunCompleted())
        await side.plan("r1", "One and all.", purpose="answer")
        await side.done()
    assert platform.texts() == ["Before.", "One and all."]


@pytest.mark.parametrize(
    ("begun", "fault"),
    [*itertools.product(["lost", "death"], ["down", "missed", "dead", "limit"]), ("lost", "reject")],
)
async def test_a_draft_that_could_not_be_looked_for_is_not_begun_again(side: Side, begun: str, fault: str) -> None:
    """Nor is it left beside the answer, unless the platform never permits to look: then the answer says that it may be
    the second one."""
    platform = store()
    async with serving(side.endpoint, side.home, platform):
        await side.plan("before", "Before.")  # from here on, no other process can have begun a draft
        await side.done()
        platform.fail("show", Fault(begun))  # type: ignore[arg-type]
        platform.fail("find", *(20 if fault == "reject" else 1) * [Fault(fault)])  # type: ignore[arg-type]
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "One")
        await until(lambda: platform.died.is_set() if begun == "death" else platform.made("find"))
        if begun == "lost":
            await _end_after_a_look(side, platform, previewer, fault)
    if begun == "death":
        async with serving(side.endpoint, side.home, platform):
            await _end_after_a_look(side, platform, previewer, fault)
    left = ["One", AGAIN, "One and all."] if fault == "reject" else ["One and all."]
    assert platform.texts() == ["Before.", *left]


async def _end_after_a_look(side: Side, platform: Store, previewer: Previewer, fault: str) -> None:
    """Ends a run whose draft was looked for in vain; before, it is shown if it is found then."""
    await until(lambda: platform.made("find"))
    await say(previewer, " and two")
    if fault != "reject":
        await until(lambda: any(message.text == "One and two" for message in platform.messages.values()))
    await side.run("r1", RunCompleted())
    await side.plan("r1", "One and all.", purpose="answer")
    await side.done()


async def test_a_pause_holds_up_drafts_and_answers(side: Side) -> None:
    platform = store(pace=PACED)
    platform.fail("show", Fault("slow"), Fault("limit", 1.0))
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "One")
        await until(lambda: shows(platform, "One"))
        await say(previewer, " and two")
        await until(lambda: len(platform.made("show")) == 2)
        await side.run("r1", RunCompleted())
        await side.plan("r1", "One and all.", purpose="answer")
        await side.done()
    assert platform.texts() == ["One and all."]
    assert platform.violations == []


@pytest.mark.parametrize("kind", ["gone", "reject", "dead"])
async def test_a_draft_that_cannot_be_shown_is_given_up(side: Side, kind: str) -> None:
    platform = store()
    platform.fail("show", Fault(kind))  # type: ignore[arg-type]
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "One")
        await until(lambda: platform.made("show"))
        await say(previewer, " and two")
        await side.run("r1", RunCompleted())
        await side.plan("r1", "One and all.", purpose="answer")
        await side.done()
    assert platform.texts() == ["One and all."]
    assert len(platform.made("show")) == 1


@pytest.mark.parametrize("text", ["One", ""])
async def test_a_run_without_an_answer(side: Side, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text stays, the line about what it does goes, and a message without text is taken back."""
    monkeypatch.setattr(drafts, "GRACE_SECONDS", 0.1)
    platform = store()
    async with serving(side.endpoint, side.home, platform):
        await side.begin("r1")
        completed = ModelCompleted(message=ai("ai-1", text, [call("c1")]))
        await side.run("r1", completed, ToolRequested(call_id="c1", name="bash", effect="once"))
        await until(lambda: shows(platform, text, "bash"))
        await side.run("r1", RunCompleted())
        await until(lambda: shows(platform, text) if text else not platform.messages)


@pytest.mark.parametrize("began", [True, False])
async def test_an_answer_that_comes_after_the_draft_was_settled(
    side: Side, began: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the place of the draft's message. Where limits held that back, the end of the draft begins none."""
    monkeypatch.setattr(drafts, "GRACE_SECONDS", 0.1)
    platform = store()
    if not began:
        platform.fail("show", Fault("held back"))
    async with serving(side.endpoint, side.home, platform):
        await side.begin("r1")
        completed = ModelCompleted(message=ai("ai-1", "One", [call("c1")]))
        await side.run("r1", completed, ToolRequested(call_id="c1", name="bash", effect="once"))
        await until(lambda: shows(platform, "One", "bash") if began else platform.made("show"))
        await side.run("r1", RunCompleted())
        await until(lambda: platform.working["C1"][-1:] == [False])
        await until(lambda: shows(platform, "One") if began else True)
        await side.plan("r1", "One and all.", purpose="answer")
        await side.done()
    assert platform.texts() == ["One and all."]
    assert len(platform.made("show")) == (2 if began else 1)


async def test_a_thread_that_is_erased_meanwhile(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "GRACE_SECONDS", 0.1)
    platform = store()
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "One")
        await until(lambda: shows(platform, "One"))
        await side.run("r1", ThreadErased(by="ada"))
        await until(lambda: platform.working["C1"][-1:] == [False])


async def test_an_answer_that_was_planned_before_needs_no_draft(side: Side) -> None:
    platform = store()
    previewer = await typing(side, "r1", await side.begin("r1"))
    await say(previewer, "One")
    await side.plan("r1", "One and all.", purpose="answer")
    async with serving(side.endpoint, side.home, platform):
        await side.plan("q", "next", purpose="push")
        await side.done()
    assert platform.texts() == ["One and all.", "next"]
    assert platform.made("show") == []


async def test_the_first_words_in_a_group_do_not_stand_alone(side: Side) -> None:
    """They are gathered for a part of the time between edits; an answer does not wait for that."""
    platform = store(pace=PACED._replace(group_edit_seconds=3600.0))
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1", GROUP))
        await say(previewer, "One")
        await until(lambda: platform.working[GROUP.chat])
        await side.run("r1", ModelCompleted(message=ai("ai-1", "One and all.")), RunCompleted())
        await side.plan("r1", "One and all.", purpose="answer", target=GROUP)
        await side.done(GROUP)
    assert platform.made("show") == []
    assert platform.texts() == ["One and all."]
