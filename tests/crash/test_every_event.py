"""The power goes off after every single event of a run; another worker takes it up; nobody must notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from core.events import Message, RunCompleted
from core.runtime.system import System
from core.thread.fold import fold
from core.thread.state import ThreadState
from core.tools import Tool, ToolContext, tool
from tests.crash.place import Mode, Place, cuts, place
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import DEADLINE, Client, Power

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=5)]

BASH = "echo run >> count.txt; echo it ran"
COUNT = "/mnt/user-data/workspace/count.txt"
TURNS = [
    Turn(
        text="Let me see.",
        tool_calls=(
            ToolCall("sign", {"note": "first"}),
            ToolCall("bash", {"description": "count", "command": BASH}),
        ),
    ),
    Turn(tool_calls=(ToolCall("read_file", {"description": "look", "path": COUNT}),)),
    Turn(text="All is done."),
]
EVENTS = [
    *("thread.created", "run.requested", "run.started", "model.completed"),
    *("tool.requested", "tool.requested", "tool.completed", "tool.completed"),
    *("model.completed", "tool.requested", "tool.completed", "model.completed", "run.completed"),
]
FIRST = EVENTS.index("run.requested") + 1
POINTS = range(FIRST, len(EVENTS) + 1)
UNKNOWN = "the outcome of this sign call is unknown"


class Ledger:
    """The world outside."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sign(self, power: Power | None = None) -> Tool:
        @tool(effect="once")
        async def sign(ctx: ToolContext, note: str) -> str:
            """Sign the ledger."""
            if power is not None and power.off.is_set():
                await asyncio.sleep(DEADLINE)
            with self._path.open("a") as file:
                file.write(f"{ctx.call_id}\n")
            return f"signed {note}"

        return sign

    def signed(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


def counted(place: Place) -> list[str]:
    path = place.home / "users/ada/threads/t1/user-data/workspace/count.txt"
    return path.read_text().splitlines()


@pytest.fixture(name="place")
async def fixture_place(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path, {"script": TURNS}) as here:
        yield here


@pytest.fixture
def ledger(place: Place) -> Ledger:
    return Ledger(place.home / "ledger.txt")


async def begin(system: System) -> None:
    """What the person does: also on the dying worker, whose power may go off between the request and the wake-up."""
    client = Client(system)
    await client.ask(await client.thread(), "Go on.")


def plain(messages: list[Message]) -> list[Message]:
    """Messages without what differs between two runs: random ids, and the order of parallel outcomes."""
    named: list[tuple[int, str, Message]] = []
    group = 0
    for message in messages:
        group += message["type"] != "tool"
        fields = {key: value for key, value in message.items() if key != "id"}
        named.append((group, str(fields.get("tool_call_id", "")), fields))
    return [fields for _, _, fields in sorted(named, key=lambda entry: entry[:2])]


async def reference(place: Place, ledger: Ledger) -> tuple[list[str], list[Message]]:
    async with place.worker(tools=[ledger.sign()]) as system:
        client = Client(system)
        await begin(system)
        state = await client.until("t1", lambda state, record: isinstance(record.event, RunCompleted))
        return [record.type for record in await client.records("t1")], plain(state.messages)


EXPECTED: list[Message] = [
    {"type": "human", "content": "Go on."},
    {"type": "ai", "content": "Let me see."},
    {"type": "tool", "tool_call_id": "call_0_0", "name": "sign", "content": "signed first"},
    {"type": "tool", "tool_call_id": "call_0_1", "name": "bash", "content": "it ran"},
    {"type": "ai", "content": ""},
    {"type": "tool", "tool_call_id": "call_1_0", "name": "read_file", "content": "run"},
    {"type": "ai", "content": "All is done."},
]


async def test_without_a_crash(place: Place, ledger: Ledger) -> None:
    events, messages = await reference(place, ledger)
    assert sorted(events) == sorted(EVENTS)
    assert [subset(message, expected) for message, expected in zip(messages, EXPECTED, strict=True)] == EXPECTED
    assert len(ledger.signed()) == 1
    assert counted(place) == ["run"]
    assert place.models.answered("script") == [0, 1, 2]


def subset(message: Message, expected: Mapping[str, Any]) -> Message:
    return {key: message.get(key) for key in expected}


@pytest.mark.parametrize(("last", "mode"), [*cuts(POINTS, "unheard", "heard"), *cuts(POINTS, "later")])
async def test_power_cut(place: Place, ledger: Ledger, last: int, mode: Mode) -> None:
    power = Power(last, mode)
    await place.cut(power, begin, tools=[ledger.sign(power)])
    paid = Counter(place.models.answered("script"))
    signed = len(ledger.signed())

    async with place.worker(tools=[ledger.sign()]) as system:
        client = Client(system)
        left = await client.records("t1")
        await client.until("t1", lambda state, record: isinstance(record.event, RunCompleted))
        await client.idle()
        records = await client.records("t1")
    before, after = fold(left), fold(records)

    assert [record.type for record in records].count("run.completed") == 1
    assert after.status == "idle"
    hidden = [intent.event.name for run in before.runs.values() for intent in run.intents.values()]
    unknown = [UNKNOWN in str(message["content"]) for message in after.messages].count(True)
    assert unknown == hidden.count("sign")
    messages = [outcome_known(message) for message in plain(after.messages)]
    assert [subset(message, expected) for message, expected in zip(messages, EXPECTED, strict=True)] == EXPECTED

    assert len(ledger.signed()) <= 1
    assert signed == len(ledger.signed()) or "sign" not in requested(before), "repeated after its intent"
    assert len(ledger.signed()) == 1 or unknown, "never done, and the model was not told"
    assert counted(place) == ["run"]
    for position, times in Counter(place.models.answered("script")).items():
        recorded = position < answers(before)
        assert times - paid[position] == (0 if recorded else 1), f"answer {position} paid again"


def outcome_known(message: Message) -> Message:
    """The message as it would be if the crash had not hidden the outcome."""
    if UNKNOWN not in str(message["content"]):
        return message
    assert message.pop("status") == "error"
    return {**message, "content": "signed first"}


def answers(state: ThreadState) -> int:
    return sum(message["type"] == "ai" for message in state.messages)


def requested(state: ThreadState) -> set[str]:
    """Tools whose intent is recorded, with or without an outcome."""
    done = {str(message.get("name")) for message in state.messages if message["type"] == "tool"}
    return done | {intent.event.name for run in state.runs.values() for intent in run.intents.values()}
