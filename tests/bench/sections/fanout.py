"""The throughput of a batch of prompts, beside a bare loop that asks an agent for each, as many at a time."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from core.bus import embedded
from core.bus.endpoint import Endpoint
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_least, median, ratio
from tests.support.workers import Client, worker

_MODEL = "tokens-50-delay-40"
"""An answer takes two seconds."""
_POOL = 8
_ITEMS = 160
_ROUNDS = 3
_LIMIT = 0.8


def fanout(lab: Laboratory) -> Iterator[Row]:
    """Items a second."""
    ours, bare = asyncio.run(_measured(_ITEMS // (4 if lab.quick else 1)))
    yield Row(
        f"answers of 2 s, {_POOL} at a time",
        ratio(ours, bare),
        at_least(_LIMIT),
        "items/s",
        ours=median(ours),
        bare=median(bare),
        note="bare: create_agent(…).ainvoke under a semaphore",
    )


async def _measured(items: int) -> tuple[list[float], list[float]]:
    with TemporaryDirectory() as folder:
        home = Path(folder)
        prompts = [f"Say {number}." for number in range(items)]
        call = {"name": "tasks", "args": {"description": "d", "subagent_type": "general-purpose", "prompts": prompts}}
        (home / "scripts.json").write_text(json.dumps({"lead": {"turns": [{"tool_calls": [call]}, {"text": "Done."}]}}))
        command = [sys.executable, "-m", "tests.support.model_server", "--count-only", "--scripts"]
        models = await asyncio.create_subprocess_exec(
            *command, str(home / "scripts.json"), stdout=asyncio.subprocess.PIPE
        )
        assert models.stdout is not None
        try:
            url = (await models.stdout.readline()).decode().strip()
            return await _alternating(home, url, prompts)
        finally:
            models.terminate()
            await models.wait()


async def _alternating(home: Path, url: str, prompts: list[str]) -> tuple[list[float], list[float]]:
    entries = [{"name": name, "model": name, "base_url": url, "api_key": "none"} for name in ("lead", _MODEL)]
    own = {"agents": {"general-purpose": {"model": _MODEL}}, "batch": {"pool": _POOL}}
    config = home / "config.yaml"
    config.write_text(json.dumps({"models": entries, "subagents": own}))
    ours, bare = list[float](), list[float]()
    async with (
        embedded.start(home) as server,
        worker(Endpoint(server.url, token=server.token), home, config) as system,
    ):
        for number in range(_ROUNDS + 1):  # the first round warms up
            begun = time.monotonic()
            client = Client(system)
            thread = await client.thread(f"t{number}")
            await client.said(thread, "Go on.", "lead", context={"subagent_enabled": True})
            ours.append(len(prompts) / (time.monotonic() - begun))
            begun = time.monotonic()
            await _bare(url, prompts)
            bare.append(len(prompts) / (time.monotonic() - begun))
    return ours[1:], bare[1:]


async def _bare(url: str, prompts: list[str]) -> None:
    model = ChatOpenAI(model=_MODEL, base_url=url, api_key=SecretStr("none"), streaming=True)
    agent, slots = create_agent(model, system_prompt="p"), asyncio.Semaphore(_POOL)

    async def ask(prompt: str) -> None:
        async with slots:
            await agent.ainvoke({"messages": [HumanMessage(prompt)]})

    await asyncio.gather(*map(ask, prompts))
