"""A run whose conversation becomes too long: summarised in the middle of its work, and what the model sees then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.events import ContextCompacted, ModelCompleted
from core.replay.source import LogSource
from core.runs.replay import replay
from core.thread.usage import of_run
from tests.actors.agent.test_replay import loop
from tests.support.model_server import Failure, ToolCall, Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

LOOK = Turn(tool_calls=(ToolCall("ls", {"description": "look", "path": "/mnt/user-data"}),))
SCRIPTS = {
    "main": [LOOK, LOOK, Turn(text="Done.")],
    "small": [Turn(text="They look around.")],
    "broken": [Turn(error=Failure(status=400))],
}


def sections(model: str) -> dict[str, Any]:
    return {
        "enabled": True,
        "model_name": model,
        "trigger": [{"type": "messages", "value": 5}],
        "keep": {"type": "messages", "value": 4},
    }


def roles(body: Any) -> list[str]:
    return [message["role"] for message in body["messages"]]


async def test_in_the_middle_of_a_run(tmp_path: Path) -> None:
    async with site(tmp_path, SCRIPTS, summarization=sections("small")) as (client, models):
        thread = await client.thread()
        run = await client.ended(thread, await client.ask(thread, "Look around", "main"))
        assert run.status == "success", run.error
        [record] = await client.records(thread, ContextCompacted)
        event = record.event
        assert isinstance(event, ContextCompacted)
        assert (record.run, event.model, len(event.kept)) == (run.id, "small", 4)
        [request] = [each for each in models.requests if each.model == "small"]
        assert "Person: Look around" in request.body["messages"][-1]["content"]
        last = [each for each in models.requests if each.model == "main"][-1]
        assert roles(last.body) == ["system", "user", "user", "assistant", "tool", "assistant", "tool"]
        reminder, summary = [message["content"] for message in last.body["messages"][1:3]]
        assert ("<current_date>" in reminder, "They look around." in summary) == (True, True)
        state = await client.state(thread)
        assert [message["type"] for message in state.messages] == ["human", "ai", "tool", "ai", "tool", "ai"]
        assert of_run(state, run).summaries.total > 0
        assert len(await client.records(thread, ModelCompleted)) == 3
        report = await replay(LogSource(client.system.log).read, thread, None, loop(client.system.log, ()).execute)
        assert report.divergence is None


async def test_a_run_goes_on_if_nobody_writes_a_summary(tmp_path: Path) -> None:
    """The run's own model is asked too, and answers without a word."""
    scripts = {"broken": SCRIPTS["broken"], "main": SCRIPTS["main"]}
    async with site(tmp_path, scripts, summarization=sections("broken")) as (client, _):
        thread = await client.thread()
        run = await client.ended(thread, await client.ask(thread, "Look around", "main"))
        assert run.status == "success", run.error
        assert await client.records(thread, ContextCompacted) == []
        answers = [record.event for record in await client.records(thread, ModelCompleted)]
        decided = [decision for event in answers if isinstance(event, ModelCompleted) for decision in event.decisions]
        assert [(decision.policy, decision.action) for decision in decided] == [("summarization", "failed")]
