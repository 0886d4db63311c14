"""An answer that grows in a message has a button that stops its run, where such messages have buttons."""

from __future__ import annotations

import pytest

from core.chat.facts import STOP, ChatReceived, ChatRouted
from core.events import ModelCompleted, RunCancelled, RunCompleted
from tests.channels.contract.tables import Table
from tests.support.nats import eventually
from tests.support.records import ai

pytestmark = pytest.mark.anyio
GROWS_IN_A_MESSAGE = {"slack": "", "telegram": "stopping", "feishu": "stopping"}
"""Chats in which answers grow so. Slack's native streams, in threads, Telegram's drafts, in private chats, and cards of
DingTalk have no buttons of ours. A draft of Telegram has one of its own."""
IN_THEM = pytest.mark.parametrize("here", GROWS_IN_A_MESSAGE, indirect=True)


async def growing(here: Table, person: str, question: str, text: str) -> tuple[str, ChatReceived, ChatRouted]:
    """Returns the chat in which an answer grows, the person's message, and its run, once the button is there."""
    group = GROWS_IN_A_MESSAGE[here.seat.name]
    event = await here.hears(person, question, group)
    routed = await here.works(event)
    await here.says(routed, text)
    await here.until(lambda: here.seat.has_label(person, STOP.label, group))
    return group, event, routed


@IN_THEM
async def test_a_button_stops_the_answer_that_grows(here: Table) -> None:
    group, event, routed = await growing(here, "iris", "count to a million", "One, two")
    await here.seat.presses("iris", STOP.label, group)

    async def cancelled() -> bool:
        return (await here.run(event)).cancel is not None

    await eventually(cancelled)
    await here.does(routed, RunCancelled())
    await here.until(lambda: not here.seat.has_label("iris", STOP.label, group))
    assert await here.shows("Stopped.", "iris", group)


@IN_THEM
async def test_a_button_of_an_answer_that_stands_there_is_gone(here: Table) -> None:
    group, _, routed = await growing(here, "jack", "hello", "Hello, Jack.")
    await here.does(routed, ModelCompleted(message=ai("a", "Hello, Jack.")), RunCompleted())
    await here.until(lambda: not here.seat.has_label("jack", STOP.label, group))
    assert await here.shows("Hello, Jack.", "jack", group)
