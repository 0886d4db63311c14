"""The power goes off while a person connects: they are connected, and what was remembered of them is moved once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.chat import router
from actors.chat.actor import Chat
from actors.chat.person import person_user
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.chat.connections import Connections
from core.chat.facts import ChatReceived, ChatRouted, DeliveryPlanned, Target, conversation
from core.chat.inbox import Inbox
from core.config.load import ConfigSource
from core.memory.facts import Fact, FactRemembered, Memories, memory_id
from core.runtime.system import System
from tests.crash.place import Mode, cuts
from tests.support.model_server import ModelServer
from tests.support.nats import eventually
from tests.support.workers import DEADLINE, Power, configure, worker

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=2)]
PLACE = conversation("office", "C1")
RECEIVED, DONE = 1, 5
"""Appends: the message; the connection, the facts there, the facts here; what became of the message."""
KNOWN = ("Likes tea.", "Lives in Rome.")


@asynccontextmanager
async def serving(home: Path, endpoint: Endpoint, config: Path) -> AsyncIterator[System]:
    def make(running: System, source: ConfigSource) -> Chat:
        return Chat(source, running.log, running.threads, running.chats, running.intake, home, running.standing)

    async with worker(endpoint, home, config, others=[make]) as running:
        yield running


async def writes(running: System, text: str) -> None:
    event = ChatReceived(message="m1", target=Target("C1"), sender="U1", text=text)
    await Inbox("office", running.chats, replies_are_topics=False).receive(event)


@pytest.mark.parametrize(("last", "mode"), cuts(range(RECEIVED + 1, DONE + 1), "unheard", "heard"))
async def test_power_cut(tmp_path: Path, last: int, mode: Mode) -> None:
    office = {"office": {"enabled": True, "use": "tests.actors.chat.office", "gather_seconds": 0}}
    offered = {"enabled": True, "providers": {"office": {"enabled": True}}}
    person = person_user("office", "U1")
    async with ModelServer({}) as models, embedded.start(tmp_path) as server:
        endpoint = Endpoint(server.url, token=server.token)
        config = configure(tmp_path / "config.yaml", models, channels=office, channel_connections=offered)
        async with serving(tmp_path, endpoint, config) as running:
            facts = [FactRemembered(fact=Fact(id=f"f{n}", content=text)) for n, text in enumerate(KNOWN)]
            await Memories(running.log, actor="test").decide(memory_id(person, None), lambda _: facts)
            code = await Connections(running.log, actor="http").offer("ada", "office")
            power = Power(last, mode)
            power.wire(running)
            writing = asyncio.ensure_future(writes(running, f"/connect {code} yes"))
            async with asyncio.timeout(DEADLINE):
                await power.off.wait()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        async with serving(tmp_path, endpoint, config) as running:

            async def routed() -> list[ChatRouted]:
                events = [record.event async for record in running.log.read(PLACE)]
                return [event for event in events if isinstance(event, ChatRouted)]

            [outcome] = await eventually(routed)
            assert (outcome.outcome, outcome.user) == ("command", "ada")
            said = [record.event async for record in running.log.read(PLACE)]
            assert [event.text for event in said if isinstance(event, DeliveryPlanned)] == [router.CONNECTED]
            memories, state = Memories(running.log, actor="test"), await Connections(running.log, actor="test").state()
            assert [(each.user, each.external) for each in state.bound.values()] == [("ada", "U1")]
            assert sorted(fact.content for fact in (await memories.of("ada")).facts.values()) == sorted(KNOWN)
            assert not (await memories.of(person)).facts
