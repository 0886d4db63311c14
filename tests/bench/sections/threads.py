"""Many threads: does finding one of them, or reading its past, take longer when there are a hundred times as many?"""

from __future__ import annotations

import asyncio
import http.client
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from actors.wiring import compose
from core.events import Event, ModelCompleted, RunCompleted, RunRequested, RunStarted, ThreadCreated, thread
from core.identity.principal import LOCAL
from core.log.store import EventLog
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, flat, median, percentile
from tests.bench.processes import Broken, Sika
from tests.support.model_server import run, words

_FEW, _MANY = 100, 10_000
_OF_A_KIND = 10
"""Threads that a search by metadata, or by a word, finds."""
_TURNS = 2
_AT_ONCE = 20


async def _fill(lab: Laboratory, server: Sika, count: int) -> None:
    """Append threads to the log as if they had been talked in."""
    async with compose.attach(compose.Options(server.home, lab.config)) as running:
        numbers = iter(range(count))

        async def some() -> None:
            for number in numbers:
                await _append(running.log, number)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(some())


async def _append(log: EventLog, number: int) -> None:
    name, expected = _name(number), 0
    for turn in range(_TURNS):
        run_id = f"{name}-{turn}"
        events = [*([] if turn else [_created(number)]), *_turn(number, turn, run_id)]
        records = await log.append(thread(name), events, expected=expected, actor="lead", run=run_id)
        expected = records[-1].seq


def _name(number: int) -> str:
    return f"bench-{number:05}"


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

    def __init__(self, server: Sika, seconds: float = 60) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=seconds)
        self.answer: Any = None

    def ask(self, method: str, path: str, body: Any = None) -> float:
        """Milliseconds until the whole answer is there."""
        data = None if body is None else msgspec.json.encode(body)
        start = time.perf_counter()
        self._connection.request(method, f"/api{path}", data, {"content-type": "application/json"})
        response = self._connection.getresponse()
        raw = response.read()
        seconds = time.perf_counter() - start
        if response.status >= 300:
            raise Broken(f"{method} {path}: {response.status} {raw[:500]!r}")
        self.answer = msgspec.json.decode(raw) if raw else None
        return 1000 * seconds

    def stream(self, path: str, last_event_id: str) -> bytes:
        """What a stream has to say after an event, up to its end."""
        self._connection.request("GET", f"/api{path}", headers={"Last-Event-ID": last_event_id})
        response = self._connection.getresponse()
        raw = response.read()
        if response.status != 200 or b"event: end" not in raw:
            raise Broken(f"GET {path}: {response.status} {raw[-500:]!r}")
        return raw


Question = Callable[[Asker, random.Random, int, int], float]
"""Asks it: by chance, of so many threads, for the so-many-th time."""


def _search(hits: int, **body: Any) -> Question:
    def ask(asker: Asker, _: random.Random, __: int, ___: int) -> float:
        return _checked(asker, asker.ask("POST", "/threads/search", body), hits)

    return ask


def _of_kind(*, by_words: bool) -> Question:
    def ask(asker: Asker, chance: random.Random, count: int, _: int) -> float:
        kind = chance.randrange(count // _OF_A_KIND)
        filters = {"query": f"kind{kind}x"} if by_words else {"metadata": {"kind": kind}}
        return _checked(asker, asker.ask("POST", "/threads/search", {**filters, "select": _LIST}), _OF_A_KIND)

    return ask


def _count(asker: Asker, _: random.Random, count: int, __: int) -> float:
    taken = asker.ask("POST", "/threads/count", {"status": "idle"})
    if asker.answer != count:
        raise Broken(f"{asker.answer} threads were counted, there are {count}")
    return taken


def _history(*, again: bool) -> Question:
    """Of a thread that the server has read before, or has not."""

    def ask(asker: Asker, chance: random.Random, count: int, time: int) -> float:
        name = _name(chance.randrange(_FEW) if again else time)
        return _checked(asker, asker.ask("POST", f"/threads/{name}/history", {"limit": 10}), 2 * _TURNS + 1)

    return ask


def _checked(asker: Asker, taken: float, hits: int) -> float:
    if len(asker.answer) != hits:
        raise Broken(f"{len(asker.answer)} hits, expected {hits}")
    return taken


_LIST = ["thread_id", "updated_at", "metadata", "status"]
_QUESTIONS: Mapping[str, Question] = {
    "history of a thread not read before": _history(again=False),
    "history of a thread read before": _history(again=True),
    "search: the newest 10 with their values": _search(10),
    "search: a list of 50 without values": _search(50, limit=50, select=_LIST),
    "search: 10 by metadata": _of_kind(by_words=False),
    "search: 10 by a word in their messages": _of_kind(by_words=True),
    "count by status": _count,
}


def threads(lab: Laboratory) -> Iterator[Row]:
    """The 95th percentile of each question on two servers, asked in turn: what slows the machine down slows both."""
    asked = 100 if lab.quick else 500
    many = _MANY // 10 if lab.quick else _MANY
    with ExitStack() as stack:
        askers: dict[int, Asker] = {}
        for count in (_FEW, many):
            lab.say(f"{count} threads")
            server = stack.enter_context(lab.sika(warm=False))
            run(_fill(lab, server, count))
            server.settle()
            askers[count] = Asker(server)
            askers[count].ask("POST", "/threads/count", {})
        for name, question in _QUESTIONS.items():
            times = _FEW if name.endswith("not read before") else asked
            taken = _ask(question, askers, times)
            few, lots = (percentile(taken[count], 95) for count in (_FEW, many))
            middle = " and ".join(f"{median(taken[count]):.2f}" for count in (_FEW, many))
            yield Row(
                f"{name}, p95",
                lots / few,
                flat(0.5),
                "ms",
                lots,
                note=f"with {many} threads; {few:.2f} with {_FEW}; medians {middle}",
            )


def _ask(question: Question, askers: Mapping[int, Asker], times: int) -> dict[int, list[float]]:
    chance = random.Random(1)
    taken: dict[int, list[float]] = {count: [] for count in askers}
    for time_ in range(times):
        for count, asker in askers.items():
            taken[count].append(question(asker, chance, count, time_))
    return taken
