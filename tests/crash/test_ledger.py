"""The power goes off after every event of a run whose day has a budget: the ledgers have what it used, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.events import Aggregate
from core.runs.ledger import EVERYBODY, KIND, KIND_OF_ALL, Ledger, fold
from core.runtime.system import System
from core.thread.usage import by_model
from tests.crash.place import Mode, cuts, place
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import Client, Power

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=5)]

TURNS = [Turn(tool_calls=(ToolCall("ls", {"description": "look", "path": "/mnt/user-data"}),)), Turn(text="Done.")]
PLENTY = {"budgets": {name: {"tokens": 10**9} for name in ("user_per_day", "day")}}
EVENTS = 15
"""Those of the run, the three parts of its setup, two posts after each answer, and the thread's first."""


async def person(system: System) -> None:
    client = Client(system)
    await client.ask(await client.thread(), "Go on.")


async def ledger(system: System, kind: str, identity: str) -> Ledger:
    return fold([record async for record in system.log.read(Aggregate(kind, identity))], Ledger())


async def assert_counted(system: System) -> None:
    state = await Client(system).state("t1")
    [run] = state.runs.values()
    used, day = by_model(state, run), run.created_at[:10]
    assert run.status == "success"
    assert sum(tokens.calls for tokens in used.values()) == 2
    assert (await ledger(system, KIND, state.user)).day(day).entries == {run.id: used}
    assert (await ledger(system, KIND_OF_ALL, EVERYBODY)).on(day) == used


@pytest.mark.parametrize(("last", "mode"), cuts(range(2, EVENTS + 1), "unheard", "heard", "later"))
async def test_power_cut(tmp_path: Path, last: int, mode: Mode) -> None:
    async with place(tmp_path, {"script": TURNS}, **PLENTY) as here:
        await here.cut(Power(last, mode), person)
        async with here.worker() as system:
            client = Client(system)
            await client.until("t1", lambda state, _: bool(state.runs) and not state.active and not state.queued)
            await client.idle()
            await assert_counted(system)


async def test_without_a_crash(tmp_path: Path) -> None:
    async with place(tmp_path, {"script": TURNS}, **PLENTY) as here, here.worker() as system:
        appended = _counted(system)
        client = Client(system)
        await client.ended(await client.thread(), await client.ask("t1", "Go on."))
        await client.idle()
        await assert_counted(system)
        assert len(appended) == EVENTS


def _counted(system: System) -> list[Any]:
    """Every append of the process from here on."""
    append, appended = system.log.append, list[Any]()

    async def counting(*arguments: Any, **options: Any) -> Any:
        appended.append(arguments)
        return await append(*arguments, **options)

    system.log.append = counting  # type: ignore[method-assign]
    return appended
