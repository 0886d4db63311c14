"""Conversations as people see them: a platform's messages in, the agent at work, its answers on the platform."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors import delivery
from actors.chat.actor import Chat
from core.actor import Actor
from core.chat.facts import Attachment, ChatReceived, Choice, DeliveryPlanned, Target, conversation
from core.chat.inbox import Inbox
from core.chat.state import Chats
from core.config.load import ConfigSource
from core.events import RunStarted
from core.runtime.system import System
from tests.actors.chat.test_whole import mail
from tests.support.chat_platform import ACCOUNT, Message, ScriptedPlatform, Store, anybody, store
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.nats import eventually
from tests.support.workers import site

pytestmark = pytest.mark.anyio
PLACE = conversation(ACCOUNT, "C1")


class Room:
    """A private chat with the bot."""

    def __init__(self, running: System, platform: Store) -> None:
        self.log = running.log
        self.platform = platform
        self._inbox = Inbox(ACCOUNT, Chats(running.log), replies_are_topics=False)
        self._messages = 0

    async def says(self, text: str = "", *files: Attachment, choice: Choice | None = None) -> None:
        self._messages += 1
        event = ChatReceived(
            message=f"p{self._messages}",
            target=Target("C1"),
            sender="U1",
            sender_name="Ada",
            text=text,
            attachments=files,
            choice=choice,
        )
        await self._inbox.receive(event)

    async def sees(self, *texts: str) -> list[Message]:
        """Waits until exactly these messages are there, with nothing in the making, each beginning so."""

        async def probe() -> bool:
            there = list(self.platform.messages.values())
            same = len(there) == len(texts) and all(m.text.startswith(t) for m, t in zip(there, texts, strict=True))
            return same and not any(m.status for m in there)

        try:
            await eventually(probe)
        except TimeoutError:
            raise AssertionError([(m.text, m.status) for m in self.platform.messages.values()]) from None
        return list(self.platform.messages.values())

    async def asked(self) -> DeliveryPlanned:
        """The newest plan."""
        events = [record.event async for record in self.log.read(PLACE)]
        return [event for event in events if isinstance(event, DeliveryPlanned)][-1]


@asynccontextmanager
async def room(home: Path, turns: Sequence[Turn], count: Any = "total", **sections: Any) -> AsyncIterator[Room]:
    platform = store()

    def chat(running: System, source: ConfigSource) -> Actor[Any]:
        return Chat(source, running.log, running.threads, running.chats, running.intake, home, running.standing)

    def of_account(number: int) -> Any:
        def make(running: System, _: ConfigSource) -> Actor[Any]:
            if not shared:
                shared.extend(delivery.actors(ACCOUNT, ScriptedPlatform(platform), running, home, anybody))
            return shared[number]

        return make

    shared: list[Actor[Any]] = []
    channels = {ACCOUNT: {"enabled": True, "use": "tests.actors.chat.office"}}
    scripts: Mapping[str, Script] = {"one": Script(tuple(turns), count=count)}
    others = [chat, *(of_account(number) for number in range(3))]
    async with site(home, scripts, tools=[mail], others=others, channels=channels, **sections) as (client, _):
        yield Room(client.system, platform)


async def test_messages_are_answered_in_their_order(tmp_path: Path) -> None:
    turns = [Turn(text="Hello."), Turn(text="Fine."), Turn(text="Bye.")]
    async with room(tmp_path, turns) as ada:
        await ada.says("hello")
        await ada.sees("Hello.")
        await ada.says("how are you?")
        await ada.sees("Hello.", "Fine.")
        await ada.says("/help")
        await ada.sees("Hello.", "Fine.", "Write to me as you like.", "- `/new`")
        await ada.says("bye")
        await ada.sees("Hello.", "Fine.", "Write to me as you like.", "- `/new`", "Bye.")
        assert ada.platform.violations == []


async def test_a_question_is_decided_and_its_message_says_so(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(ToolCall("mail", {"to": "eve"}),)), Turn(text="Done.")]
    async with room(tmp_path, turns, approvals=[{"tool": "mail", "text": "Mail them?"}]) as ada:
        await ada.says("write to Eve")
        parts = await ada.sees("May I do this? `mail`", "Mail them?", "```json", "1. Approve")
        plan = await ada.asked()
        assert any(part.buttons for part in parts)
        await ada.says(choice=Choice(plan.plan, "approve"))

        async def decided() -> bool:
            texts = ada.platform.texts()
            return texts[-1] == "Done." and any("✅ Approved by Ada" in text for text in texts)

        await eventually(decided)
        assert not any(part.buttons for part in ada.platform.messages.values())


async def test_a_file_is_read_by_the_agent(tmp_path: Path) -> None:
    read = ToolCall("read_file", {"description": "look", "path": "/mnt/user-data/uploads/notes.txt"})
    async with room(tmp_path, [Turn(tool_calls=(read,)), Turn(text="It says hello.")]) as ada:
        ada.platform.attachments["f1"] = b"hello from the file"
        await ada.says("what is in it?", Attachment("f1", "notes.txt", size=19))
        await ada.sees("It says hello.")
        found = [path.read_bytes() for path in tmp_path.rglob("uploads/notes.txt")]
        assert found == [b"hello from the file"]


async def test_stop_stops_the_answer_and_the_next_message_is_answered(tmp_path: Path) -> None:
    turns = [Turn(text="One two three", gate="stop", gate_after=1), Turn(text="Here.")]
    async with room(tmp_path, turns, "marker") as ada:
        await ada.says("count")

        async def at_work() -> bool:
            return any(
                [isinstance(record.event, RunStarted) async for record in ada.log.between(0, await ada.log.last())]
            )

        await eventually(at_work)
        await ada.says("stop")
        await ada.says("are you there? (step-0)")

        async def answered() -> bool:
            texts = ada.platform.texts()
            return "Here." in texts and any(text.endswith("_Stopped._") for text in texts)

        await eventually(answered)
        assert sum("Stop" in text for text in ada.platform.texts()) == 1, "said once, below the answer"
