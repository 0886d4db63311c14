"""A run that wrote files to the outputs and showed none is asked for them before it ends."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from actors.agent.policies.interaction.delivery import Delivery
from core.events import Decision, Json, ModelCompleted, ToolCompleted
from tests.actors.agent.turns import Asked, model_call, turn
from tests.support.records import ai, call, human

pytestmark = pytest.mark.anyio

REPORT = "/mnt/user-data/outputs/report.md"
WRITE = call("c1", "write_file", path=REPORT, content="x")
SHOW = call("c2", "present_files", filepaths=[REPORT])
OK, ERROR = ("done", "success"), ("Error: no", "error")


async def ended(*calls: tuple[Json, tuple[str, str] | None], values: Json | None = None) -> list[Decision]:
    """Returns the decisions about the end of a run that made calls with these results; None: it has none."""
    on = turn([human("h")], values=values)
    for number, (made, result) in enumerate(calls):
        await on.journal.model_completed(ModelCompleted(message=ai(f"a{number}", "", [made])))
        if result is not None:
            message = {"type": "tool", "id": f"t{number}", "tool_call_id": made["id"], "name": made["name"]}
            message |= {"content": result[0], "status": result[1]}
            await on.journal.tool_completed(ToolCompleted(call_id=made["id"], message=message))
    await model_call(Delivery(), on, Asked(AIMessage("Finished!", id="end")))
    return on.decided()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (WRITE, "done"),
        (call("c1", "str_replace", path=REPORT), "done"),
        (call("c1", "edit_files", edits=[{"path": REPORT}]), "done"),
        (call("c1", command=f"pandoc x -o {REPORT}"), ""),
        (call("c1", command="python make.py"), f"wrote {REPORT}"),
        (call("c1", "task", prompt="Write."), "It is in outputs/report.md."),
    ],
    ids=["file", "replaced", "edited", "named in a command", "named by a command", "by a subagent"],
)
async def test_a_file_that_was_not_shown_is_asked_for(written: Json, text: str) -> None:
    [decision] = await ended((written, (text, "success")))
    assert (decision.policy, decision.action, decision.again) == ("delivery", "continued", True)
    assert decision.text == "1 file was not shown"
    assert decision.note is not None
    assert f"- {REPORT}\n" in decision.note["content"]


@pytest.mark.parametrize(
    "calls",
    [
        [(WRITE, OK), (SHOW, OK)],
        [(WRITE, ERROR)],
        [(WRITE, None)],
        [(call("c1", "write_file", path="/mnt/user-data/workspace/draft.md"), OK)],
        [(call("c1", command=f"ls {REPORT}"), OK)],
    ],
    ids=["shown", "failed", "without a result", "elsewhere", "only listed"],
)
async def test_a_run_ends_that_has_nothing_to_show(calls: Any) -> None:
    assert await ended(*calls) == []


async def test_showing_that_failed_shows_nothing() -> None:
    [decision] = await ended((WRITE, OK), (SHOW, ERROR))
    assert decision.text == "1 file was not shown"


async def test_a_file_that_was_shown_before_may_be_written_again() -> None:
    assert await ended((WRITE, OK), values={"artifacts": [REPORT]}) == []
