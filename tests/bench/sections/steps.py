"""A step of a run, a model call and a tool call: by rounds, beside LangGraph's graph, which a middleware with a hook
makes necessary.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain.agents.middleware import AgentMiddleware

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.tools import ToolContext, tool
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, cpu_seconds, median, ratio
from tests.support.workers import Client, worker

_STEPS = 40
_RUNS = {"steps": 5, "short": 60}
"""Runs of a measurement: of so many steps, and of one answer."""
_ROUNDS = 5
_LIMIT = 0.95
_KINDS = {"rounds": [], "graph": [f"{__name__}:Hooked"]}
"""The middlewares of each loop."""


class Hooked(AgentMiddleware[Any, Any, Any]):
    """A hook at the end of a run, which does nothing."""

    name = "hooked"

    async def aafter_agent(self, state: Any, runtime: Any) -> None: ...


@tool(effect="pure")
async def nothing(ctx: ToolContext, word: str) -> str:
    """Do nothing."""
    return word


def steps(lab: Laboratory) -> Iterator[Row]:
    """CPU milliseconds, of the process and its nats-server."""
    used = asyncio.run(_measured(2 if lab.quick else _ROUNDS))
    for script, what in (
        ("steps", f"a step, of {_STEPS} in a run"),
        ("short", "a run of one answer, with its request"),
    ):
        rounds, graph = used["rounds", script], used["graph", script]
        yield Row(
            what,
            ratio(rounds, graph),
            at_most(_LIMIT),
            "ms CPU",
            ours=median(rounds),
            bare=median(graph),
            note="bare: the graph, in the same minute",
        )


async def _measured(rounds: int) -> dict[tuple[str, str], list[float]]:
    used: dict[tuple[str, str], list[float]] = {(kind, script): [] for kind in _KINDS for script in _RUNS}
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory()))
        url, models = await stack.enter_async_context(_models(home))
        clients = {kind: await stack.enter_async_context(_worker(home / kind, url, kind)) for kind in _KINDS}
        for number in range(rounds + 1):  # the first round warms up
            for (kind, script), figures in used.items():
                before = _cpu(models)
                for run in range(_RUNS[script]):
                    await clients[kind].said(await clients[kind].thread(f"{script}-{number}-{run}"), "Go", script)
                answers = _RUNS[script] * (_STEPS + 1 if script == "steps" else 1)
                figures.append(1000 * (_cpu(models) - before) / answers)
    return {key: figures[1:] for key, figures in used.items()}


@asynccontextmanager
async def _models(home: Path) -> AsyncIterator[tuple[str, int]]:
    calls = [{"tool_calls": [{"name": "nothing", "args": {"word": str(n)}}]} for n in range(_STEPS)]
    scripts = {"steps": {"turns": [*calls, {"text": "Done."}]}, "short": {"turns": [{"text": "Done."}]}}
    (home / "scripts.json").write_text(json.dumps(scripts))
    command = [sys.executable, "-m", "tests.support.model_server", "--count-only", "--scripts"]
    process = await asyncio.create_subprocess_exec(*command, str(home / "scripts.json"), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip(), process.pid
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@asynccontextmanager
async def _worker(home: Path, url: str, kind: str) -> AsyncIterator[Client]:
    home.mkdir()
    entries = [{"name": name, "model": name, "base_url": url, "api_key": "none"} for name in _RUNS]
    off = {name: {"enabled": False} for name in ("title", "memory", "loop_detection")}
    config = home / "config.yaml"
    config.write_text(json.dumps({"models": entries, "middlewares": _KINDS[kind], **off}))
    async with (
        embedded.start(home) as server,
        worker(Endpoint(server.url, token=server.token), home, config, tools=[nothing]) as system,
    ):
        yield Client(system)


def _cpu(models: int) -> float:
    """Returns the seconds that this process and its nats-servers have used."""
    return cpu_seconds(os.getpid()) - cpu_seconds(models)
