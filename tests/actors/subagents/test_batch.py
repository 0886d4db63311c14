"""A run gives a batch of prompts to subagents: the table, the summary, retries, and the early stop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from core.events import SubagentCompleted, SubagentProgressed, SubagentStarted
from core.paths import thread_root
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

ON = {"subagent_enabled": True, "model_name": "lead"}
OWN = {"agents": {"general-purpose": {"model": "sub"}}}


def tasks(**arguments: Any) -> list[Turn]:
    given = {"description": "Count all.", "subagent_type": "general-purpose", **arguments}
    return [Turn(text="I delegate.", tool_calls=(ToolCall("tasks", given),)), Turn(text="Done.")]


def script(turns: Sequence[Turn]) -> Script:
    """Answers the prompt `step-<n>` with turn n."""
    return Script((Turn(text="No marker."), *turns), count="marker")


def table(home: Path) -> list[dict[str, Any]]:
    [path] = (thread_root(home, "ada", "t1") / "user-data" / "outputs").iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


async def events(client: Client, kind: Any) -> list[Any]:
    return [record.event for record in await client.records("t1", kind)]


async def test_a_batch(tmp_path: Path) -> None:
    prompts = [f"Do step-{n}." for n in range(40)]
    scripts = {"lead": tasks(prompts=prompts), "sub": script([Turn(text=f"Did {n}.") for n in range(40)])}
    async with site(tmp_path, scripts, subagents=OWN) as (client, _):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
        [started], progressed = await events(client, SubagentStarted), await events(client, SubagentProgressed)
        [completed] = await events(client, SubagentCompleted)
        batch = await client.system.subagents.threads.load(started.subagent)
        await client.idle()
    rows = table(tmp_path)
    assert [row["index"] for row in rows] == list(range(40))
    assert [(row["prompt"], row["result"], row["attempts"]) for row in rows] == [
        (p, f"Did {n}.", 1) for n, p in enumerate(prompts)
    ]
    [result] = [m["content"] for m in messages if m["type"] == "tool"]
    assert result.startswith("Task Succeeded. Result: 40/40 done. All results")
    assert "/mnt/user-data/outputs/Count-all-" in result
    assert len(result) < 1000
    assert [e.index for e in progressed][-1] == 100
    assert progressed[-1].message["content"] == "40/40 done"
    assert completed.usage["total_tokens"] == sum(row["tokens"] for row in rows) > 0
    run = batch.runs[started.subagent]
    assert (run.subagents, run.items.done) == ({}, 40)
