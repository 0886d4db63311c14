"""A run gives work to subagents: their facts, results and usage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.subagents.delegation import Call
from channels.terminal.log.views import records_of
from core.errors import Invalid, Unavailable
from core.events import SubagentCompleted, SubagentProgressed, SubagentStarted
from core.replay.source import LogSource
from core.thread.usage import of_run
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

ON = {"subagent_enabled": True, "model_name": "lead"}
OWN = {"agents": {"general-purpose": {"model": "sub"}}}


def task(prompt: str = "Count to one.", name: str = "general-purpose") -> ToolCall:
    return ToolCall("task", {"description": "count", "prompt": prompt, "subagent_type": name})


def ls() -> ToolCall:
    return ToolCall("ls", {"description": "look", "path": "/mnt/user-data/workspace"})


LEAD = [Turn(text="I delegate.", tool_calls=(task(),)), Turn(text="It says one.")]


async def test_a_subagent_does_the_work(tmp_path: Path) -> None:
    sub = [Turn(text="Looking.", tool_calls=(ls(),)), Turn(text="One.")]
    async with site(tmp_path, {"lead": LEAD, "sub": sub}, subagents=OWN) as (client, models):
        thread = await client.thread()
        messages = await client.said(thread, "Go on.", context=ON)
        [started] = await events(client, SubagentStarted)
        progressed = await events(client, SubagentProgressed)
        [completed] = await events(client, SubagentCompleted)
        state = await client.state(thread)
        subagent = await client.system.subagents.threads.load(started.subagent)
        await client.idle()
        log = client.system.log
        assert len(await records_of(LogSource(log), f"subagent/{started.subagent}")) == 8
        with pytest.raises(Invalid):
            await records_of(LogSource(log), "subagent/../t1")
    assert [m["content"] for m in messages if m["type"] != "tool"] == ["Go on.", "I delegate.", "It says one."]
    [result] = [m for m in messages if m["type"] == "tool"]
    assert result["content"] == "Task Succeeded. Result: One."
    assert result["additional_kwargs"]["subagent_status"] == "completed"
    assert result["additional_kwargs"]["subagent_model_name"] == "sub"
    assert (started.name, started.description, started.prompt, started.model) == (
        *("general-purpose", "count", "Count to one.", "sub"),
    )
    assert [(e.index, e.message["content"]) for e in progressed] == [(1, "Looking."), (2, "One.")]
    assert (completed.status, completed.result, completed.call_id) == ("completed", "One.", started.call_id)
    usage = of_run(state, next(iter(state.runs.values())))
    assert completed.usage is not None
    assert usage.subagents.total == completed.usage["total_tokens"] > 0
    assert usage.agent.total > 0
    assert [m["type"] for m in subagent.messages] == ["human", "ai", "tool", "ai"]
    assert (subagent.user, subagent.metadata["thread"]) == ("ada", thread)
    asked = next(r for r in models.requests if r.model == "sub").body
    assert [m["role"] for m in asked["messages"]] == ["system", "user", "user"]
    assert "<current_date>" in asked["messages"][1]["content"]
    tools = {tool["function"]["name"] for tool in asked["tools"]}
    assert "read_file" in tools
    assert not tools & {"task", "ask_clarification", "present_files", "setup_agent", "update_agent", "write_todos"}


async def test_a_subagent_that_asks_the_person_goes_on(tmp_path: Path) -> None:
    """Models know the tool, though a subagent does not have it."""
    question = ToolCall("ask_clarification", {"question": "To which one?", "clarification_type": "missing_info"})
    sub = [Turn(tool_calls=(question,)), Turn(text="One, if that was meant.")]
    async with site(tmp_path, {"lead": LEAD, "sub": sub}, subagents=OWN) as (client, models):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
    [result] = [message["content"] for message in messages if message["type"] == "tool"]
    assert result == "Task Succeeded. Result: One, if that was meant."
    told = next(r.body for r in reversed(models.requests) if r.model == "sub")["messages"][-1]
    assert (told["role"], told["content"].startswith("Error: a subagent cannot ask")) == ("tool", True)


async def test_a_log_out_of_reach_for_a_moment_ends_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    completed, failures = Call.completed, [Unavailable("no answer in time")]

    async def at_first_out_of_reach(call: Call, event: SubagentCompleted) -> SubagentCompleted:
        if failures:
            raise failures.pop()
        return await completed(call, event)

    monkeypatch.setattr(Call, "completed", at_first_out_of_reach)
    async with site(tmp_path, {"lead": LEAD, "sub": [Turn(text="One.")]}, subagents=OWN) as (client, _):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
        ends = await events(client, SubagentCompleted)
    assert not failures
    assert [m["content"] for m in messages if m["type"] == "tool"] == ["Task Succeeded. Result: One."]
    assert [end.result for end in ends] == ["One."]


async def events(client: Client, kind: Any) -> list[Any]:
    return [record.event for record in await client.records("t1", kind)]
