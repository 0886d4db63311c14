"""Private memory in a group, with the agent itself at work: it is in the prompts of its person's turns alone, if they
let it in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.chat.actor import Chat
from actors.chat.perform import INSIDE, OUTSIDE
from actors.chat.person import person_user
from actors.contracts.table import serving
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.chat.status import statuses
from core.config.load import ConfigSource
from core.memory.facts import Fact, FactRemembered, Memories
from core.runtime.system import System
from tests.channels.contract.seats import SEATS, All
from tests.support.model_server import ModelServer, Script, Turn
from tests.support.nats import eventually
from tests.support.workers import configure, worker

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=2)]


class Team:
    """A group with the bot. The agent answers each message with the same words."""

    def __init__(self, seat: All, system: System, models: ModelServer) -> None:
        self.seat, self.system, self.models = seat, system, models

    async def remembers(self, person: str, text: str) -> None:
        """Has something remembered of a person."""
        fact = FactRemembered(fact=Fact(id=f"fact_{person}", content=text))
        user = person_user(self.seat.name, self.seat.id_of(person))
        await Memories(self.system.log, actor="test").decide(user, lambda _: [fact])

    async def prompt(self, person: str, text: str, group: str = "team") -> str:
        """Has a person write. Returns all that the model reads with it."""
        await self.seat.writes(person, text, group)
        return await eventually(partial(self._request, text))

    async def _request(self, text: str) -> str:
        requests = [str(record.body["messages"]) for record in self.models.requests]
        return next((request for request in requests if text in request), "")

    async def sets(self, person: str, command: str, reply: str, group: str = "") -> None:
        """Has a person send a command, in a group or alone. Only they see the reply, where the platform can do that."""
        await self.seat.writes(person, command, group)
        begin = reply.partition(".")[0]

        async def seen() -> bool:
            texts = [*self.seat.shown(person, group), *self.seat.whispered(person, group)]
            return any(begin in text for text in texts)

        await eventually(seen)


@asynccontextmanager
async def team(seat: All, home: Path, **more: Any) -> AsyncIterator[Team]:
    """Yields a group. `more`: sections of the configuration."""
    scripts = {"one": Script(tuple(Turn(text="Noted.") for _ in range(20)), count="total")}
    about = {"enabled": True, "gather_seconds": 0}

    def chat(system: System, source: ConfigSource) -> Chat:
        return Chat(source, system.log, system.threads, system.chats, system.intake, home, system.standing)

    async with seat.server, ModelServer(scripts) as models, embedded.start(home) as server:
        channels = {seat.name: {**about, **seat.settings()}}
        config = configure(home / "config.yaml", models, channels=channels, memory={"enabled": False}, **more)
        endpoint = Endpoint(server.url, token=server.token)
        async with worker(endpoint, home, config, others=[chat]) as system, serving(seat.name, home, endpoint):

            async def is_connected() -> bool:
                [status] = await statuses(system.bus, {seat.name: True})
                return status.state == "connected"

            await eventually(is_connected)
            yield Team(seat, system, models)


@pytest.mark.parametrize("name", SEATS)
async def test_private_memory_is_in_the_turns_of_its_person_alone_and_only_if_they_let_it_in(
    tmp_path: Path, name: str
) -> None:
    async with team(SEATS[name](), tmp_path) as here:
        await here.prompt("ann", "hello from Ann", "")
        await here.remembers("ann", "She keeps otters.")
        await here.prompt("bob", "hello from Bob", "")
        await here.remembers("bob", "He keeps bees.")
        assert "otters" not in await here.prompt("ann", "what is the first?")
        await here.sets("ann", "/memory groups on", INSIDE, "team")
        mine = await here.prompt("ann", "what is the second?")
        assert "She keeps otters." in mine
        assert f"({here.seat.id_of('ann')}), who wrote the next message" in mine
        theirs = await here.prompt("bob", "what is the third?")
        assert ("otters" in theirs, "bees" in theirs) == (False, False)
        assert "otters" in await here.prompt("ann", "what is the fourth?")
        await here.sets("ann", "/memory groups off", OUTSIDE)
        assert "otters" not in await here.prompt("ann", "what is the fifth?")
