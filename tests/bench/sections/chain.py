"""What the policies cost: CPU of one model call with all of them and 200 messages of history, beside the bare agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from langchain.agents import create_agent

from actors.agent.loop.chain import middlewares
from actors.agent.loop.graph import Graph
from actors.agent.run.attempt import Attempt, Candidate
from core.events import Json, Message
from tests.actors.agent import chains
from tests.actors.agent.fakes import Instant
from tests.actors.agent.turns import Kept, turn
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, median
from tests.support.records import ai, call, human

_MESSAGES = 200
_CALLS = 200
_ROUNDS = 5
_LIMIT_MS = 1.5


def chain(lab: Laboratory) -> Iterator[Row]:
    """CPU milliseconds of a model call: with all policies, with none, and what lies between."""
    calls = _CALLS // (4 if lab.quick else 1)
    ours, alone, bare = asyncio.run(_measured(calls))
    yield Row(
        "CPU of the whole chain, ms a model call",
        ours - bare,
        at_most(_LIMIT_MS),
        unit="ms",
        ours=ours,
        bare=bare,
        note=f"{_MESSAGES} messages; bare: create_agent without middleware",
    )
    yield Row("of that, policies", ours - alone, unit="ms", ours=ours, bare=alone, note="the rest is the recorder")


async def _measured(calls: int) -> tuple[float, float, float]:
    model = Instant()
    first = turn(_history(), config=chains.EVERYTHING)
    first.candidates = [Candidate("m", model, first.candidates[0].breaker)]
    every = chains.everything(first.config)
    agents = [
        create_agent(model, system_prompt="p", middleware=middlewares(every), context_schema=Attempt),
        create_agent(model, system_prompt="p", middleware=middlewares([every[0], every[-1]]), context_schema=Attempt),
        create_agent(model, system_prompt="p", context_schema=Attempt),
    ]
    found: list[list[float]] = [[], [], []]
    for _ in range(_ROUNDS + 1):  # alternating, and the first round warms up
        for place, agent in enumerate(agents):
            found[place].append(await _cpu_ms(agent, first, calls))
    ours, alone, bare = (median(times[1:]) for times in found)
    return ours, alone, bare


async def _cpu_ms(graph: Graph, first: Attempt, calls: int) -> float:
    """Of one call."""
    state = first.journal.state
    started = time.process_time()
    for _ in range(calls):
        first.journal = Kept(state)
        await graph.ainvoke({"messages": first.conversation()}, context=first)
    return (time.process_time() - started) / calls * 1000


def _history() -> list[Message]:
    """Questions, answers, tool calls and their results, of the sizes they have in practice."""
    found: list[Json] = []
    for n in range(_MESSAGES // 4):
        found += [
            human(f"h{n}", f"Question {n}: " + "what lies in the directory? " * 5),
            ai(f"c{n}", "", [call(f"call{n}", "ls", description="look", path=f"/mnt/user-data/workspace/{n % 7}")]),
            {"type": "tool", "id": f"t{n}", "tool_call_id": f"call{n}", "name": "ls", "content": "a/b/c.txt\n" * 40},
            ai(f"a{n}", f"Answer {n}: " + "there are some files in it, and this is what they say. " * 8),
        ]
    return [*found[: _MESSAGES - 1], human("last", "And now?")]
