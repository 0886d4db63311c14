"""The power goes off after every event of a run and of its three subagents, on whichever log; nobody must notice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from actors.wiring import compose
from core.events import Aggregate, Message, Record, RunCompleted
from core.log.kinds import SUBAGENT
from core.runtime.system import System
from core.thread.fold import fold
from tests.crash.place import Mode, Place, cuts, place, settled
from tests.crash.test_every_event import plain
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.replays import replay
from tests.support.workers import Client, Power

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=9)]

SETTINGS = {"agents": {"general-purpose": {"model": "sub"}}}
NAMES = ["a", "b", "c"]
"""The subagents, each with a file of its own to write to."""


def task(number: int) -> ToolCall:
    """The model answers by the markers: the prompt's, and then that of its own first answer."""
    prompt = f"Count step-{2 * number}."
    return ToolCall("task", {"description": "count", "prompt": prompt, "subagent_type": "general-purpose"})


def counting(number: int, name: str) -> tuple[Turn, Turn]:
    command = f"echo run >> {name}.txt; echo {name} ran"
    bash = ToolCall("bash", {"description": "count", "command": command})
    return Turn(text=f"I count: step-{2 * number + 1}.", tool_calls=(bash,)), Turn(text=f"Counted {name}.")


LEAD = Turn(text="I delegate.", tool_calls=tuple(map(task, range(len(NAMES))))), Turn(text="All is done.")
SUB = Turn(text="nobody asks"), *(turn for number, name in enumerate(NAMES) for turn in counting(number, name))
SCRIPTS = {"lead": Script(LEAD), "sub": Script(SUB, count="marker")}

OF_THREAD = Counter(
    ["thread.created", "run.requested", "run.completed"]
    + 2 * ["model.completed", *len(NAMES) * ["subagent.progressed"]]
    + len(NAMES) * ["tool.requested", "subagent.started", "subagent.completed", "tool.completed"]
)
OF_SUBAGENT = [
    *("thread.created", "run.requested", "model.completed", "tool.requested", "tool.completed"),
    *("model.completed", "run.completed"),
]
OF_ATTEMPTS = {"run.started", "run.suspended"}
RUNS = 1 + len(NAMES)
EVENTS = OF_THREAD.total() + len(NAMES) * len(OF_SUBAGENT) + RUNS
"""And the start of each run."""
ANSWERS = [*("Go on.", "I delegate."), *(f"Task Succeeded. Result: Counted {name}." for name in NAMES), "All is done."]


async def begin(system: System) -> None:
    client = Client(system)
    await client.ask(await client.thread(), "Go on.", context={"subagent_enabled": True, "model_name": "lead"})


async def logs(system: System) -> tuple[list[Record], list[list[Record]]]:
    """The thread's events, and those of each subagent, in the order of their starts."""
    mine = await Client(system).records("t1")
    names = [str(r.event.subagent) for r in mine if r.type == "subagent.started"]  # type: ignore[union-attr]
    aggregates = [Aggregate(SUBAGENT, name) for name in dict.fromkeys(names)]
    return mine, [[record async for record in system.log.read(aggregate)] for aggregate in aggregates]


def types(records: list[Record]) -> list[str]:
    return [record.type for record in records if record.type not in OF_ATTEMPTS]


def contents(messages: list[Message]) -> list[str]:
    return [str(message["content"]).strip() for message in plain(messages)]


async def check(here: Place, system: System) -> None:
    """Everything is as if nothing had happened, and can be executed again."""
    mine, theirs = await logs(system)
    assert sorted(contents(fold(mine).messages)) == sorted(ANSWERS)
    assert Counter(types(mine)) == OF_THREAD, "\n".join(f"{r.seq} {r.type} {r.head.cause}" for r in mine)
    assert [types(records) for records in theirs] == [OF_SUBAGENT] * len(NAMES)
    assert [message["type"] for message in fold(mine).messages] == ["human", "ai", *len(NAMES) * ["tool"], "ai"]
    its = sorted((contents(fold(records).messages) for records in theirs), key=lambda texts: texts[-1])
    assert its == [
        [f"Count step-{2 * number}.", f"I count: step-{2 * number + 1}.", f"{name} ran", f"Counted {name}."]
        for number, name in enumerate(NAMES)
    ]
    workspace = here.home / "users/ada/threads/t1/user-data/workspace"
    assert [(workspace / f"{name}.txt").read_text() for name in NAMES] == ["run\n"] * len(NAMES)
    report = await replay(system, "t1", None, compose.Options(here.home, here.config))
    assert (report.divergence, report.runs) == (None, RUNS)


async def test_without_a_crash(tmp_path: Path) -> None:
    async with place(tmp_path, SCRIPTS, subagents=SETTINGS) as here, here.worker() as system:
        await begin(system)
        await Client(system).until("t1", lambda state, record: isinstance(record.event, RunCompleted))
        await check(here, system)
        mine, theirs = await logs(system)
        assert sum(map(len, [mine, *theirs])) == EVENTS


@pytest.mark.parametrize(("last", "mode"), cuts(range(2, EVENTS), "unheard", "heard", "later"))
async def test_power_cut(tmp_path: Path, last: int, mode: Mode) -> None:
    async with place(tmp_path, SCRIPTS, subagents=SETTINGS) as here:
        await here.cut(Power(last, mode), begin)
        async with here.worker() as system:
            await settled(system)
            await check(here, system)
        calls = {model: Counter(here.models.answered(model)) for model in SCRIPTS}
    assert [sorted(calls["lead"]), sorted(calls["sub"])] == [[0, 1], list(range(1, len(SUB)))]
    assert max(max(times.values()) for times in calls.values()) <= 2
    again = sum(times.total() - len(times) for times in calls.values())
    assert again <= len(NAMES), "at most the answers that were not recorded, of all at once, are paid twice"
