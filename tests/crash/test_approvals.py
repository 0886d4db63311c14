"""The power goes off after every event of a run that waits for an approval, and goes on with it in another run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from core.errors import Refused
from core.events import ApprovalRequested, ApprovalResolved, Json, Message, Resume, RunRequested
from core.runtime.system import System
from core.tools import ToolContext, tool
from tests.crash.place import Mode, Place, cuts, place, ring, settled
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.workers import Client, Power

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=5)]

TURNS = (
    Turn(tool_calls=(ToolCall("mail", {"to": "eve"}), ToolCall("ring", {"city": "Oslo"}))),
    Turn(text="Done."),
)
EDIT: Json = {"decision": "edit", "args": {"to": "al"}}
REJECT: Json = {"decision": "reject", "message": "No."}
FIRST, EVENTS = 2, 15
RESUMED = 9
"""The event that asks for the second run."""
CASES = [(last, mode, EDIT) for last, mode in cuts(range(FIRST, EVENTS), "unheard", "later")]
CASES += [(last, mode, REJECT) for last, mode in cuts(range(RESUMED, EVENTS - 1), "later", "unheard")]


@tool(effect="idempotent")
async def mail(ctx: ToolContext, to: str) -> str:
    """Mail."""
    return f"mailed {to}"


TOOLS = [mail, ring]


@pytest.fixture(name="place")
async def fixture_place(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path, {"script": Script(TURNS, count="total")}, approvals=[{"tool": "mail"}]) as here:
        yield here


async def person(system: System, answer: Json) -> None:
    """Asks, and decides; goes on wherever it was left."""
    client = Client(system)
    await client.thread()
    hello: Message = {"type": "human", "id": "hello", "content": "Go on."}
    with suppress(Refused):  # it is there already
        await system.intake.request_run("t1", "first", RunRequested(input={"messages": [hello]}))
    await client.ended("t1", "first")
    with suppress(Refused):
        await system.intake.request_run("t1", "second", RunRequested(resume=Resume(value=answer)))
    await client.ended("t1", "second")


@pytest.mark.parametrize(("answer", "events"), [(EDIT, EVENTS), (REJECT, EVENTS - 1)], ids=["edit", "reject"])
async def test_without_a_crash(place: Place, answer: Json, events: int) -> None:
    async with place.worker(tools=TOOLS) as system:
        await person(system, answer)
        records = await Client(system).records("t1")
    assert len(records) == events
    assert [record.type for record in records][RESUMED - 2 : RESUMED] == ["run.paused", "run.requested"]


@pytest.mark.parametrize(
    ("last", "mode", "answer"), CASES, ids=[f"{last}-{mode}-{answer['decision']}" for last, mode, answer in CASES]
)
async def test_power_cut(place: Place, last: int, mode: Mode, answer: Json) -> None:
    await place.cut(Power(last, mode), lambda system: person(system, answer), tools=TOOLS)
    async with place.worker(tools=TOOLS) as system:
        await person(system, answer)
        state = await settled(system)
        facts = [await Client(system).records("t1", kind) for kind in (ApprovalRequested, ApprovalResolved)]
    assert [run.status for run in state.runs.values()] == ["success", "success"]
    assert [len(records) for records in facts] == [1, 1]
    results = sorted(str(message["content"]) for message in state.messages if message["type"] == "tool")
    mailed = "mailed al" if answer is EDIT else "Error: the user (ada) rejected this call of mail"
    assert len(results) == 2
    assert results[1] == "rang Oslo"
    assert results[0].startswith(mailed)
    assert state.messages[-1]["content"] == "Done."
    assert len(set(place.models.answered("script"))) == 2
