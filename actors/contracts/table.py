"""A table of a contract's test: a platform's local server, the account that talks to it as in its process, and the
actor on the other side of the log. A run's worker is the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio

from actors.chat.actor import Chat
from actors.contracts.seat import Seat
from actors.wiring import accounts
from core.actor import Actor, Context
from core.bus.endpoint import Endpoint
from core.chat.facts import ChatReceived, ChatRouted, conversation, key_of
from core.chat.state import Plan
from core.chat.status import State, Status, statuses
from core.config.load import Config, ConfigSource
from core.events import Aggregate, Event, Message, ModelCompleted, RunCompleted, RunStarted, ToolRequested, thread
from core.testing import Stage, acting
from core.thread.state import Run

DEADLINE = 120.0
S = TypeVar("S", bound=Seat, covariant=True)
T = TypeVar("T", bound=Seat)


class Received(Actor[ChatReceived]):
    """Notices the messages and presses of all conversations."""

    name = "received"
    ordered = True

    def __init__(self) -> None:
        self.events: list[ChatReceived] = []

    async def handle(self, event: ChatReceived, ctx: Context) -> None:
        self.events.append(event)


class Table(Generic[S]):
    """`home`: the folder of the server. `received`: all messages and presses. `settings`: those of the account."""

    def __init__(
        self, seat: S, stage: Stage, home: Path, received: Sequence[ChatReceived], settings: Mapping[str, Any]
    ) -> None:
        self.seat = seat
        self.stage = stage
        self.home = home
        self.received = received
        self._source = ConfigSource(home / "config.yaml")
        self._settings = settings

    @contextmanager
    def set(self, **settings: Any) -> Iterator[None]:
        """Changes settings of the account for as long as the block lasts."""
        configure(self.home, self.seat, {**self._settings, **settings})
        try:
            yield
        finally:
            self.configure()

    def configure(self, **settings: Any) -> None:
        """Changes settings of the account."""
        self._settings = {**self._settings, **settings}
        configure(self.home, self.seat, self._settings)

    async def status(self) -> Status:
        """Returns what people are told of the account, as by `sika channels`."""
        [status] = await statuses(self.stage.system.bus, {self.seat.name: True})
        return status

    async def becomes(self, state: State) -> Status:
        """Waits for a state of the account."""
        with anyio.fail_after(DEADLINE):
            while (status := await self.status()).state != state:  # noqa: ASYNC110 (no event tells of it)
                await anyio.sleep(0.05)
        return status

    @property
    def config(self) -> Config:
        return self._source.current()

    def place(self, event: ChatReceived) -> Aggregate:
        """Returns the conversation of a message."""
        return conversation(self.seat.name, event.target.chat, event.target.topic)

    async def hears(self, person: str, text: str, group: str = "", **more: Any) -> ChatReceived:
        """Has a person write, and returns the message as it was received."""
        before = len(self.received)
        await self.seat.writes(person, text, group, **more)
        sender = self.seat.id_of(person)
        await self.until(lambda: any(event.sender == sender for event in self.received[before:]))
        return next(event for event in self.received[before:] if event.sender == sender)

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Waits until something is so. Returns it."""
        with anyio.fail_after(DEADLINE):
            while not (value := condition()):  # noqa: ASYNC110 (no event tells of it)
                await anyio.sleep(0.005)
        return value

    async def shows(self, text: str, person: str, group: str = "") -> str:
        """Waits until the bot has said something that has a text. Returns all of it."""
        return str(await self.until(lambda: next((s for s in self.seat.shown(person, group) if text in s), None)))

    async def delivered(self, event: ChatReceived, plan: str) -> Plan:
        """Waits until something is said in the conversation of a message. Returns the plan."""
        place = self.place(event)
        with anyio.fail_after(DEADLINE):
            while True:
                known = (await self.stage.system.chats.load(place.id)).plans.get(plan)
                if known is not None and not known.open:
                    return known
                await anyio.sleep(0.005)

    # ── the worker ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def routed(self, event: ChatReceived) -> ChatRouted:
        """Waits until it is decided what becomes of a message."""
        place = self.place(event)
        with anyio.fail_after(DEADLINE):
            while True:
                async for record in self.stage.system.log.read(place):
                    if isinstance(record.event, ChatRouted) and record.event.message == key_of(event):
                        return record.event
                await anyio.sleep(0.005)

    async def run(self, event: ChatReceived) -> Run:
        routed = await self.routed(event)
        return (await self.stage.system.threads.load(routed.thread)).runs[routed.run_id]

    async def message(self, event: ChatReceived) -> Message:
        """Returns the message of the run that a message became."""
        messages: list[Message] = ((await self.run(event)).request.input or {})["messages"]
        assert len(messages) == 1
        return messages[0]

    async def works(self, event: ChatReceived) -> ChatRouted:
        """Begins with the run that a message became."""
        routed = await self.routed(event)
        await self.does(routed, RunStarted(attempt=1, worker="test", lease=1))
        return routed

    async def does(self, routed: ChatRouted, *events: Event) -> None:
        await self.stage.given(*events, run=routed.run_id, aggregate=thread(routed.thread))

    async def says(self, routed: ChatRouted, text: str) -> None:
        """Says something in a run that goes on."""
        said = ModelCompleted(message=ai(f"s-{routed.run_id}", text, [call("c")]))
        await self.does(routed, said, ToolRequested(call_id="c", name="bash", effect="once"))

    async def answers(self, event: ChatReceived, text: str, *before: Event) -> ChatRouted:
        """Answers a message."""
        routed = await self.works(event)
        if before:
            await self.does(routed, *before)
        await self.ends(routed, text)
        return routed

    async def ends(self, routed: ChatRouted, text: str) -> None:
        """Ends a run that began with an answer."""
        await self.does(routed, ModelCompleted(message=ai(f"a-{routed.run_id}", text)), RunCompleted())

    async def until_ended(self, event: ChatReceived) -> None:
        """Waits until the run that a message became is over."""
        with anyio.fail_after(DEADLINE):
            while (await self.run(event)).open:  # noqa: ASYNC110 (no event tells of it)
                await anyio.sleep(0.005)

    async def cancelled(self, event: ChatReceived) -> None:
        """Waits until the run that a message became is to be cancelled."""
        with anyio.fail_after(DEADLINE):
            while (await self.run(event)).cancel is None:  # noqa: ASYNC110 (no event tells of it)
                await anyio.sleep(0.005)


