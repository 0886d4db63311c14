"""The server side of an account's tests: a bus, and a process that plans what is to be said."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import anyio
import pytest

from core.bus.endpoint import Endpoint
from core.chat.facts import ChatRouted, DeliveryFailed, DeliveryPlanned, DeliverySent, Target, conversation
from core.chat.state import Chats, Conversation
from core.events import Aggregate, Event, Record, RunRequested, RunStarted, ThreadCreated
from core.runtime import system
from core.runtime.system import System
from core.testing.stage import LEASE_SECONDS
from core.thread.state import ThreadState
from tests.support.chat_platform import ACCOUNT
from tests.support.nats import Nats

DEADLINE = 120.0
HERE = Target("C1")


class Side:
    """What servers do: they plan, and read what came of it."""

    def __init__(self, endpoint: Endpoint, server: System, home: Path) -> None:
        self.endpoint = endpoint
        self.system = server
        self.home = home
        self.chats = Chats(server.log)

    async def plan(
        self, plan: str, text: str, *, target: Target = HERE, purpose: str = "notice", **fields: object
    ) -> None:
        event = DeliveryPlanned(plan=plan, purpose=purpose, target=target, text=text, **fields)  # type: ignore[arg-type]
        await self.append(event, target=target)

    async def append(self, *events: Event, target: Target = HERE) -> list[Record]:
        identity = conversation(ACCOUNT, target.chat, target.topic).id
        _, records = await self.chats.decide(identity, lambda _: events, actor="chat")
        return records

    async def run(self, run: str, *events: Event) -> list[Record]:
        """Appends events of a run on the thread `t1`, which is made with the first."""

        def decide(state: ThreadState) -> Sequence[Event]:
            return events if state.seq else [ThreadCreated(user="ada"), *events]

        _, records = await self.system.threads.decide("t1", decide, actor="lead", run=run)
        return records

    async def begin(self, run: str, target: Target = HERE) -> int:
        """A person's message becomes a run, which a worker takes up. Returns the sequence of its start."""
        request = RunRequested(input={"messages": [{"type": "human", "id": f"human-{run}", "content": "hello"}]})
        await self.run(run, request)
        routed = ChatRouted(message=f"of-{run}", outcome="run", thread="t1", run_id=run, user="ada", target=target)
        await self.append(routed, target=target)
        return (await self.run(run, RunStarted(attempt=1, worker="w", lease=1)))[-1].seq

    async def state(self, target: Target = HERE) -> Conversation:
        return await self.chats.load(conversation(ACCOUNT, target.chat, target.topic).id)

    async def until(self, ready: Callable[[Conversation], object], target: Target = HERE) -> Conversation:
        """Returns the first state of a conversation that is as is waited for."""
        aggregate = conversation(ACCOUNT, target.chat, target.topic)
        with anyio.fail_after(DEADLINE), self.system.log.listen(aggregate) as listener:
            while not ready(state := await self.state(target)):
                await listener.take()
        return state

    async def done(self, target: Target = HERE) -> Conversation:
        """Returns the state in which no plan is open."""
        return await self.until(lambda state: not any(plan.open for plan in state.plans.values()), target)

    async def facts(self, target: Target = HERE) -> list[Record]:
        return [record async for record in self.system.log.read(conversation(ACCOUNT, target.chat, target.topic))]

    async def ends(self, target: Target = HERE) -> list[tuple[str, int] | tuple[str, int, str]]:
        """What was sent and what failed, in order."""
        ends: list[tuple[str, int] | tuple[str, int, str]] = []
        for record in await self.facts(target):
            match record.event:
                case DeliverySent(plan=plan, part=part):
                    ends.append((plan, part))
                case DeliveryFailed(plan=plan, part=part, fate=fate):
                    ends.append((plan, part, fate))
        return ends

    async def read(self, aggregate: Aggregate) -> list[Record]:
        return [record async for record in self.system.log.read(aggregate)]


@pytest.fixture
async def side(nats: Nats, tmp_path: Path) -> AsyncIterator[Side]:
    """On streams of its own."""
    endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with system.start(endpoint, tmp_path / "views.db", lease_seconds=LEASE_SECONDS, slots=4) as serving:
        yield Side(endpoint, serving, tmp_path)
