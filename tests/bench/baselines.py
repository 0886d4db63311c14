"""The two baselines every figure is a ratio to: an agent loop in one process, without and with a checkpointer.

`bare` keeps nothing; `sqlite` saves every step with LangGraph's `AsyncSqliteSaver` in a file. Both are given their
best: one HTTP pool, one compiled agent, a warm-up, no server in between. Runs are independent conversations,
`--concurrency` at a time; with `--turns` each is a conversation of that many turns (`bare` has its history in memory).

    python -m tests.bench.baselines --kind sqlite --url http://127.0.0.1:8001/v1 --model tokens-50 --runs 200 --json
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from pydantic import SecretStr

from tests.support.model_server import run


@dataclass
class Figures:
    """What one process measured; times in seconds. The warm-up is in `max_rss_bytes` only."""

    kind: str
    model: str
    runs: int
    concurrency: int
    turns: int
    loop: str = ""
    """The module of the event loop: `uvloop` or `asyncio.unix_events`."""
    wall: float = 0.0
    cpu: float = 0.0
    first_token: list[float] = field(default_factory=list)
    turn: list[float] = field(default_factory=list)
    disk_bytes: int = 0
    max_rss_bytes: int = 0


class Conversation:
    """One thread of the agent: `ask` runs a turn and returns its time to the first token and its whole time."""

    def __init__(self, agent: Any, thread: str, *, remembers: bool) -> None:
        self._agent = agent
        self._config = {"configurable": {"thread_id": thread}}
        self._history: list[AnyMessage] = []
        self._remembers = remembers

    async def ask(self, text: str) -> tuple[float, float]:
        question = HumanMessage(text)
        start, first, answer = time.perf_counter(), 0.0, []
        given = [question] if self._remembers else [*self._history, question]
        async for chunk, _ in self._agent.astream({"messages": given}, self._config, stream_mode="messages"):
            if isinstance(chunk, AIMessageChunk) and chunk.text:
                first = first or time.perf_counter() - start
                answer.append(chunk.text)
        total = time.perf_counter() - start
        if not self._remembers:
            self._history = [*given, AIMessage("".join(answer))]
        return first, total


@asynccontextmanager
async def _agent(kind: str, url: str, model: str, folder: Path) -> AsyncIterator[tuple[Any, Any]]:
    """The compiled agent and its checkpointer, if any."""
    client = ChatOpenAI(model=model, base_url=url, api_key=SecretStr("none"), stream_usage=True, max_retries=0)
    if kind == "bare":
        yield create_agent(client, tools=[]), None
        return
    async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        yield create_agent(client, tools=[], checkpointer=saver), saver


async def _drive(agent: Any, figures: Figures, runs: Iterator[str]) -> None:
    """One of the concurrent users: takes the next run until there is none."""
    for thread in runs:
        conversation = Conversation(agent, thread, remembers=figures.kind == "sqlite")
        for number in range(figures.turns):
            first, total = await conversation.ask(f"Question {number} of {thread}?")
            figures.first_token.append(first)
            figures.turn.append(total)


async def _all(agent: Any, figures: Figures, prefix: str, count: int) -> None:
    runs = (f"{prefix}-{i}" for i in range(count))
    async with asyncio.TaskGroup() as group:
        for _ in range(min(figures.concurrency, count)):
            group.create_task(_drive(agent, figures, runs))


async def _disk(saver: Any, folder: Path) -> int:
    if saver is not None:
        await saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return _size(folder)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure(url: str, figures: Figures, folder: Path) -> Figures:
    """Fill in the figures. Keeps its files in `folder`, which must be empty."""
    figures.loop = type(asyncio.get_running_loop()).__module__
    async with _agent(figures.kind, url, figures.model, folder) as (agent, saver):
        warm_up = Figures(figures.kind, figures.model, 0, figures.concurrency, turns=1)
        await _all(agent, warm_up, "warm-up", max(5, figures.concurrency))
        gc.collect()
        gc.freeze()  # full collections over the imported modules cost 10 % of the time and 100 ms pauses
        disk, cpu, start = await _disk(saver, folder), _cpu(), time.perf_counter()
        await _all(agent, figures, "run", figures.runs)
        figures.wall, figures.cpu = time.perf_counter() - start, _cpu() - cpu
        figures.disk_bytes = await _disk(saver, folder) - disk
    figures.max_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures


def _summary(figures: Figures) -> str:
    turns = sorted(figures.turn)
    firsts = sorted(figures.first_token)
    count = len(turns)
    return (
        f"{figures.kind} {figures.model} c={figures.concurrency}: {figures.runs / figures.wall:.1f} runs/s, "
        f"cpu {1000 * figures.cpu / count:.2f} ms/turn, first token p50 {1000 * firsts[count // 2]:.2f} ms, "
        f"turn p50 {1000 * turns[count // 2]:.2f} p99 {1000 * turns[int(count * 0.99)]:.2f} ms, "
        f"{figures.disk_bytes / count:.0f} B/turn on disk, rss {figures.max_rss_bytes / 2**20:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a LangChain agent loop without a server.")
    parser.add_argument("--kind", choices=["bare", "sqlite"], required=True)
    parser.add_argument("--url", required=True, help="base URL of the model server, with /v1")
    parser.add_argument("--model", default="tokens-50")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--turns", type=int, default=1, help="turns of each run's conversation")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a summary")
    options = parser.parse_args()
    figures = Figures(options.kind, options.model, options.runs, options.concurrency, options.turns)
    with tempfile.TemporaryDirectory(prefix="sika-baseline-") as folder:
        run(measure(options.url, figures, Path(folder)))
    print(json.dumps(asdict(figures)) if options.json else _summary(figures))


if __name__ == "__main__":
    main()
