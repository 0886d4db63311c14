"""An account of the local Discord, with its inbox in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from channels.discord.platform import DiscordPlatform, connect
from core.chat.facts import Target
from tests.channels.discord.server import DiscordServer
from tests.channels.slack.support import Inbox


@asynccontextmanager
async def account(server: DiscordServer, **settings: Any) -> AsyncIterator[DiscordPlatform]:
    """A platform that can speak, and does not listen."""
    platform = connect({**server.settings, **settings})
    try:
        yield platform
    finally:
        await platform.close()


@asynccontextmanager
async def listening(server: DiscordServer, **settings: Any) -> AsyncIterator[tuple[DiscordPlatform, Inbox]]:
    """A platform that listens, connected."""
    inbox = Inbox()
    async with account(server, **settings) as platform, anyio.create_task_group() as tasks:
        tasks.start_soon(platform.listen, inbox.receive, inbox)
        await inbox.until(connections=1)
        yield platform, inbox
        tasks.cancel_scope.cancel()


def direct(server: DiscordServer, person: str = "ann") -> Target:
    asker = server.person(person)
    return Target(chat=server.channel("", asker), sender=asker.id)


def in_group(server: DiscordServer, group: str = "general", person: str = "ann") -> Target:
    """A person's message in a channel, and the place of its answer."""
    asker = server.person(person)
    message = asker.says("a question", group)
    chat = server.channel(group, asker)
    return Target(chat=chat, topic=message, kind="group", reply_to=message, sender=asker.id)
