"""The power goes off after every event of a run and of its subagents, on whichever log; nobody must notice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from core.events import Aggregate, Message, Record, RunCompleted
from core.runtime.system import System
from core.thread.threads import SUBAGENT
from tests.crash.place import Place, place, settled
from tests.crash.test_every_event import outcome_known, plain
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import Client, Power

pytestmark = pytest.mark.anyio

BASH = "echo run >> count.txt; echo it ran"
TASK = {"description": "count", "prompt": "Count.", "subagent_type": "general-purpose"}
SCRIPTS = {
    "lead": [Turn(text="I delegate.", tool_calls=(ToolCall("task", TASK),)), Turn(text="All is done.")],
    "sub": [
        Turn(text="Counting.", tool_calls=(ToolCall("bash", {"description": "count", "command": BASH}),)),
        Turn(text="One."),
    ],
}
SETTINGS = {"agents": {"general-purpose": {"model": "sub"}}}
THREAD = [
    *("thread.created", "run.requested", "run.started", "model.completed", "tool.requested"),
    *("subagent.started", "subagent.progressed", "subagent.progressed", "subagent.completed"),
    *("tool.completed", "model.completed", "run.completed"),
]
SUB = [
    *("thread.created", "run.requested", "run.started", "model.completed", "tool.requested", "tool.completed"),
    *("model.completed", "run.completed"),
]
MODES: list[Literal["unheard", "heard", "later"]] = ["unheard", "heard", "later"]
SAID = ["Go on.", "I delegate.", "Task Succeeded. Result: One.", "All is done."]
OF_ATTEMPTS = {"run.started", "run.suspended"}


async def begin(system: System) -> None:
    client = Client(system)
    await client.ask(await client.thread(), "Go on.", context={"subagent_enabled": True, "model_name": "lead"})


async def logs(system: System) -> tuple[list[Record], list[Record]]:
    """The thread's events, and those of its only subagent."""
    mine = await Client(system).records("t1")
    [name] = {str(r.event.subagent) for r in mine if r.type == "subagent.started"}  # type: ignore[union-attr]
    return mine, [record async for record in system.log.read(Aggregate(SUBAGENT, name))]


def types(records: list[Record]) -> list[str]:
    return [record.type for record in records if record.type not in OF_ATTEMPTS]


def said(messages: list[Message]) -> list[str]:
    return [str(message["content"]) for message in messages]


async def test_without_a_crash(tmp_path: Path) -> None:
    async with place(tmp_path, SCRIPTS, subagents=SETTINGS) as here, here.worker() as system:
        await begin(system)
        state = await Client(system).until("t1", lambda state, record: isinstance(record.event, RunCompleted))
        mine, its = await logs(system)
    assert [record.type for record in mine] == THREAD
    assert [record.type for record in its] == SUB
    assert said(state.messages) == SAID


@pytest.mark.parametrize("last", range(2, len(THREAD) + len(SUB)))
async def test_power_cut(tmp_path: Path, last: int) -> None:
    async with place(tmp_path, SCRIPTS, subagents=SETTINGS) as here:
        await check(here, Power(last, MODES[last % 3]))


async def check(here: Place, power: Power) -> None:
    await here.cut(power, begin)
    async with here.worker() as system:
        state = await settled(system)
        mine, its = await logs(system)
        subagent = await system.subagents.threads.load(its[0].aggregate.id)
    assert types(mine) == [kind for kind in THREAD if kind not in OF_ATTEMPTS]
    assert types(its) == [kind for kind in SUB if kind not in OF_ATTEMPTS]
    assert said([outcome_known(message) for message in plain(state.messages)]) == SAID
    assert [message["type"] for message in subagent.messages] == ["human", "ai", "tool", "ai"]
    assert (here.home / "users/ada/threads/t1/user-data/workspace/count.txt").read_text() == "run\n"
    for model in SCRIPTS:
        times = Counter(here.models.answered(model))
        assert sorted(times) == [0, 1]
        assert max(times.values()) <= 2
        assert times.total() <= 3, "at most the answer that was not recorded is paid twice"
