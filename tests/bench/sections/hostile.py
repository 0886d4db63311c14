"""MCP servers that hang, crash, flood and lie: what the rest of the server notices of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Iterator

import aiohttp

from tests.bench import processes
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_least, at_most, percentile
from tests.support.mcp import server
from tests.support.model_server import ModelServer, Script, ToolCall, Turn

CALLS = ("crash", "hang", "flood", "flood_lines", "junk", "memory", "stderr", "latin", "hostile")
MOST_MS = 20.0
CONVERSATIONS = 2
"""Conversations at once; each makes all the calls, and after each one a call of a server that works."""
_PROBE_SECONDS = 0.01
_RUN_SECONDS = 600.0


def hostile(lab: Laboratory) -> Iterator[Row]:
    """Milliseconds of `GET /health`, p99, while tools of hostile servers are called, beside an idle server."""
    names = CALLS[:2] if lab.quick else CALLS
    lab.say(f"{CONVERSATIONS} conversations with {len(names)} hostile calls each")
    idle, busy, good = asyncio.run(_measured(lab, names))
    yield Row(
        "GET /health while MCP servers rage (p99, ms)",
        percentile(busy, 99),
        at_most(MOST_MS),
        "ms",
        percentile(busy, 99),
        percentile(idle, 99),
        note=f"{', '.join(names)}; {len(busy)} requests; bare: nothing else is done",
    )
    yield Row("calls of the other server that were answered", good, at_least(1.0), note="part of all")


async def _measured(lab: Laboratory, names: tuple[str, ...]) -> tuple[list[float], list[float], float]:
    """Returns the milliseconds of the requests before and during the calls, and the part of good calls answered."""
    steps = [step for name in names for step in ((f"bad_{name}", {}), ("good_echo", {"text": name}))]
    turns = [Turn(tool_calls=(ToolCall(name, arguments),)) for name, arguments in steps]
    script = Script((*turns, Turn(text="Done.")))
    async with ModelServer({"m": script}) as models:
        home = lab.new_home()
        project = lab.folder / "hostile"
        project.mkdir()
        servers = {"bad": server(tool_call_timeout=6), "good": server(), "hanging": server("hang-start")}
        config = processes.configure(
            project / "config.yaml", models.url, mcp={"servers": servers, "memory_mb": 256, "list_seconds": 60}
        )
        settings = json.loads(config.read_text())
        settings["models"] = [{"name": "m", "model": "m", "base_url": models.url, "api_key": "none"}]
        config.write_text(json.dumps(settings))
        running = processes.sika(home, config)
        sika = await asyncio.to_thread(running.__enter__)
        try:
            async with aiohttp.ClientSession(f"http://{sika.host}:{sika.port}") as http:
                idle = await _probed(http, asyncio.sleep(5))
                answers: list[str] = []
                talks = asyncio.gather(*(_talk(http, answers) for _ in range(CONVERSATIONS)))
                busy = await _probed(http, talks)
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
    wanted = CONVERSATIONS * [f"echo {name}" for name in names]
    return idle, busy, sum(answers.count(text) for text in set(wanted)) / len(wanted)


async def _probed(http: aiohttp.ClientSession, work: Awaitable[object]) -> list[float]:
    """Returns the milliseconds of the requests that were made while something else was done."""
    task = asyncio.ensure_future(work)
    times = list[float]()
    while not task.done():
        begun = time.perf_counter()
        async with http.get("/health") as response:
            response.raise_for_status()
        times.append(1000 * (time.perf_counter() - begun))
        await asyncio.sleep(_PROBE_SECONDS)
    await task
    return times


async def _talk(http: aiohttp.ClientSession, answers: list[str]) -> None:
    """Has a conversation make all the calls; appends the answers of the server that works."""
    async with http.post("/api/threads", json={}) as response:
        response.raise_for_status()
        thread = (await response.json())["thread_id"]
    body = {
        "assistant_id": "lead_agent",
        "input": {"messages": [{"role": "user", "content": "Go"}]},
        "config": {"recursion_limit": 200},
    }
    timeout = aiohttp.ClientTimeout(total=_RUN_SECONDS)
    async with http.post(f"/api/threads/{thread}/runs/wait", json=body, timeout=timeout) as response:
        response.raise_for_status()
        values = await response.json()
    answers += [str(m["content"]) for m in values["messages"] if m["type"] == "tool" and "echo" in str(m["content"])]
