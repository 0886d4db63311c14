"""Signs of life: shown as soon as a message is in the log, and until its answer stands there."""

from __future__ import annotations

import anyio
import pytest

from actors.delivery import pacing, signs
from core.chat.facts import ChatReceived, ChatRouted, DeliveryPlanned, Target
from core.chat.state import Conversation
from core.events import ModelCompleted, RunCompleted
from tests.actors.delivery.conftest import DEADLINE, HERE, Side
from tests.actors.delivery.test_drafts import say, shows, typing, until
from tests.support.chat_platform import QUICK, Fault, serving, store
from tests.support.records import ai

pytestmark = pytest.mark.anyio


async def test_a_message_is_acknowledged_before_anything_is_decided(side: Side) -> None:
    platform = store()
    async with serving(side.endpoint, side.home, platform):
        await side.append(ChatReceived(message="m", target=HERE, sender="U1", text="hello"))
        await until(lambda: platform.working[HERE.chat] == [True])
        await side.append(ChatRouted(message="m", outcome="refused"))
        await until(lambda: platform.working[HERE.chat] == [True, False])


async def test_nobody_is_acknowledged_who_is_not_let_in(side: Side) -> None:
    platform = store()
    seen = anyio.Event()

    async def awaits(event: ChatReceived, state: Conversation) -> bool:
        seen.set()
        return False

    async with serving(side.endpoint, side.home, platform, awaits=awaits):
        await side.append(ChatReceived(message="m", target=HERE, sender="U1", text="hello"))
        with anyio.fail_after(DEADLINE):
            await seen.wait()
        await side.append(ChatRouted(message="m", outcome="ignored"))
        await side.plan("p", "after", purpose="push")
        await side.done()
    assert not platform.working[HERE.chat]


async def test_the_sign_leaves_when_the_answer_stands_there(side: Side) -> None:
    """For half a second a sentence that is cut off would look finished."""
    platform = store()
    async with serving(side.endpoint, side.home, platform):
        previewer = await typing(side, "r1", await side.begin("r1"))
        await say(previewer, "One")
        await until(lambda: shows(platform, "One") and platform.working[HERE.chat][:1] == [True])
        await side.run("r1", ModelCompleted(message=ai("ai-1", "One and all.")), RunCompleted())
        await side.plan("r1", "One and all.", purpose="answer")
        await side.done()
        await until(lambda: platform.working[HERE.chat][-1] is False)
    assert platform.working[HERE.chat].count(False) == 1
    methods = [call.method for call in platform.calls]
    assert methods.count("finish") == 1
    assert methods[-1] == "working"


async def test_the_sign_leaves_after_an_answer_that_was_planned_before_its_draft_began(side: Side) -> None:
    platform = store()
    platform.fail("post", Fault("limit", 1.0))
    routed = ChatRouted(message="m", outcome="run", thread="t1", run_id="r1", user="ada", target=HERE)
    planned = DeliveryPlanned(plan="r1", purpose="answer", target=HERE, text="One and all.")
    async with serving(side.endpoint, side.home, platform):
        await side.append(routed, planned)
        await until(lambda: platform.working[HERE.chat])
    assert platform.working[HERE.chat] == [False]
    assert [call.method for call in platform.calls][-2:] == ["post", "working"]


async def test_who_writes_much_does_not_take_the_signs_of_others(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as many messages are looked at in one go as one person has written."""
    monkeypatch.setattr(pacing, "SECOND", 0.5)
    monkeypatch.setattr(signs.Signs, "concurrency", 8)
    platform = store(pace=QUICK._replace(per_second=1))
    flood, other = Target("flood"), Target("other")
    async with serving(side.endpoint, side.home, platform):
        many = [ChatReceived(message=f"m{number}", target=flood, sender="U1", text="hello") for number in range(40)]
        await side.append(*many, target=flood)
        await side.append(ChatReceived(message="m", target=other, sender="U2", text="hello"), target=other)
        await until(lambda: platform.working["other"] == [True])
    assert len(platform.working["flood"]) < len(many) / 2, "nor are all of its own shown"
