"""Custody of Slack's messages on a real bus: each is in its conversation's log once, whatever Slack delivers."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from core.chat.facts import ChatReceived, conversation
from core.chat.inbox import Inbox
from core.chat.state import Chats
from tests.channels.slack.server import SlackServer
from tests.channels.slack.support import Inbox as Report
from tests.channels.slack.support import platform_of
from tests.support.nats import Nats, bus_on, log_on

pytestmark = pytest.mark.anyio


async def test_one_message_three_times_over_a_restart_and_both_kinds_of_event(nats: Nats, tmp_path: Path) -> None:
    async with SlackServer(ack_seconds=0.5) as server, bus_on(nats, "slack") as bus, log_on(bus) as log:
        chats = Chats(log)
        inbox = Inbox("slack", chats, replies_are_topics=False)
        roots = []
        for _ in range(2):
            platform, report = platform_of(server), Report()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(platform.listen, inbox.receive, report)
                await report.until(connections=1)
                server.faults.duplicate = 2
                roots.append(await server.person("ann").says("hello", chat="general", mention=True))
                acked = len(server.acked)
                await server.until(lambda acked=acked: len(server.acked) >= acked + 4)
                server.event({**server.chat("general").messages[roots[0]], "channel": server.chat("general").id})
                await server.until(lambda acked=acked: len(server.acked) >= acked + 5)
                tasks.cancel_scope.cancel()
            await platform.close()
        for root in roots:
            here = conversation("slack", server.chat("general").id, root)
            records = [record async for record in log.read(here)]
            assert [type(record.event).__name__ for record in records] == ["ChatReceived"]
            assert records[0].labels == {"slack"}
            assert list((await chats.load(here.id)).heard) == [root]
        assert server.problems == []


async def test_messages_of_a_chat_stay_in_order(nats: Nats) -> None:
    async with SlackServer() as server, bus_on(nats, "order") as bus, log_on(bus) as log:
        inbox, report, platform = (
            Inbox("slack-work", Chats(log), replies_are_topics=False),
            Report(),
            platform_of(server),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(platform.listen, inbox.receive, report)
            await report.until(connections=1)
            for number in range(20):
                for person in ("ann", "bob", "eve"):
                    await server.person(person).says(str(number))
            await server.until(lambda: len(server.acked) == 60)
            tasks.cancel_scope.cancel()
        await platform.close()
        for person in ("ann", "bob", "eve"):
            here = conversation("slack-work", server.chat(f"@{person}").id)
            texts = [record.event.text async for record in log.read(here) if isinstance(record.event, ChatReceived)]
            assert texts == [str(number) for number in range(20)]
