"""Messages from DingTalk on a real bus: in the log once, in order, whatever dies in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from channels.dingtalk.platform import DingTalk
from core.chat.facts import ChatReceived, conversation
from core.chat.inbox import Inbox
from core.chat.state import Chats
from core.log.store import EventLog
from tests.channels.dingtalk.server import DingTalkServer
from tests.support.nats import DEADLINE, bus_on, log_on, own

pytestmark = pytest.mark.anyio


class Silent:
    def connected(self) -> None: ...

    def heard(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...


@asynccontextmanager
async def taking(server: DingTalkServer, log: EventLog) -> AsyncIterator[None]:
    """An account's process as far as messages go."""
    inbox = Inbox("dingtalk", Chats(log), replies_are_topics=False)
    platform = DingTalk(server.settings, pause=0.02)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(platform.listen, inbox.receive, Silent())
        await server.until(lambda: bool(server.sockets))
        yield
        tasks.cancel_scope.cancel()
    await platform.close()


async def texts(log: EventLog, chat: str) -> list[str]:
    records = [record async for record in log.read(conversation("dingtalk", chat))]
    return [record.event.text for record in records if isinstance(record.event, ChatReceived)]


async def test_messages_survive_dead_buses_sockets_and_processes(tmp_path: Path) -> None:
    async with own(tmp_path) as nats, bus_on(nats) as bus, log_on(bus) as log, DingTalkServer() as server:
        server.faults.twice = True
        people = [server.person(f"p{n}") for n in range(10)]
        async with taking(server, log):
            for person in people:
                await person.says("1")
            await nats.kill()
            for person in people:
                await person.says("2")
            server.faults.cut()
            for person in people:
                await person.says("3")  # to nobody: the socket is gone
        # The process has ended with messages that are neither in the log nor acknowledged.
        assert server.waits() >= 20
        await nats.restart()
        async with taking(server, log):
            await server.until(lambda: not server.waits(), DEADLINE)
            for person in people:
                await person.says("4")
            await server.until(lambda: not server.waits(), DEADLINE)
        for person in people:
            assert await texts(log, person.staff) == ["1", "2", "3", "4"]
        assert server.peak == 1
