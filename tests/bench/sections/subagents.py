"""What a subagent costs its caller's run, beside a nested agent that a tool calls and of which nothing is kept."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.tools import Tool, ToolContext, tool
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, cpu_seconds, median, ratio
from tests.support.workers import Client, worker

_TOKENS = 50
_CALLS = 3
_RUNS = 20
_ROUNDS = 4
_LIMIT = 2.5
_ARGUMENTS = {
    "task": {"description": "d", "prompt": "Go on.", "subagent_type": "general-purpose"},
    "nested": {"prompt": "Go on."},
    "nothing": {"prompt": "Go on."},
}


def subagents(lab: Laboratory) -> Iterator[Row]:
    """CPU milliseconds of one of three calls at a time, without what a call of a tool costs that does nothing."""
    ours, bare = asyncio.run(_measured(_RUNS // (4 if lab.quick else 1)))
    yield Row(
        f"{_TOKENS} tokens, {_CALLS} at a time",
        ratio(ours, bare),
        at_most(_LIMIT),
        "ms CPU/subagent",
        ours=median(ours),
        bare=median(bare),
        note="bare: a tool that awaits create_agent(…).ainvoke",
    )


async def _measured(runs: int) -> tuple[list[float], list[float]]:
    with TemporaryDirectory() as folder:
        home = Path(folder)
        scripts = {name: {"turns": _turns(name)} for name in _ARGUMENTS}
        (home / "scripts.json").write_text(json.dumps(scripts))
        command = [sys.executable, "-m", "tests.support.model_server", "--count-only", "--scripts"]
        models = await asyncio.create_subprocess_exec(
            *command, str(home / "scripts.json"), stdout=asyncio.subprocess.PIPE
        )
        assert models.stdout is not None
        try:
            url = (await models.stdout.readline()).decode().strip()
            return await _alternating(home, url, models.pid, runs)
        finally:
            with suppress(ProcessLookupError):
                models.terminate()
            await models.wait()


def _turns(name: str) -> list[object]:
    return [{"tool_calls": [{"name": name, "args": _ARGUMENTS[name]}] * _CALLS}, {"text": "Done."}]


async def _alternating(home: Path, url: str, models: int, runs: int) -> tuple[list[float], list[float]]:
    entries = [{"name": n, "model": n, "base_url": url, "api_key": "none"} for n in (*_ARGUMENTS, f"tokens-{_TOKENS}")]
    own = {"agents": {"general-purpose": {"model": f"tokens-{_TOKENS}"}}}
    config = home / "config.yaml"
    config.write_text(json.dumps({"models": entries, "subagents": own, "loop_detection": {"enabled": False}}))
    used: dict[str, list[float]] = {name: [] for name in _ARGUMENTS}
    async with (
        embedded.start(home) as server,
        worker(Endpoint(server.url, token=server.token), home, config, tools=_tools(url)) as system,
    ):
        client = Client(system)
        for number in range(_ROUNDS + 1):  # the first round warms up
            for name in _ARGUMENTS:
                before = _cpu(models)
                for run in range(runs):
                    thread = await client.thread(f"{name}-{number}-{run}")
                    await client.said(thread, "Go on.", name, context={"subagent_enabled": True})
                used[name].append(1000 * (_cpu(models) - before) / runs / _CALLS)
    plain = used["nothing"][1:]
    ours, bare = ([a - b for a, b in zip(used[name][1:], plain, strict=True)] for name in ("task", "nested"))
    return ours, bare


def _tools(url: str) -> list[Tool]:
    model = ChatOpenAI(model=f"tokens-{_TOKENS}", base_url=url, api_key=SecretStr("none"), streaming=True)
    agent = create_agent(model, system_prompt="p")

    @tool(effect="pure")
    async def nested(ctx: ToolContext, prompt: str) -> str:
        """Ask another agent."""
        answer = await agent.ainvoke({"messages": [HumanMessage(prompt)]})
        return str(answer["messages"][-1].content)

    @tool(effect="pure")
    async def nothing(ctx: ToolContext, prompt: str) -> str:
        """Do nothing."""
        return prompt

    return [nested, nothing]


def _cpu(models: int) -> float:
    """Returns the seconds that this process and its nats-server have used."""
    return cpu_seconds(os.getpid()) - cpu_seconds(models)
