"""Answers as providers give them, over HTTP and through the agent: the tool is called as the provider meant it, or the
run says what the provider said.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.events import ModelFailed
from core.thread.state import Run
from core.tools import ToolContext, tool
from tests.support.answers import AFTER, load, outcome, serving
from tests.support.fuzzed_answers import Case, made
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

CASES = load("reported")
STREAMS = 300 if os.environ.get("SIKA_LONG") else 24
AT_ONCE = 12
FUZZED = "fuzz-"
QUIET: Mapping[str, Any] = {
    "runs": {"max_model_attempts": 2},
    "circuit_breaker": {"failure_threshold": 100_000},
}


@tool(effect="pure")
async def bash(ctx: ToolContext, description: str, command: str) -> str:
    """Run a command."""
    return f"ran {command}"


@tool(effect="pure")
async def read(ctx: ToolContext, path: Any = None, q: Any = None, n: Any = None, text: Any = None) -> str:
    """Read a file."""
    return "read"


def case_of(name: str) -> Mapping[str, Any]:
    if not name.startswith(FUZZED):
        return CASES[name]
    return {"stream": b"".join(made(int(name.removeprefix(FUZZED))).blocks).decode("utf-8", "surrogateescape")}


def entry(name: str, url: str) -> dict[str, Any]:
    return {"name": name, "model": name, "base_url": url, "api_key": "none"}


async def ended(client: Client, thread: str, model: str) -> tuple[Run, list[dict[str, Any]]]:
    await client.thread(thread)
    run = await client.ended(thread, await client.ask(thread, "Go", model))
    return run, (await client.state(thread)).messages


async def test_reported_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that a provider asks for is recorded; it is not waited for here."""
    monkeypatch.setattr("actors.agent.model.ask.pause_ms", lambda error, attempt: 0)
    async with serving(case_of) as (url, asked):
        models = [entry(name, url) for name in CASES]
        async with site(tmp_path, {}, tools=[bash, read], more_models=models, **QUIET) as (client, _):
            ends = dict(zip(CASES, await _all([ended(client, name, name) for name in CASES]), strict=True))
            failures = {name: await client.records(name, ModelFailed) for name in CASES}
    for name, (run, messages) in ends.items():
        case = CASES[name]
        if "error" in case and "times" not in case:
            assert run.status == "error", name
            assert run.error is not None
            assert case["error"] in run.error.text or name == "t_empty_stream", (name, run.error.text)
            assert asked[name] >= (2 if case["reason"] in ("transient", "busy") else 1), name
            continue
        assert run.status == "success", (name, run.error)
        assert len(failures[name]) == case.get("times", 0), name
        expected = (
            AFTER + " | ".join(f"ran {call[1]['command']}" for call in case["calls"]) if "calls" in case else None
        )
        assert messages[-1]["content"] == (expected or case.get("text", "MARK-42")), name


async def _all(work: list[Any]) -> list[Any]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(task: Any) -> Any:
        async with limit:
            return await task

    return await asyncio.gather(*map(one, work))


async def test_fuzzed_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the run records is what the reader makes of the body; none ends with the name of an exception of Python."""
    monkeypatch.setattr("actors.agent.model.ask.pause_ms", lambda error, attempt: 0)
    seeds = [seed for seed in range(100 * STREAMS) if _is_text(made(seed))][:STREAMS]
    names = [f"{FUZZED}{seed}" for seed in seeds]
    async with serving(case_of) as (url, _):
        models = [entry(name, url) for name in names]
        async with site(tmp_path, {}, tools=[bash, read], more_models=models, **QUIET) as (client, _):
            ends = await _all([ended(client, name, name) for name in names])
    for seed, (run, messages) in zip(seeds, ends, strict=True):
        expected = await outcome(made(seed).blocks, ["bash", "read"])
        if "error" in expected and expected["error"] != "empty":
            assert run.error is not None, seed
            assert expected["error"][:100] in run.error.text, seed
        elif "calls" in expected:
            calls = [[call["name"], call["args"]] for call in messages[1]["tool_calls"]]
            sent = [call for call in expected["calls"] if isinstance(call, list)]
            assert [call for call in calls if call in sent] == sent, seed
        elif expected.get("text", "").strip():
            assert (run.status, messages[-1]["content"]) == ("success", expected["text"]), seed


def _is_text(case: Case) -> bool:
    """Tells whether a body of a case can be kept as text, and says something."""
    body = b"".join(case.blocks)
    return b"\r" not in body and body.decode("utf-8", "ignore").encode() == body and bool(case.text or case.calls)
