"""The power goes off after events of a run, its batch and the batch's items, on whichever log; nobody must notice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.events import Aggregate, SubagentCompleted
from core.log.kinds import SUBAGENT
from tests.crash.place import Mode, cuts, place, settled
from tests.crash.test_subagents import SETTINGS, begin, logs
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.workers import Power

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

ITEMS = 3
CALL = {
    "description": "count",
    "subagent_type": "general-purpose",
    "prompts": [f"Do step-{n}." for n in range(ITEMS)],
}
SCRIPTS: dict[str, Script | Sequence[Turn]] = {
    "lead": [Turn(text="I delegate.", tool_calls=(ToolCall("tasks", CALL),)), Turn(text="All is done.")],
    "sub": Script((Turn(text=""), *(Turn(text=f"Did {n}.") for n in range(ITEMS))), count="marker"),
}


@pytest.mark.parametrize(("last", "mode"), cuts(range(5, 36, 3), "unheard", "later"))
async def test_power_cut(tmp_path: Path, last: int, mode: Mode) -> None:
    async with place(tmp_path, SCRIPTS, subagents={**SETTINGS, "batch": {"pool": 2}}) as here:
        await here.cut(Power(last, mode), begin)
        async with here.worker() as system:
            state = await settled(system)
            mine, _ = await logs(system)
            [batch] = {str(r.event.subagent) for r in mine if r.type == "subagent.started"}  # type: ignore[union-attr]
            its = [r.event async for r in system.log.read(Aggregate(SUBAGENT, batch))]
        calls = here.models.counts["sub"]
    [path] = (here.home / "users/ada/threads/t1/user-data/outputs").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["index"], row["result"], row["attempts"]) for row in rows] == [
        (n, f"Did {n}.", 1) for n in range(ITEMS)
    ]
    assert sorted(e.call_id for e in its if isinstance(e, SubagentCompleted)) == [f"{n}-1" for n in range(ITEMS)]
    assert [record.type for record in mine].count("subagent.completed") == 1
    assert "3/3 done" in next(m["content"] for m in state.messages if m["type"] == "tool")
    assert state.messages[-1]["content"] == "All is done."
    assert calls <= ITEMS + 2, "at most the answers that were not recorded are paid twice"
