"""An account of Telegram that listens to a local server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from channels.telegram.platform import Telegram, Timing, connect
from core.chat.facts import ChatReceived, Target
from tests.channels.telegram.server import TelegramServer

QUICK = Timing(poll=20, grace=20.0, first_pause=0.01, longest_pause=0.05, quiet=0.0, acknowledgement=5.0)
DEADLINE = 120.0


async def until(condition: Callable[[], Any]) -> None:
    """Waits until something is so."""
    with anyio.fail_after(DEADLINE):
        while not condition():  # noqa: ASYNC110 (no event tells of it)
            await anyio.sleep(0.005)


class Account:
    """A connected account: what it received, and what it said of its connection. `refusals`: raised by the next calls
    of `receive`."""

    def __init__(self, platform: Telegram) -> None:
        self.platform = platform
        self.received: list[ChatReceived] = []
        self.reports: list[str] = []
        self.refusals: list[Exception] = []
        self.heard_frames = 0

    async def receive(self, event: ChatReceived) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.received.append(event)

    def connected(self) -> None:
        self.reports.append("connected")

    def heard(self) -> None:
        self.heard_frames += 1

    def disconnected(self, reason: str) -> None:
        self.reports.append(f"disconnected: {reason}")

    async def messages(self, count: int) -> list[ChatReceived]:
        """Waits for as many messages."""
        await until(lambda: len(self.received) >= count)
        return self.received

    async def has(self, text: str) -> None:
        """Waits for a message with a text."""
        await until(lambda: any(message.text == text for message in self.received))

    async def message(self) -> ChatReceived:
        """Waits for a message, and forgets it."""
        await self.messages(1)
        return self.received.pop(0)


def account_of(server: TelegramServer, timing: Timing = QUICK) -> Account:
    platform = connect({"bot_token": server.token, "base_url": server.url}, timing)
    assert isinstance(platform, Telegram)
    return Account(platform)


@asynccontextmanager
async def listening(server: TelegramServer, timing: Timing = QUICK) -> AsyncIterator[Account]:
    account = account_of(server, timing)
    try:
        async with listening_with(account):
            yield account
    finally:
        await account.platform.close()


@asynccontextmanager
async def listening_with(account: Account) -> AsyncIterator[None]:
    """Has an account listen, which has not been closed."""
    account.reports.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(account.platform.listen, account.receive, account)
        await until(lambda: account.reports)
        yield
        group.cancel_scope.cancel()


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


@pytest.fixture
async def account(server: TelegramServer) -> AsyncIterator[Account]:
    async with listening(server) as account:
        yield account


@pytest.fixture
async def platform(server: TelegramServer) -> AsyncIterator[Telegram]:
    """One that does not listen."""
    account = account_of(server)
    yield account.platform
    await account.platform.close()


@pytest.fixture
def ann(server: TelegramServer) -> Target:
    """The private chat of a person."""
    person = server.person("ann")
    return Target(chat=str(person.chat), sender=str(person.id))


@pytest.fixture
def team(server: TelegramServer) -> Target:
    """A group."""
    return Target(chat=str(server.group()), kind="group")
