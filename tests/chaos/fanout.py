"""A batch on several workers, two of which are killed in the middle: every item once, in order, in the table.

`python -m tests.chaos.fanout --items 1000` prints the tally of a large batch; `test_fanout.py` is a small one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.events import Aggregate, RunStarted, SubagentCompleted, SubagentProgressed, SubagentStarted
from core.files.paths import thread_root
from core.log.kinds import SUBAGENT
from core.runtime import system
from core.runtime.system import System
from tests.support import warm
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.workers import LEASE, Client, configure, worker

WORKERS, KILLS = 4, 2
INPUT = "/mnt/user-data/uploads/steps.txt"
CALL = {
    "description": "Do all steps",
    "subagent_type": "general-purpose",
    "template": "Do {item}.",
    "input": INPUT,
    "over": "lines",
}


class Tally(msgspec.Struct):
    items: int
    seconds: float
    rows_wrong: int
    ends_wrong: int
    """Items whose log has not exactly one end."""
    batch_owners: int
    """Workers that had the batch's run."""
    killed: int
    progressed: list[str]
    context_bytes: int
    model_calls: int


@asynccontextmanager
async def process(home: Path, endpoint: Endpoint, config: Path) -> AsyncIterator[warm.Process]:
    """A worker in a process of its own."""
    worker = warm.start("tests.chaos.fanout", "--worker", str(home), str(config), endpoint.url, str(endpoint.token))
    try:
        await worker.line()
        yield worker
    finally:
        worker.kill()
        await worker.waited()


async def fan_out(home: Path, items: int) -> Tally:
    turns = Script((Turn(text=""), *(Turn(text=f"Did {n}.", delay_ms=20) for n in range(items))), count="marker")
    lead = [Turn(text="I delegate.", tool_calls=(ToolCall("tasks", CALL),)), Turn(text="Done.")]
    settings = {"agents": {"general-purpose": {"model": "sub"}}, "batch": {"pool": 16}}
    uploads = thread_root(home, "ada", "t1") / "user-data" / "uploads"
    uploads.mkdir(parents=True)
    (uploads / "steps.txt").write_text("".join(f"step-{n}\n" for n in range(items)))
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(ModelServer({"lead": lead, "sub": turns}, record=False))
        server = await stack.enter_async_context(embedded.start(home))
        config = configure(home / "config.yaml", models, subagents=settings)
        endpoint = Endpoint(server.url, token=server.token)
        running = await stack.enter_async_context(
            system.start(endpoint, home / "views.db", lease_seconds=LEASE, slots=16)
        )
        workers = [process(home, endpoint, config) for _ in range(WORKERS)]
        processes = await asyncio.gather(*map(stack.enter_async_context, workers))
        client, begun = Client(running), asyncio.get_running_loop().time()
        run = await client.ask(
            await client.thread(), "Go on.", context={"subagent_enabled": True, "model_name": "lead"}
        )
        killed = await _kill(running, processes, items)
        ended = await client.ended("t1", run, 3600)
        assert ended.status == "success", ended.error
        seconds = asyncio.get_running_loop().time() - begun
        await client.idle()
        return await _tally(client, home, items, seconds, killed, models.counts["sub"])


async def _kill(running: System, processes: Sequence[warm.Process], items: int) -> int:
    """Kills the batch's owner at a quarter of the way, and another worker at a half."""
    killed = 0
    async for record in running.log.follow(Aggregate("thread", "t1")):
        if isinstance(event := record.event, SubagentStarted):
            batch = Aggregate(SUBAGENT, event.subagent)
        if isinstance(event, SubagentProgressed) and event.index >= items * (killed + 1) // 4:
            starts = [r.event async for r in running.log.read(batch) if isinstance(r.event, RunStarted)]
            names = {process.pid: process for process in processes if process.poll() is None}
            owner = next((p for pid, p in names.items() if str(pid) in starts[-1].worker.split("-")), None)
            victim = owner or next(iter(names.values()))
            victim.kill()
            await victim.waited()
            killed += 1
            if killed == KILLS:
                break
    return killed


async def _tally(client: Client, home: Path, items: int, seconds: float, killed: int, calls: int) -> Tally:
    records = await client.records("t1")
    [batch] = {r.event.subagent for r in records if isinstance(r.event, SubagentStarted)}
    of_batch = [r.event async for r in client.system.log.read(Aggregate(SUBAGENT, batch))]
    ends = Counter(e.call_id.split("-")[0] for e in of_batch if isinstance(e, SubagentCompleted) and not e.retried)
    [message] = [m for m in (await client.state("t1")).messages if m["type"] == "tool"]
    [path] = (thread_root(home, "ada", "t1") / "user-data" / "outputs").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    expected = [(n, "completed", f"Do step-{n}.", f"Did {n}.") for n in range(items)]
    actual = [(row["index"], row["status"], row["prompt"], row["result"]) for row in rows]
    return Tally(
        items=items,
        seconds=round(seconds, 1),
        rows_wrong=sum(a != b for a, b in zip(expected, actual, strict=False)) + abs(len(expected) - len(actual)),
        ends_wrong=sum(ends[str(n)] != 1 for n in range(items)),
        batch_owners=len({e.worker for e in of_batch if isinstance(e, RunStarted)}),
        killed=killed,
        progressed=[str(r.event.message["content"]) for r in records if isinstance(r.event, SubagentProgressed)],
        context_bytes=len(json.dumps(message)),
        model_calls=calls,
    )


async def _serve(home: Path, config: Path, url: str, token: str) -> None:
    async with worker(Endpoint(url, token=token), home, config, alone=False):
        print("ready", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A batch on four workers, two of which are killed.")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--worker", nargs=4, metavar=("HOME", "CONFIG", "URL", "TOKEN"))
    options: Any = parser.parse_args()
    if options.worker:
        home, config, url, token = options.worker
        return asyncio.run(_serve(Path(home), Path(config), url, token))
    with tempfile.TemporaryDirectory() as folder:
        print(asyncio.run(fan_out(Path(folder), options.items)))


if __name__ == "__main__":
    main()
