"""Many threads: does finding one of them, or reading its past, take longer when there are a hundred times as many?"""

from __future__ import annotations

import asyncio
import http.client
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from actors import compose
from core.events import Event, ModelCompleted, RunCompleted, RunRequested, RunStarted, ThreadCreated, thread
from core.identity.principal import LOCAL
from core.log import EventLog
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, flat, median, percentile
from tests.bench.processes import Broken, Sika
from tests.support.model_server import run, words

_FEW, _MANY = 100, 10_000
_OF_A_KIND = 10
"""Threads that a search by metadata, or by words, finds."""
_AT_ONCE = 50
_TURNS = 2


@dataclass
class Crowd:
    """Threads that were appended to the log as if they had been talked in."""

    names: list[str] = field(default_factory=list)

    async def grow(self, log: EventLog, count: int) -> None:
        numbers = iter(range(len(self.names), count))
        self.names += [f"bench-{number:05}" for number in range(len(self.names), count)]

        async def fill() -> None:
            for number in numbers:
                name = self.names[number]
                records = await log.append(thread(name), [_created(number)], expected=0, actor="bench")
                for turn in range(_TURNS):
                    expected, run_id = records[-1].seq, f"{name}-{turn}"
                    events = _turn(number, turn, run_id)
                    records = await log.append(thread(name), events, expected=expected, actor="lead", run=run_id)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(fill())


def _created(number: int) -> Event:
    return ThreadCreated(user=LOCAL.user, metadata={"kind": number // _OF_A_KIND})


def _turn(number: int, turn: int, run_id: str) -> list[Event]:
    asked = {"type": "human", "id": f"{run_id}-h", "content": f"Question {turn} of kind{number // _OF_A_KIND}x?"}
    said = {"type": "ai", "id": f"{run_id}-a", "content": words(50)}
    return [
        RunRequested(input={"messages": [asked]}),
        RunStarted(attempt=1, worker="bench", lease=1),
        ModelCompleted(message=said),
        RunCompleted(),
    ]


class Asker:
    """One connection that is kept, as a browser keeps it."""

    def __init__(self, server: Sika) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        self.answer: Any = None

    def ask(self, method: str, path: str, body: Any = None) -> float:
        """Milliseconds until the whole answer is there."""
        data = None if body is None else msgspec.json.encode(body)
        start = time.perf_counter()
        self._connection.request(method, f"/api{path}", data, {"content-type": "application/json"})
        response = self._connection.getresponse()
        raw = response.read()
        seconds = time.perf_counter() - start
        if response.status != 200:
            raise Broken(f"{method} {path}: {response.status} {raw[:500]!r}")
        self.answer = msgspec.json.decode(raw)
        return 1000 * seconds


Question = Callable[[Asker, random.Random, int], float]


def _search(hits: int, **body: Any) -> Question:
    def ask(asker: Asker, _: random.Random, __: int) -> float:
        return _checked(asker, asker.ask("POST", "/threads/search", body), hits)

    return ask


def _of_kind(*, by_words: bool = False) -> Question:
    def ask(asker: Asker, chance: random.Random, count: int) -> float:
        kind = chance.randrange(count // _OF_A_KIND)
        filters = {"query": f"kind{kind}x"} if by_words else {"metadata": {"kind": kind}}
        return _checked(asker, asker.ask("POST", "/threads/search", {**filters, "select": ["thread_id"]}), _OF_A_KIND)

    return ask


def _count(asker: Asker, _: random.Random, count: int) -> float:
    seconds = asker.ask("POST", "/threads/count", {"status": "idle"})
    if asker.answer != count:
        raise Broken(f"{asker.answer} threads were counted, there are {count}")
    return seconds


def _history(asker: Asker, chance: random.Random, count: int) -> float:
    name = f"bench-{chance.randrange(count):05}"
    return _checked(asker, asker.ask("POST", f"/threads/{name}/history", {"limit": 10}), 2 * _TURNS)


def _checked(asker: Asker, seconds: float, hits: int) -> float:
    if len(asker.answer) != hits:
        raise Broken(f"{len(asker.answer)} hits, expected {hits}")
    return seconds


_LIST = ["thread_id", "updated_at", "metadata", "status"]
_QUESTIONS: dict[str, Question] = {
    "search: the newest 10 with their values": _search(10),
    "search: a list of 50 without values": _search(50, limit=50, select=_LIST),
    "search: 10 by metadata": _of_kind(),
    "search: 10 by a word in their messages": _of_kind(by_words=True),
    "count: by status": _count,
    "history: of any thread": _history,
}


def threads(lab: Laboratory) -> Iterator[Row]:
    """The 95th percentile of each question, with few threads and with many."""
    asked = 100 if lab.quick else 500
    many = _MANY // 10 if lab.quick else _MANY
    crowd, found = Crowd(), {name: list[list[float]]() for name in _QUESTIONS}
    with lab.sika(warm=False) as server:
        for count in (_FEW, many):
            lab.say(f"{count} threads")
            run(_grow(lab, server, crowd, count))
            server.settle()
            asker, chance = Asker(server), random.Random(1)
            for name, question in _QUESTIONS.items():
                for _ in range(20):
                    question(asker, chance, count)
                found[name].append([question(asker, chance, count) for _ in range(asked)])
    for name, (few, lots) in found.items():
        before, after = percentile(few, 95), percentile(lots, 95)
        middle = f"median {median(few):.2f} and {median(lots):.2f}"
        note = f"p95 with {many} threads; {before:.2f} with {_FEW}; {middle}"
        yield Row(name, after / before, flat(0.5), "ms", after, note=note)


async def _grow(lab: Laboratory, server: Sika, crowd: Crowd, count: int) -> None:
    async with compose.attach(compose.Options(server.home, lab.config)) as running:
        await crowd.grow(running.log, count)
