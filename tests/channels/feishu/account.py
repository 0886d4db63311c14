"""An account that listens to the local server, and what it received."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from channels.feishu.platform import FeishuPlatform, connect
from core.chat.facts import ChatReceived
from tests.channels.feishu.server import FeishuServer


class Inbox:
    """Takes messages, and refuses the next ones with `errors`."""

    def __init__(self) -> None:
        self.received: list[ChatReceived] = []
        self.errors: list[Exception] = []
        self.hangs = 0
        """How many of the next messages are never taken."""
        self.delays: list[float] = []
        """Seconds that the next messages take."""
        self._changed = anyio.Event()

    async def receive(self, event: ChatReceived) -> None:
        if self.hangs:
            self.hangs -= 1
            self._changed.set()
            await anyio.sleep_forever()
        if self.errors:
            raise self.errors.pop(0)
        if self.delays:
            await anyio.sleep(self.delays.pop(0))
        self.received.append(event)
        self._changed.set()

    async def until(self, condition: Callable[[], Any]) -> None:
        with anyio.fail_after(120):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()

    async def one(self) -> ChatReceived:
        """Returns the only message."""
        await self.until(lambda: self.received)
        assert len(self.received) == 1
        return self.received[0]


class Watch:
    """The state of a connection as it was reported."""

    def __init__(self) -> None:
        self.connections = 0
        self.frames = 0
        self.ends: list[str] = []

    def connected(self) -> None:
        self.connections += 1

    def heard(self) -> None:
        self.frames += 1

    def disconnected(self, reason: str) -> None:
        self.ends.append(reason)


class Account:
    def __init__(self, server: FeishuServer, platform: FeishuPlatform) -> None:
        self.server = server
        self.platform = platform
        self.inbox = Inbox()
        self.watch = Watch()


@asynccontextmanager
async def account(server: FeishuServer) -> AsyncIterator[Account]:
    """An account that is not connected."""
    platform = connect(server.settings)
    try:
        yield Account(server, platform)
    finally:
        await platform.close()


@asynccontextmanager
async def listening(server: FeishuServer) -> AsyncIterator[Account]:
    """An account that is connected."""
    async with account(server) as running, anyio.create_task_group() as tasks:
        tasks.start_soon(running.platform.listen, running.inbox.receive, running.watch)
        await server.until(lambda: server.sockets)
        yield running
        tasks.cancel_scope.cancel()
