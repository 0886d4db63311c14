"""`sika log why` and `sika log tree` on a real run with a subagent, a failing model, and a call that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from channels.terminal.log import views as logs
from core.events import SubagentStarted
from core.replay.source import LogSource
from tests.actors.subagents.test_task import ON, OWN, events, ls, task
from tests.support.model_server import Failure, ToolCall, Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

MISSING = ToolCall("read_file", {"description": "look", "path": "/mnt/user-data/workspace/nope.txt"})


async def test_over_a_subagent(tmp_path: Path) -> None:
    busy = Failure(status=429)
    lead = [Turn(text="I delegate.", tool_calls=(task(), MISSING), error=busy, times=1), Turn(text="It says one.")]
    sub = [Turn(text="Looking.", tool_calls=(ls(),)), Turn(text="One.")]
    async with site(tmp_path, {"lead": lead, "sub": sub}, subagents=OWN) as (client, _):
        await client.said(await client.thread(), "Go on.", context=ON)
        [started] = await events(client, SubagentStarted)
        await client.idle()
        log, subagent = client.system.log, f"subagent/{started.subagent}"
        [*_, last] = await logs.records_of(LogSource(log), subagent)
        chain: list[str] = []
        await logs.why(LogSource(log), subagent, f"seq:{last.seq}", chain.append)
        plain: list[str] = []
        await logs.why(LogSource(log), subagent, f"seq:{last.seq}", plain.append, raw=True)
        tree: list[str] = []
        await logs.tree(LogSource(log), "t1", tree.append)
    kinds = [json.loads(link)["event"]["type"] for link in plain]
    assert kinds == [
        *("run.requested", "run.started", "model.completed", "tool.requested", "subagent.started"),
        *("run.requested", "run.started", "model.completed", "tool.requested", "tool.completed"),
        *("model.completed", "run.completed"),
    ]
    assert chain[0] == "thread t1"
    assert f"subagent {started.subagent}" in chain
    assert any(line.startswith("  and ") and "model.failed" in line for line in chain)
    assert "1 failed attempt" in tree[0]
    assert tree[0].endswith("success")
    assert tree[1].startswith("  waited for: ")
    assert any("task" not in line and "waited for: " in line for line in tree[2:]), "the subagent's run has its own"
    steps = [line[19:].strip() for line in tree[2:] if "▏" not in line and "█" not in line]
    assert steps[0].startswith("! ")
    assert steps[1] == "◆ “I delegate.”"
    assert steps[2].startswith(
        f"task count [general-purpose {started.subagent[:8]}] “general-purpose: Task Succeeded. Result: One.”"
    )
    assert any("ls look" in step for step in steps[3:7]), "the subagent's call lies below the call of the lead"
    assert any(step.startswith("✗ read_file look") for step in steps)
    assert steps[-1] == "◆ “It says one.”"
