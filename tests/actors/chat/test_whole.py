"""Conversations with the agent itself at work: the lead, models, the sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.chat.actor import Chat
from core.chat.facts import (
    Attachment,
    ChatFetched,
    ChatReceived,
    Choice,
    DeliveryPlanned,
    Fetched,
    Target,
    conversation,
)
from core.chat.inbox import Inbox
from core.chat.objects import Objects
from core.chat.state import Chats
from core.config.load import ConfigSource
from core.runtime.system import System
from core.thread.state import ThreadState
from core.tools import ToolContext, tool
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.nats import eventually
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio
PLACE = conversation("office", "C1")


@tool(effect="once")
async def mail(ctx: ToolContext, to: str) -> str:
    """Mail."""
    return f"mailed {to}"


class Person:
    """A person in a chat, without a platform in between."""

    def __init__(self, client: Client, models: ModelServer, home: Path) -> None:
        running = client.system
        self.client = client
        self.models = models
        self._home = home
        self._log = running.log
        self._inbox = Inbox("office", Chats(running.log), replies_are_topics=False)
        self._messages = 0

    async def says(self, text: str = "", choice: Choice | None = None) -> None:
        self._messages += 1
        message = f"m{self._messages}"
        event = ChatReceived(
            message=message, target=Target("C1"), sender="U1", sender_name="Ada", text=text, choice=choice
        )
        await self._inbox.receive(event)

    async def sends(self, text: str, name: str) -> None:
        """Sends a file, which the process of the account fetches."""
        self._messages += 1
        path = self._home / "sent"
        path.write_text("content")
        message = f"m{self._messages}"
        file = await Objects(self._log.bus).put(PLACE, name, path)
        event = ChatReceived(
            message=message, target=Target("C1"), sender="U1", text=text, attachments=(Attachment("f", name),)
        )
        await self._inbox.receive(event)
        fact = ChatFetched(message=message, files=(Fetched(name, object=file, size=7),))
        await Chats(self._log).decide(PLACE.id, lambda _: [fact], actor="office")

    async def state(self) -> ThreadState | None:
        """The state of the thread of the conversation; None before there is one."""
        known = (await Chats(self._log).load(PLACE.id)).thread
        return await self.client.system.threads.load(known) if known else None

    async def hears(self, count: int) -> list[DeliveryPlanned]:
        """The first plans of the conversation, once there are so many."""

        async def probe() -> list[DeliveryPlanned]:
            events = [record.event async for record in self._log.read(PLACE)]
            plans = [event for event in events if isinstance(event, DeliveryPlanned)]
            return plans if len(plans) >= count else []

        plans = await eventually(probe)
        assert len(plans) == count, [plan.text for plan in plans]
        return plans


@asynccontextmanager
async def talking(home: Path, turns: Sequence[Turn], **sections: Any) -> AsyncIterator[Person]:
    def make(running: System, source: ConfigSource) -> Chat:
        return Chat(source, running.log, running.threads, running.chats, running.intake, home, running.standing)

    channels = {"office": {"enabled": True, "use": "tests.actors.chat.office", "gather_seconds": 0}}
    scripts = {"one": Script(tuple(turns), count="total")}
    async with site(home, scripts, tools=[mail], others=[make], channels=channels, **sections) as (client, models):
        yield Person(client, models, home)


async def test_a_message_is_answered(tmp_path: Path) -> None:
    async with talking(tmp_path, [Turn(text="Hello, Ada."), Turn(text="Bye.")]) as ada:
        await ada.says("hello")
        [plan] = await ada.hears(1)
        assert (plan.purpose, plan.text) == ("answer", "Hello, Ada.")
        await ada.says("bye")
        assert (await ada.hears(2))[1].text == "Bye."


async def test_a_call_waits_for_a_button(tmp_path: Path) -> None:
    turns = [Turn(text="I mail her.", tool_calls=(ToolCall("mail", {"to": "eve"}),)), Turn(text="Done.")]
    rule = {"tool": "mail", "text": "Mail them?"}
    async with talking(tmp_path, turns, approvals=[rule]) as ada:
        await ada.says("write to Eve")
        [asked] = await ada.hears(1)
        assert asked.text.startswith("I mail her.\n\nMay I do this? `mail`\n\nMail them?")
        await ada.says(choice=Choice(asked.plan, "approve"))
        _, decided, answer = await ada.hears(3)
        assert (decided.replaces, decided.text.endswith("✅ Approved by Ada")) == (asked.plan, True)
        assert answer.text == "Done."


async def test_two_calls_are_decided_one_after_the_other(tmp_path: Path) -> None:
    """The first decision pauses the conversation at the other question again: its old buttons go."""
    calls = (ToolCall("mail", {"to": "eve"}), ToolCall("mail", {"to": "bob"}))
    turns = [Turn(tool_calls=calls), Turn(text="Done.")]
    async with talking(tmp_path, turns, approvals=[{"tool": "mail", "text": "Mail them?"}]) as ada:
        await ada.says("write to both")
        first, second = await ada.hears(2)
        await ada.says(choice=Choice(first.plan, "approve"))
        plans = await ada.hears(5)
        assert [plan.replaces for plan in plans[2:4]] == [first.plan, second.plan]
        again = plans[4]
        assert (again.question, again.replaces) == (second.question, "")
        await ada.says(choice=Choice(again.plan, "reject"))
        assert [plan.text for plan in (await ada.hears(7))[6:]] == ["Done."]


async def test_a_question_of_the_agent_is_answered(tmp_path: Path) -> None:
    arguments = {"question": "Where?", "clarification_type": "missing_info", "options": ["Berlin", "Hamburg"]}
    turns = [Turn(tool_calls=(ToolCall("ask_clarification", arguments),)), Turn(text="Booked.")]
    async with talking(tmp_path, turns) as ada:
        await ada.says("book a room")
        [asked] = await ada.hears(1)
        assert (asked.purpose, [button.label for button in asked.buttons]) == ("question", ["Berlin", "Hamburg"])
        await ada.says("2")
        _, decided, answer = await ada.hears(3)
        assert decided.text.endswith("➡️ Hamburg (Ada)")
        assert answer.text == "Booked."


async def test_a_run_that_fails_is_told(tmp_path: Path) -> None:
    async with talking(tmp_path, [Turn(error=Failure(status=400, message="no http://secret"))]) as ada:
        await ada.says("hello")
        [plan] = await ada.hears(1)
        assert plan.text
        assert "http" not in plan.text


async def test_the_agent_says_something_while_it_works(tmp_path: Path) -> None:
    """The tool is there only in a chat."""
    turns = [Turn(tool_calls=(ToolCall("send_message", {"text": "Half is done."}),)), Turn(text="All is done.")]
    async with talking(tmp_path, turns) as ada:
        await ada.says("work")
        sent, answer = await ada.hears(2)
        assert (sent.purpose, sent.text, sent.target.chat) == ("push", "Half is done.", "C1")
        assert answer.text == "All is done."
        said = await ada.client.said(await ada.client.thread("t1"), "work")
        assert "send_message is not a valid tool" in str(said)
        await ada.hears(2)


async def test_files_of_a_later_message_are_not_shown_to_a_queued_one(tmp_path: Path) -> None:
    turns = [Turn(text="One.", gate="first"), Turn(text="Two."), Turn(text="Three.")]
    async with talking(tmp_path, turns) as ada:
        await ada.sends("one", "one.txt")
        await ada.models.reached("first")
        await ada.says("two")
        await ada.sends("three", "three.txt")

        async def probe() -> list[str]:
            state = await ada.state()
            return list(state.runs) if state is not None and len(state.runs) == 3 else []

        await eventually(probe)
        ada.models.release("first")
        await ada.hears(5)  # the notice of being at work and its change, and three answers
        state = await ada.state()
        assert state is not None
        asked = [str(message["content"]) for message in state.messages if message["type"] == "human"]
        assert ["one.txt" in text for text in asked] == [True, True, True]
        assert ["three.txt" in text for text in asked] == [False, False, True]


async def test_only_commands_of_a_run_from_a_chat_know_the_person(tmp_path: Path) -> None:
    show = {"description": "Show", "command": "echo [$DEERFLOW_CHANNEL_USER_ID]"}
    turns = [Turn(tool_calls=(ToolCall("bash", show),)), Turn(text="Done.")]
    async with talking(tmp_path, turns) as ada:
        await ada.says("show")
        await ada.hears(1)
        state = await ada.state()
        assert state is not None
        assert "[U1]" in str(state.messages)
        said = await ada.client.said(await ada.client.thread("t1"), "show")
        assert "[]" in str(said)
