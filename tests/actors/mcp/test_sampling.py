"""Servers that have the run's model answer during a call: within its limits, recorded as the run's usage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.wiring import compose
from core.events import ModelSampled
from core.thread.usage import of_run
from tests.actors.mcp.test_calls import DONE, calls, results
from tests.actors.mcp.test_elicitation import ask, resume
from tests.support.mcp import mcp_site, server
from tests.support.model_server import Turn
from tests.support.replays import replay

pytestmark = pytest.mark.anyio
REQUEST = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Capital of France?"}}],
    "systemPrompt": "Be short.",
    "maxTokens": 5000,
    "temperature": 0.3,
}
ASK = {"text": json.dumps(REQUEST)}
PARIS = Turn(text="Paris.")


def script(*turns: Turn) -> Any:
    """Turns of the conversation; the server's own request is answered with Paris."""

    def answer(messages: Sequence[dict[str, Any]]) -> Turn:
        if messages[-1]["content"] == "Capital of France?":
            return PARIS
        number = sum(message["role"] == "assistant" for message in messages)
        return turns[int(number)]

    return answer


async def test_the_runs_model_answers(tmp_path: Path) -> None:
    """The model gets no tools and no more tokens than are allowed; its usage is the run's, also in a replay."""
    own = {"s": server("asking", sampling={"approval": False, "max_tokens": 50})}
    first, *_ = calls(("s_sample", ASK))
    async with mcp_site(tmp_path, own, {"m": script(first, DONE)}) as (client, models):
        await ask(client)
        state = await client.state("t1")
        [record] = await client.records("t1", ModelSampled)
        options = compose.Options(tmp_path, config=tmp_path / "config.yaml")
        report = await replay(client.system, "t1", None, options)
    [result] = results(state.messages)
    assert json.loads(result["content"]) == {
        "role": "assistant",
        "content": {"type": "text", "text": "Paris."},
        "model": "m",
        "stopReason": "endTurn",
    }
    body = models.requests[1].body
    assert [message["content"] for message in body["messages"]] == ["Be short.", "Capital of France?"]
    assert body.get("tools") is None
    assert 50 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    sampled: Any = record.event
    assert (sampled.model, sampled.text) == ("m", "Paris.")
    assert sampled.usage["input_tokens"] > 0
    [run] = state.runs.values()
    assert of_run(state, run).agent.calls == 3
    assert report.divergence is None


async def test_the_person_approves(tmp_path: Path) -> None:
    own = {"s": server("asking", sampling={})}
    turn, *_ = calls(("s_sample", ASK))
    async with mcp_site(tmp_path, own, {"m": script(turn, turn, DONE)}) as (client, models):
        await ask(client)
        assert len(models.requests) == 1
        [question] = [q["value"] for several in (await client.state("t1")).interrupts.values() for q in several]
        assert question["action_requests"][0]["args"]["messages"] == ["user: Capital of France?"]
        await resume(client, "approve")
        await resume(client, "reject")
        first, second = results((await client.state("t1")).messages)
    assert json.loads(first["content"])["content"]["text"] == "Paris."
    assert json.loads(second["content"])["error"]["message"] == "the person declined"


async def test_limits(tmp_path: Path) -> None:
    """Tools, images and a context are refused; so is what the run's budget does not allow."""
    picture = {"role": "user", "content": {"type": "image", "data": "eA==", "mimeType": "image/png"}}
    bad = [
        {**REQUEST, "tools": [{"name": "x", "inputSchema": {"type": "object"}}]},
        {**REQUEST, "includeContext": "allServers"},
        {**REQUEST, "messages": [picture]},
        REQUEST,
    ]
    own = {"s": server("asking", sampling={"approval": False}), "off": server("asking")}
    turns = [turn for params in bad for turn in calls(("s_sample", {"text": json.dumps(params)}))[:1]]
    off, *_ = calls(("off_sample", ASK))
    budgets = {"run": {"tokens": 1}}
    more: dict[str, Any] = {"mcp": {"direct_tools": 100}}
    async with mcp_site(tmp_path, own, {"m": script(*turns[:3], off, DONE)}, **more) as (client, _):
        await ask(client)
        errors = [json.loads(m["content"])["error"]["message"] for m in results((await client.state("t1")).messages)]
    assert [word in error for word, error in zip(("tools", "includeContext", "only text"), errors[:3], strict=True)]
    assert "not supported" in errors[3]
    async with mcp_site(tmp_path / "2", own, {"m": script(turns[3])}, budgets=budgets, **more) as (client, _):
        await ask(client)
        [result] = results((await client.state("t1")).messages)
    assert "budgets.run.tokens" in json.loads(result["content"])["error"]["message"]
