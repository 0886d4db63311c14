"""One thread that has been talked in for years: what reading it, joining it and a turn in it cost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from actors.wiring import compose
from tests.bench import giant, history
from tests.bench.laboratory import Laboratory, ask
from tests.bench.measure import Row, at_most
from tests.bench.processes import Broken, Sika
from tests.bench.sections.threads import Asker
from tests.support.model_server import run

_SIZES = (100_000, 1_000_000)
_QUICK = (2000,)
_FOLDED_SECONDS = 600.0
_SNAPSHOT_SECONDS = 120.0
_CLIENTS = 50
_ROUNDS = 4
_TURNS = 10
"""Of each round. CPU is counted in hundredths of a second: fewer turns would say little."""
_BESIDE = 1500
"""Events of the thread whose turns those of the giant are compared with: the same conversation, hardly any past."""


def giants(lab: Laboratory) -> Iterator[Row]:
    """What one thread costs that has been talked in for years."""
    for size, home in published(lab, _QUICK if lab.quick else _SIZES):
        with lab.sika(home, warm=False) as server:
            Asker(server, _FOLDED_SECONDS).ask("GET", _STATE.format(giant.NAME))
            await_snapshot(home)
            server.settle()
        with lab.sika(home, warm=False) as server:
            server.settle()
            asker = Asker(server)
            yield _cold_giant(server, asker, size)
            yield from _reading_giant(server, asker, size)
            yield _joining_giant(server, asker, size)
            yield _turns_of_giant(server, size)


_STATE = "/threads/{}/state?select=next"


def published(lab: Laboratory, sizes: Sequence[int]) -> Iterator[tuple[int, Path]]:
    """Yields sizes, each with a data directory in whose log is a giant of so many events."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for size in sizes:
        lab.say(f"one thread of {size} events")
        home = lab.new_home()
        run(publish_giant(lab, home, size))
        yield size, home


async def publish_giant(lab: Laboratory, home: Path, size: int) -> None:
    """Write a giant, and the thread beside it, into the log of a data directory on which no server runs."""
    with history.late_to_disk():
        async with compose.attach(compose.Options(home, lab.config)) as running:
            log = running.log
            await history.store(log, giant.records(size, seq=await log.last()))
            await history.store(log, giant.records(_BESIDE, seq=await log.last(), name="beside"))
            await history.leave(log)


def await_snapshot(home: Path) -> None:
    """Wait until the giant has been folded and written down."""
    deadline = time.monotonic() + _SNAPSHOT_SECONDS
    while not list(home.glob(f"snapshots/thread/{giant.NAME}/head")):
        if time.monotonic() > deadline:
            raise Broken(f"no snapshot of the giant within {_SNAPSHOT_SECONDS:g} s")
        time.sleep(0.2)


def _cold_giant(server: Sika, asker: Asker, size: int) -> Row:
    """CPU of the first read of all, from its snapshot; a small thread's has warmed up what both need."""
    asker.ask("GET", _STATE.format("beside"))
    server.settle()
    before = server.cpu()
    wall = asker.ask("GET", _STATE.format(giant.NAME))
    cold = 1000 * (server.cpu() - before)
    limit = at_most(50) if size <= _SIZES[0] else None
    note = f"answered after {wall:.0f} ms"
    return Row(f"first read of a thread of {size} events (ms of CPU)", cold, limit, "ms", cold, note=note)


def _reading_giant(server: Sika, asker: Asker, size: int) -> Iterator[Row]:
    """CPU of a page of the history, and of joining runs that ended long ago, in the middle and just now."""
    turns = giant.turns(size)
    path = f"/threads/{giant.NAME}/history?limit=10"
    page = _cpu_of(server, lambda _: asker.ask("GET", path))
    yield Row(f"ten states of {size} events (ms of CPU)", page, at_most(20), "ms", page)
    for what, turn in (("first", 1), ("middle", turns // 2), ("last", turns - 2)):
        path = f"/threads/{giant.NAME}/runs/{giant.run_id(turn)}/stream"
        joined = _cpu_of(server, lambda _, path=path: asker.stream(path, "-1"))  # type: ignore[misc]
        yield Row(f"joining the {what} run of {size} events (ms of CPU)", joined, at_most(50), "ms", joined)


def _cpu_of(server: Sika, question: Callable[[int], object], times: int = 20) -> float:
    """Milliseconds of CPU of one question, those of nats-server included."""
    question(0)
    server.settle()
    before = server.cpu()
    for number in range(times):
        question(number)
    return 1000 * (server.cpu() - before) / times


def _joining_giant(server: Sika, asker: Asker, size: int) -> Row:
    """Many clients join at once, and somebody else goes on asking."""
    path = f"/threads/{giant.NAME}/runs/{giant.run_id(giant.turns(size) // 2)}/stream"
    asker.stream(path, "-1")
    server.settle()
    before, slowest = server.memory(), 0.0
    with ThreadPoolExecutor(_CLIENTS) as pool:
        joining = [pool.submit(lambda: Asker(server).stream(path, "-1")) for _ in range(_CLIENTS)]
        while not all(one.done() for one in joining):
            slowest = max(slowest, asker.ask("GET", _STATE.format("beside")))
        for one in joining:
            one.result()
    ratio = server.memory() / before
    note = f"somebody else waited up to {slowest:.0f} ms"
    return Row(f"memory when {_CLIENTS} join {size} events at once", ratio, at_most(2), "×", ratio, note=note)


def _turns_of_giant(server: Sika, size: int) -> Row:
    """CPU of turns, against those of a thread with as long a conversation and hardly any past, in alternation."""
    cpu = {"beside": 0.0, giant.NAME: 0.0}
    for _ in range(_ROUNDS):
        for name in cpu:
            turns = _cpu_of(server, lambda n, name=name: run(ask(server, name, f"And {n}?", "tokens-50")), _TURNS)  # type: ignore[misc]
            cpu[name] += turns / _ROUNDS
    ratio = cpu[giant.NAME] / cpu["beside"]
    return Row(f"a turn in a thread of {size} events", ratio, at_most(1.3), "ms of CPU", cpu[giant.NAME], cpu["beside"])
