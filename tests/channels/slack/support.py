"""An account of the local Slack, with its inbox in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from channels.slack.platform import SlackPlatform
from core.chat.facts import ChatReceived, Target
from tests.channels.slack.server import APP_TOKEN, BOT_TOKEN, SlackServer


class Inbox:
    """What was received, in order. `fails`: errors that are raised first. Implements `core.chat.port.Report`, too."""

    def __init__(self) -> None:
        self.events: list[ChatReceived] = []
        self.fails: list[Exception] = []
        self.reasons: list[str] = []
        self.connections = 0
        self.signs = 0
        self._changed = anyio.Event()

    async def receive(self, event: ChatReceived) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.events.append(event)
        self._wake()

    def connected(self) -> None:
        self.connections += 1
        self._wake()

    def heard(self) -> None:
        self.signs += 1
        self._wake()

    def disconnected(self, reason: str) -> None:
        self.reasons.append(reason)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, *, events: int = 0, connections: int = 0, reasons: int = 0, signs: int = 0) -> None:
        """Waits for as many messages, connections, ends of connections and signs of life."""
        with anyio.fail_after(120):
            while (
                len(self.events) < events
                or self.connections < connections
                or len(self.reasons) < reasons
                or self.signs < signs
            ):
                await self._changed.wait()


def platform_of(server: SlackServer, *, ping_seconds: float = 10.0) -> SlackPlatform:
    return SlackPlatform(BOT_TOKEN, APP_TOKEN, base_url=server.base_url, ping_seconds=ping_seconds)


@asynccontextmanager
async def account(server: SlackServer) -> AsyncIterator[SlackPlatform]:
    """A platform that can speak, and does not listen."""
    platform = platform_of(server)
    try:
        yield platform
    finally:
        await platform.close()


@asynccontextmanager
async def listening(server: SlackServer, *, ping_seconds: float = 10.0) -> AsyncIterator[tuple[SlackPlatform, Inbox]]:
    """A platform that listens, connected."""
    platform, inbox = platform_of(server, ping_seconds=ping_seconds), Inbox()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(platform.listen, inbox.receive, inbox)
            await inbox.until(connections=1)
            yield platform, inbox
            tasks.cancel_scope.cancel()
    finally:
        await platform.close()


async def thread_in(server: SlackServer, chat: str = "general", person: str = "ann") -> Target:
    """A person's message in a channel, and the place of its answer."""
    ts = await server.person(person).says("a question", chat=chat, mention=True)
    return Target(chat=server.chat(chat).id, topic=ts, kind="group", reply_to=ts, sender=server.person(person).id)


async def direct(server: SlackServer, person: str = "ann") -> Target:
    """A person's direct message, and the place of its answer."""
    ts = await server.person(person).says("a question")
    return Target(chat=server.chat(f"@{person}").id, reply_to=ts, sender=server.person(person).id)
