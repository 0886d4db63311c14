"""Who writes faster than is taken waits for themselves: nobody else does, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import pytest

from actors.chat import allowance
from actors.chat.actor import Chat
from actors.chat.allowance import AT_ONCE, LATE_SECONDS, SECONDS, Allowance
from core.chat.facts import ChatReceived, ChatRouted, DeliveryPlanned, Target, conversation
from core.chat.inbox import Inbox
from core.chat.state import Chats
from core.config.load import ConfigSource
from core.runtime import system
from core.runtime.system import System
from tests.actors.chat.site import Account, account
from tests.support.nats import Nats, eventually, own

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_person_has_so_many_at_once_and_then_one_at_a_time() -> None:
    allowance = Allowance(Clock())
    waits = [allowance.wait("ada", f"m{number}") for number in range(300)]
    assert waits[:AT_ONCE] == [0.0] * AT_ONCE
    assert waits[AT_ONCE:] == pytest.approx([SECONDS * number for number in range(1, 300 - AT_ONCE + 1)])
    assert allowance.wait("bob", "his") == 0.0


def test_a_message_keeps_its_time_and_is_taken_then() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    waits = {f"m{number}": allowance.wait("ada", f"m{number}") for number in range(AT_ONCE + 5)}
    for message, wait in list(waits.items())[AT_ONCE:]:
        assert allowance.wait("ada", message) == pytest.approx(100.0 + wait - clock.now)
        clock.now = 100.0 + wait
        assert allowance.wait("ada", message) == 0.0
    clock.now += AT_ONCE * SECONDS
    assert [allowance.wait("ada", f"later{number}") for number in range(AT_ONCE)] == [0.0] * AT_ONCE


def test_who_may_write_as_ever_and_what_is_long_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "MOST", 5)
    clock = Clock()
    many = Allowance(clock)
    for number in range(100):
        clock.now += LATE_SECONDS
        for message in range(AT_ONCE + 1):  # the last one is put off, and never looked at again: it was dropped
            many.wait(f"p{number}", f"{number}/{message}")
    assert len(many._next) <= 6
    assert len(many._times) <= 6


# ── the actor ───────────────────────────────────────────────────────────────────────────────────────────────────────

FLOOD = [f"G{number}" for number in range(12)]
"""Chats in which one person writes."""


@pytest.fixture
def _never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three messages of a person are taken in these tests, and the next one in an hour."""
    monkeypatch.setattr(allowance, "AT_ONCE", 3)
    monkeypatch.setattr(allowance, "SECONDS", 3600.0)


async def outcomes(office: Account, *chats: str) -> list[str]:
    return [routed.outcome for chat in chats for routed in await office.events(ChatRouted, chat)]


@pytest.mark.usefixtures("_never_again")
async def test_others_and_commands_overtake_a_flood(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        for chat in FLOOD:
            await office.hears("Hello?", chat=chat, settle=False)
        assert await outcomes(office, *FLOOD) == ["run"] * 3
        *_, waits, last = FLOOD
        for chat in ("C1", waits):
            event = await office.hears("Hello?", chat=chat, sender="U2")
            assert (await office.outcome(event)).outcome == "run"
        assert await outcomes(office, waits) == ["run"], "of somebody else, in a chat in which the flood waits"
        for command in ("/status", "/queue"):
            event = await office.hears(command, chat=last)
            assert (await office.outcome(event)).outcome == "command"
        replies = [plan.text for plan in await office.events(DeliveryPlanned, last)]
        assert replies[-1] == "Waiting:\nNot taken yet: 1."
        await office.hears("/stop", chat=last)
        assert sorted(await outcomes(office, last)) == ["command", "command", "command", "ignored"], "it was dropped"


@asynccontextmanager
async def serving(nats: Nats, home: Path) -> AsyncIterator[System]:
    """A process with the actor."""
    (home / "config.yaml").write_text(
        "channels: {office: {enabled: true, use: tests.actors.chat.office, gather_seconds: 0}}"
    )
    source = ConfigSource(home / "config.yaml")
    async with system.start(nats.endpoint(), home / "views.db", lease_seconds=2, slots=4) as running:
        parts = (running.log, running.threads, running.chats, running.intake, home, running.standing)
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(running.serve, [Chat(source, *parts)], alone=True))
            yield running
            tasks.cancel_scope.cancel()


@pytest.mark.usefixtures("_never_again")
async def test_what_waits_is_taken_after_a_restart(tmp_path: Path) -> None:
    """In the order of the conversation, each message once."""
    places = [conversation("office", chat) for chat in FLOOD[:5]]

    async def routed(running: System, number: int) -> bool:
        states = [await running.chats.load(place.id) for place in places]
        return sum(bool(heard.outcome) for state in states for heard in state.heard.values()) == number

    async with own(tmp_path / "nats") as nats:
        async with serving(nats, tmp_path) as running:
            inbox = Inbox("office", Chats(running.log), replies_are_topics=False)
            for message in ("first", "second"):
                for chat in FLOOD[:5]:
                    await inbox.receive(ChatReceived(message=message, target=Target(chat), sender="U1", text=message))
            await eventually(partial(routed, running, 3))
        for number in (6, 9, 10):
            async with serving(nats, tmp_path) as running:
                await running.queue.fire_set_after(datetime.fromtimestamp(0, UTC))
                await eventually(partial(routed, running, number))
        async with system.start(nats.endpoint(), tmp_path / "v.db", lease_seconds=2, slots=1, loops=False) as reader:
            for place in places:
                events = [record.event async for record in reader.log.read(place)]
                assert [e.message for e in events if isinstance(e, ChatRouted)] == ["first", "second"]
