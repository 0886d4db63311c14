"""A chat account of tests: messages as a platform hands them over, and what the actor makes of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from actors.chat.actor import Chat
from core.chat.facts import ChatReceived, ChatRouted, Choice, DeliveryPlanned, Target, conversation, key_of
from core.chat.inbox import Inbox
from core.chat.state import Chats
from core.config.load import ConfigSource
from core.events import Aggregate, Event, ModelCompleted, RunCompleted, RunRequested, RunStarted, thread
from core.testing import Stage, acting
from core.thread.state import Run, ThreadState
from tests.support.records import ai

E = TypeVar("E", bound=Event)
PACKAGE = "tests.actors.chat"


class Account:
    """An account of the platform `office`, or of `world`."""

    def __init__(self, stage: Stage, name: str, home: Path) -> None:
        self.stage = stage
        self.home = home
        self.name = name
        self.chats = Chats(stage.system.log)
        self.inbox = Inbox(name, self.chats, replies_are_topics=False)
        self._messages = 0

    def place(self, chat: str = "C1", topic: str = "") -> Aggregate:
        return conversation(self.name, chat, topic)

    async def hears(
        self,
        text: str = "",
        *,
        sender: str = "U1",
        chat: str = "C1",
        topic: str = "",
        kind: Any = "private",
        message: str = "",
        settle: bool = True,
        **more: Any,
    ) -> ChatReceived:
        """Receives a message, and waits until the actor has decided."""
        self._messages += 1
        message = message or f"m{self._messages}"
        event = ChatReceived(
            message=message,
            target=Target(chat, topic=topic, kind=kind, reply_to=message),
            sender=sender,
            sender_name=f"Name of {sender}",
            text=text,
            **more,
        )
        await self.inbox.receive(event)
        if settle:
            await self.stage.settled(self.place(chat, topic))
        return event

    async def presses(self, plan: DeliveryPlanned, button: str, *, sender: str = "U1", **more: Any) -> ChatReceived:
        return await self.hears(sender=sender, message=f"p-{plan.plan}", choice=Choice(plan.plan, button), **more)

    async def events(self, kind: type[E], chat: str = "C1", topic: str = "") -> list[E]:
        records = await self.stage.settled(self.place(chat, topic))
        return [record.event for record in records if isinstance(record.event, kind)]

    async def outcome(self, event: ChatReceived) -> ChatRouted:
        routed = await self.events(ChatRouted, event.target.chat, event.target.topic)
        [outcome] = [each for each in routed if each.message == key_of(event)]
        return outcome

    async def said(self, chat: str = "C1", topic: str = "") -> list[str]:
        """The texts that were planned."""
        return [plan.text for plan in await self.events(DeliveryPlanned, chat, topic)]

    async def plan(self, **about: Any) -> DeliveryPlanned:
        """The newest plan."""
        return (await self.events(DeliveryPlanned, **about))[-1]

    async def state(self, routed: ChatRouted) -> ThreadState:
        return await self.stage.system.threads.load(routed.thread)

    async def run(self, event: ChatReceived) -> Run:
        """The run that a message became."""
        routed = await self.outcome(event)
        return (await self.state(routed)).runs[routed.run_id]

    async def starts(self, event: ChatReceived) -> ChatRouted:
        routed = await self.outcome(event)
        await self.does(routed, RunStarted(attempt=1, worker="test", lease=1))
        return routed

    async def does(self, routed: ChatRouted, *events: Event) -> None:
        """Appends what a worker would."""
        await self.stage.given(*events, run=routed.run_id, aggregate=thread(routed.thread))

    async def answers(self, event: ChatReceived, text: str = "Hi.", *before: Event) -> ChatRouted:
        """Has a worker answer a message."""
        routed = await self.starts(event)
        await self.does(routed, *before, ModelCompleted(message=ai(f"a-{routed.run_id}", text)), RunCompleted())
        return routed

    async def requests(self, routed: ChatRouted) -> list[RunRequested]:
        return [run.request for run in (await self.state(routed)).runs.values()]


@asynccontextmanager
async def account(home: Path, name: str = "office", settings: Any = None, **sections: Any) -> AsyncIterator[Account]:
    """An account on a bus of its own. `settings` are those of its platform; without them, each message is answered by
    itself.
    """
    platform = name.partition("-")[0]
    about = {"enabled": True, "use": f"{PACKAGE}.{platform}", "gather_seconds": 0}
    channels = {platform: {**about, **(settings or {})}}
    (home / "config.yaml").write_text(json.dumps({"channels": channels, **sections}))
    source = ConfigSource(home / "config.yaml")

    def make(system: Any) -> Chat:
        return Chat(source, system.log, system.threads, system.chats, system.intake, home, system.standing)

    async with acting(make, home=home) as stage:
        yield Account(stage, name, home)


def texts(plans: Sequence[DeliveryPlanned]) -> list[str]:
    return [plan.text for plan in plans]
