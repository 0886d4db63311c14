"""A thread's log, looked at: pages of its events, moments, many who look at once, and following it live."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.bench import giant
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, median
from tests.bench.processes import Broken, Sika
from tests.bench.sections.giants import await_snapshot, published
from tests.bench.sections.threads import Asker

_SIZES = (10_000, 200_000)
_QUICK = (2000,)
_FOLDED_SECONDS = 600.0
_STEPS = 40
_LOOKING = 20
_LOOKS = 15
"""Moments and pages that each of them asks for."""
_RATE, _FOLLOWED_SECONDS = 200, 5
"""Events a second, and for how long."""
_WRITERS = 8
_BESIDE = "beside"
"""A thread of the same turns, and hardly any past: what its questions take is taken off the machine's speed."""


def timeline(lab: Laboratory) -> Iterator[Row]:
    """Yields the costs of looking at the log of a thread, however long it is."""
    for size, home in published(lab, _QUICK if lab.quick else _SIZES):
        with lab.sika(home, warm=False) as server:
            asker = Asker(server, _FOLDED_SECONDS)
            for name in (giant.NAME, _BESIDE):
                asker.ask("GET", f"/threads/{name}/state?select=next")
            await_snapshot(home)
            server.settle()
            yield from _pages(asker, size)
            yield from _moments(asker, size)
            yield _many(server, asker, size)
            yield _following(server, asker, size)


def _pages(asker: Asker, size: int) -> Iterator[Row]:
    """The last page, and one in the middle, of the newest first."""
    last = _last(asker, giant.NAME), _last(asker, _BESIDE)
    for what, places in (("newest", (0, 0)), ("middle", (last[0] - size // 2, last[1] - 700))):
        paths = [f"/threads/{name}/log/events?limit=100&before={at}" for name, at in zip(_NAMES, places, strict=True)]
        yield _compared(f"the {what} page of {size} events", asker, lambda side, _, paths=paths: paths[side], 2)  # type: ignore[misc]


def _moments(asker: Asker, size: int) -> Iterator[Row]:
    """The first look at a moment long ago, then steps of scrubbing forwards, backwards, and leaps."""
    end, near = _last(asker, giant.NAME), _last(asker, _BESIDE)
    middle = end - size // 2
    first = asker.ask("GET", _state(giant.NAME, middle))
    yield Row(f"first look at a moment of {size} events (ms)", first, None, "ms", first)
    chance = random.Random(size)
    places = [middle + step for step in range(20)] + [middle - 7 * step for step in range(20)]
    yield _compared(
        f"a step of scrubbing in {size} events",
        asker,
        lambda side, n: _state(_NAMES[side], (places[n] if side == 0 else near - 700 + n)),
        3,
    )
    leaps = [asker.ask("GET", _state(giant.NAME, end - chance.randrange(size - 10))) for _ in range(_STEPS)]
    yield Row(f"a leap to any moment of {size} events (ms)", median(leaps), at_most(50), "ms", median(leaps))


_NAMES = (giant.NAME, _BESIDE)
_Path = Callable[[int, int], str]


def _compared(what: str, asker: Asker, path: _Path, most: float) -> Row:
    """The median of questions to the long thread over that to the short one, in alternation."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(_STEPS):
        for side in (0, 1):
            times[side].append(asker.ask("GET", path(side, number)))
    ours, bare = median(times[0]), median(times[1])
    note = f"longest {max(times[0]):.0f} ms"
    return Row(f"{what}, × a short thread's", ours / bare, at_most(most), "ms", ours, bare, note=note)


def _many(server: Sika, asker: Asker, size: int) -> Row:
    """Memory of the server when many look at pages and moments of it at once."""
    end = _last(asker, giant.NAME)
    server.settle()
    before = server.memory()

    def look(number: int) -> None:
        own, chance = Asker(server, _FOLDED_SECONDS), random.Random(number)
        for _ in range(_LOOKS):
            place = end - chance.randrange(size - 200)
            own.ask("GET", f"/threads/{giant.NAME}/log/events?limit=100&before={place}")
            own.ask("GET", _state(giant.NAME, place))

    started = time.perf_counter()
    with ThreadPoolExecutor(_LOOKING) as pool:
        list(pool.map(look, range(_LOOKING)))
    each = 1000 * (time.perf_counter() - started) / (2 * _LOOKS)
    grown = (server.memory() - before) / (1 << 20)
    note = f"{before / (1 << 20):.0f} MB before; {each:.0f} ms for a round of questions"
    return Row(f"memory when {_LOOKING} look at {size} events (MB more)", grown, at_most(20), "MB", grown, note=note)


def _following(server: Sika, asker: Asker, size: int) -> Row:
    """How far a follower is behind after events at a steady rate."""
    after, wanted = _last(asker, giant.NAME), _RATE * _FOLLOWED_SECONDS
    arrived, ready = list[float](), threading.Event()

    def follow() -> None:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        connection.request("GET", f"/api/threads/{giant.NAME}/log?follow=1&after={after}")
        response = connection.getresponse()
        ready.set()
        while len(arrived) < wanted:
            line = response.readline()
            if not line:
                raise Broken(f"the log ended after {len(arrived)} of {wanted} events")
            if line.startswith(b"id: "):
                arrived.append(time.perf_counter())

    def write(number: int) -> float:
        own = Asker(server)
        for turn in range(number, wanted, _WRITERS):
            time.sleep(max(0.0, started + turn / _RATE - time.perf_counter()))
            own.ask("PATCH", f"/threads/{giant.NAME}", {"metadata": {"turn": turn}})
        return time.perf_counter()

    with ThreadPoolExecutor(_WRITERS + 1) as pool:
        following = pool.submit(follow)
        ready.wait(30)
        started = time.perf_counter()
        ended = max(pool.map(write, range(_WRITERS)))
        following.result()
    behind = 1000 * max(0.0, arrived[-1] - ended)
    note = f"{wanted / (ended - started):.0f} events/s were written of {_RATE} wanted"
    return Row(f"a follower behind the last event of {size} (ms)", behind, at_most(200), "ms", behind, note=note)


def _state(name: str, seq: int) -> str:
    return f"/threads/{name}/log/state?at=seq:{seq}&runs=5&messages=20"


def _last(asker: Asker, name: str) -> int:
    """The sequence of the newest event."""
    asker.ask("GET", f"/threads/{name}/log/events?limit=1&before=0")
    return int(asker.answer["events"][0]["seq"])
