"""The power goes off after every event of a run that is steered, asks a person, and goes on in another run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from langgraph.types import interrupt

from core.errors import Refused
from core.events import Message, Resume, RunRequested
from core.runtime.system import System
from core.tools import ToolContext, tool
from tests.crash.place import Mode, Place, cuts, place, ring, settled
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.workers import Client, Power

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

TURNS = (
    Turn(tool_calls=(ToolCall("book", {"city": "Rome"}), ToolCall("ring", {"city": "Oslo"}))),
    Turn(text="Booked."),
)
FIRST, EVENTS = 2, 17


@tool(effect="idempotent")
async def book(ctx: ToolContext, city: str) -> str:
    """Book."""
    return f"{city} in {interrupt(f'when to {city}?')}"


TOOLS = [book, ring]


@pytest.fixture(name="place")
async def fixture_place(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path, {"script": Script(TURNS, count="total")}) as here:
        yield here


async def person(system: System) -> None:
    """Asks, steers, answers the question; goes on wherever it was left."""
    client = Client(system)
    await client.thread()
    hello: Message = {"type": "human", "id": "hello", "content": "Go on."}
    hint: Message = {"type": "human", "id": "hint", "content": "By train."}
    with suppress(Refused):  # it is there already
        await system.intake.request_run("t1", "first", RunRequested(input={"messages": [hello]}))
    with suppress(Refused):  # it has paused, and keeps what it was told
        await system.intake.steer("t1", "first", hint)
    await client.ended("t1", "first")
    with suppress(Refused):
        await system.intake.request_run("t1", "second", RunRequested(resume=Resume(value="May")))
    await client.ended("t1", "second")


async def test_without_a_crash(place: Place) -> None:
    async with place.worker(tools=TOOLS) as system:
        await person(system)
        records = await Client(system).records("t1")
    assert [r.type for r in records].count("run.paused") == 1
    assert len(records) in (EVENTS - 1, EVENTS)  # the hint may be heard together with the answer's request


@pytest.mark.parametrize(("last", "mode"), cuts(range(FIRST, EVENTS - 1), "unheard", "later"))
async def test_power_cut(place: Place, last: int, mode: Mode) -> None:
    await place.cut(Power(last, mode), person, tools=TOOLS)
    async with place.worker(tools=TOOLS) as system:
        await person(system)
        state = await settled(system)
    assert [run.status for run in state.runs.values()] == ["success", "success"]
    texts = [str(m["content"]) for m in state.messages if m["type"] != "tool"]
    assert sorted(texts) == ["", "Booked.", "By train.", "Go on."] or sorted(texts)[-2:] == ["By train.", "Go on."]
    assert texts.count("By train.") == 1
    assert sorted(str(m["content"]) for m in state.messages if m["type"] == "tool") == ["Rome in May", "rang Oslo"]
    assert len(set(place.models.answered("script"))) == len([m for m in state.messages if m["type"] == "ai"])
