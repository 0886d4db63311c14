"""Search in memories: how long it takes to find the facts that bear on a message."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

from core.memory.facts import Fact, Memory
from core.memory.search import Searches
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most
from tests.core.memory.questions import facts, questions

_QUESTIONS = 300


def recall(lab: Laboratory) -> Iterator[Row]:
    for count in (300, 10_000):
        lab.say(f"questions about {count} facts")
        memory, searches = _memory(count), Searches()
        started = time.perf_counter()
        asyncio.run(_ask(searches, memory, 1))
        first = time.perf_counter() - started
        times = sorted(asyncio.run(_ask(searches, memory, _QUESTIONS)))
        p50, p95 = (times[int(len(times) * share)] * 1000 for share in (0.5, 0.95))
        note = f"p50 {p50:.1f} ms; the first question, which makes the table, {first * 1000:.0f} ms"
        yield Row(f"p95 of a question about {count} facts (ms)", p95, at_most(25), "ms", p95, note=note)


async def _ask(searches: Searches, memory: Memory, count: int) -> list[float]:
    texts = [text for _, _, text, _ in questions()]
    times = []
    for number in range(count):
        started = time.perf_counter()
        await searches.relevant("bench", memory, texts[number % len(texts)])
        times.append(time.perf_counter() - started)
    return times


def _memory(count: int) -> Memory:
    """Facts of the test set, each made another one by words of others."""
    known, chance = facts(0), random.Random(0)
    texts = [fact.content for fact in known]
    repeated = (known[number % len(known)] for number in range(count))
    return Memory(
        facts={
            f"fact_{number}": Fact(
                id=f"fact_{number}",
                content=f"{fact.content} {chance.choice(texts)} {number}",
                keywords=fact.keywords,
                created_at=fact.created_at,
            )
            for number, fact in enumerate(repeated)
        }
    )