@asynccontextmanager
async def table(seat: T, home: Path, **settings: Any) -> AsyncIterator[Table[T]]:
    """Yields a table. `home`: an empty folder. `settings`: of the account, besides the platform's own; without them,
    each message is answered by itself.
    """
    async with seat.server:
        about = {"enabled": True, "gather_seconds": 0, **seat.settings(), **settings}
        configure(home, seat, about)
        source, received = ConfigSource(home / "config.yaml"), Received()

        def chat(system: Any) -> Chat:
            return Chat(source, system.log, system.threads, system.chats, system.intake, home, system.standing)

        async with acting(chat, received, home=home) as stage, serving(seat.name, home, stage.endpoint):
            here = Table(seat, stage, home, received.events, about)
            await here.becomes("connected")
            yield here


class Current(ConfigSource):
    """A configuration whose changes count at once, also where it is watched."""

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        yield


@asynccontextmanager
async def serving(name: str, home: Path, endpoint: Endpoint) -> AsyncIterator[None]:
    """Serves an account as its process does, for as long as the block lasts."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(accounts.serve, name, home, Current(home / "config.yaml"), endpoint))
        yield
        tasks.cancel_scope.cancel()


def configure(home: Path, seat: Seat, settings: Mapping[str, Any]) -> None:
    """Writes the configuration of the account."""
    (home / "config.yaml").write_text(json.dumps({"channels": {seat.name: settings}}))


def ai(identity: str, text: str, calls: Sequence[Message] = ()) -> Message:
    """Returns a message of a model."""
    message: Message = {"type": "ai", "id": identity, "content": text}
    return {**message, "tool_calls": list(calls)} if calls else message


def call(identity: str, name: str = "bash", **args: object) -> Message:
    """Returns a call of a tool in such a message."""
    return {"name": name, "args": args, "id": identity, "type": "tool_call"}
