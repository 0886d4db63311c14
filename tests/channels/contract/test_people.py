"""Who speaks: names of people in what the agent reads, on all platforms."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.thread.messages import person
from tests.channels.contract.seats import DingTalkWithNames
from tests.channels.contract.tables import Table, table

pytestmark = pytest.mark.anyio


async def test_people_who_are_mentioned_have_names(here: Table) -> None:
    await here.hears("bob", "hello", "team")
    event = await here.hears("ann", "what did {} ask for?", "team", mentions="bob")
    name = next(event.sender_name for event in here.received if event.sender == here.seat.id_of("bob"))
    mention = f"@{person(name, here.seat.id_of('bob'))}"
    content = (await here.message(event))["content"]
    assert mention in content, content
    assert content.replace(mention, "").split() == ["what", "did", "ask", "for?"]


async def test_a_mention_before_a_command_is_none_of_its_words(here: Table) -> None:
    event = await here.hears("ann", "{} /status", "team", mentions="bob")
    assert (await here.routed(event)).outcome == "command"


async def test_who_wrote_a_message_is_with_its_run(here: Table) -> None:
    in_group = await here.hears("ann", "hello", "team")
    speaker = (await here.run(in_group)).request.origin
    assert speaker is not None
    assert speaker.speaker is not None
    assert speaker.speaker.id == here.seat.id_of("ann")
    alone = (await here.run(await here.hears("ann", "hello"))).request.origin
    assert alone is not None
    assert alone.speaker is None


async def test_dingtalk_may_leave_names_in_texts(tmp_path: Path, anyio_backend: str) -> None:
    async with table(DingTalkWithNames(), tmp_path) as here:
        await here.hears("bob", "hello", "team")
        event = await here.hears("ann", "ask {} now", "team", mentions="bob")
        assert (await here.message(event))["content"] == 'ask @"Bob" (staff-bob) now'
