"""A thread's log, looked at: pages of its events, moments, many who look at once, and following it live."""

from __future__ import annotations

import asyncio
import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
from playwright.sync_api import Browser, BrowserContext

from actors.wiring import compose
from core.events import ThreadAnnotated, thread
from tests.bench import giant
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, median
from tests.bench.processes import Broken, Sika
from tests.bench.sections.giants import await_snapshot, published
from tests.bench.sections.page import chromium, watched
from tests.bench.sections.threads import Asker
from tests.support.model_server import run

_SIZES = (10_000, 200_000)
_QUICK = (2000,)
_FOLDED_SECONDS = 600.0
_STEPS = 40
_LOOKING = 20
_LOOKS = 15
"""Moments and pages that each of them asks for."""
_LEAST_RATE = 200
"""Events a second that a follower is to keep up with."""
_RATE, _FOLLOWED_SECONDS = 220, 5
"""Events a second that are written, and for how long."""
_BATCH = 10
"""Events that are appended at once."""
_OPENED = 5
_ROWS = "document.querySelector('.tl-row')"
_LIVE = "document.querySelector('.tl-header [role=status]')?.textContent.startsWith('Live')"
_COMPOSER = "document.activeElement?.id === 'composer'"
_COUNT = "Number(document.querySelector('.tl-row')?.getAttribute('aria-setsize'))"
_ONCE = """new Promise((resolve) => {{
  const look = () => {} ? resolve(performance.now()) : setTimeout(look, 5);
  look();
}})"""
"""When something holds, in milliseconds since the page was asked for."""
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
            yield _many(server, size)
            yield _following(lab, server, size)
            yield from _page(lab, server, size)


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


def _many(server: Sika, size: int) -> Row:
    """Memory of the server when many look at pages and moments of it at once."""
    end = _last(Asker(server, _FOLDED_SECONDS), giant.NAME)
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


def _following(lab: Laboratory, server: Sika, size: int) -> Row:
    """How far a follower is behind after events at a steady rate."""
    after, wanted = _last(Asker(server), giant.NAME), _RATE * _FOLLOWED_SECONDS
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

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        ready.wait(30)
        ended, rate = _written(lab, server)
        following.result()
    behind = 1000 * max(0.0, arrived[-1] - ended)
    note = f"{rate:.0f} events/s were written of {_LEAST_RATE} wanted"
    return Row(f"a follower behind the last event of {size} (ms)", behind, at_most(200), "ms", behind, note=note)


def _written(lab: Laboratory, server: Sika) -> tuple[float, float]:
    """Writes events in batches, as a run at work does. Returns when the last one was, and how many a second were."""
    ended, seconds = run(_write(lab, server))
    return ended, _RATE * _FOLLOWED_SECONDS / seconds


async def _write(lab: Laboratory, server: Sika) -> tuple[float, float]:
    async with compose.attach(compose.Options(server.home, lab.config)) as running:
        begin, started = await running.log.tip(thread(giant.NAME)), time.perf_counter()
        for number in range(0, _RATE * _FOLLOWED_SECONDS, _BATCH):
            await asyncio.sleep(max(0.0, started + number / _RATE - time.perf_counter()))
            events = [ThreadAnnotated(metadata={"turn": number + place}) for place in range(_BATCH)]
            records = await running.log.append(thread(giant.NAME), events, expected=begin, actor="lead")
            begin = records[-1].seq
        ended = time.perf_counter()
        return ended, ended - started


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _page(lab: Laboratory, server: Sika, size: int) -> Iterator[Row]:
    """How soon the page shows the thread, its longest task, and how far it is behind while events are written."""
    limit = at_most(1000 if size <= _SIZES[0] else 2000)
    with chromium() as browser, watched(browser) as context:
        figures, bares = list[_Figures](), list[_Figures]()
        for _ in range(_OPENED + 1):
            bares.append(_opened(browser, context, server, "", _COMPOSER, _COMPOSER))
            figures.append(_opened(browser, context, server, f"timeline/{giant.NAME}", _ROWS, _LIVE))
        ours, bare = _medians(figures[1:]), _medians(bares[1:])  # the first ones fill the browser's cache
        note = f"its window is read at {ours.read:.0f} ms"
        yield Row(f"the page shows {size} events (ms)", ours.shown, limit, "ms", ours.shown, bare.shown, note=note)
        what = f"longest task while {size} events are opened (ms)"
        note = f"{ours.cpu:.0f} ms of CPU; bare {bare.cpu:.0f}"
        yield Row(what, ours.longest, at_most(100), "ms", ours.longest, bare.longest, note=note)
        yield _page_behind(lab, context, server, size)


class _Figures(NamedTuple):
    """When a page showed what it is for, when it had read it all, its longest task, and the CPU of the dearest one, in
    milliseconds.
    """

    shown: float
    read: float
    longest: float
    cpu: float


def _medians(figures: Sequence[_Figures]) -> _Figures:
    shown, read, longest, cpu = (median(values) for values in zip(*figures, strict=True))
    return _Figures(shown, read, longest, cpu)


def _opened(browser: Browser, context: BrowserContext, server: Sika, place: str, shown: str, read: str) -> _Figures:
    browser.start_tracing(categories=["toplevel", "disabled-by-default-devtools.timeline"])
    tab = context.new_page()
    tab.goto(f"http://{server.host}:{server.port}/#/{place}")
    at_first, at_last = (tab.evaluate(_ONCE.format(condition)) for condition in (shown, read))
    tab.wait_for_timeout(500)
    longest = max(tab.evaluate("seen.tasks"), default=0.0)
    tab.close()
    return _Figures(at_first, at_last, longest, _dearest(browser.stop_tracing()))


def _dearest(trace: bytes) -> float:
    """Returns the CPU of the task of a page's main thread that took most, in ms: other processes do not count."""
    events = msgspec.json.decode(trace)["traceEvents"]
    threads = [event for event in events if event.get("name") == "thread_name"]
    mains = {(one["pid"], one["tid"]) for one in threads if one["args"]["name"] == "CrRendererMain"}
    tasks = (one for one in events if one.get("name") == "RunTask" and (one["pid"], one["tid"]) in mains)
    return max((task.get("tdur", 0) / 1000 for task in tasks), default=0.0)


def _page_behind(lab: Laboratory, context: BrowserContext, server: Sika, size: int) -> Row:
    """How far the page is behind the last event that was written."""
    tab = context.new_page()
    tab.goto(f"http://{server.host}:{server.port}/#/timeline/{giant.NAME}")
    tab.evaluate(_ONCE.format(_LIVE))
    tab.evaluate("seen.tasks.length = 0")
    there = tab.evaluate(_COUNT)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_written, lab, server)
        while not writing.done():
            tab.wait_for_timeout(100)
        ended, rate = writing.result()
    tab.evaluate(_ONCE.format(f"{_COUNT} >= {there + _RATE * _FOLLOWED_SECONDS}"))
    behind = 1000 * (time.perf_counter() - ended)
    longest = max(tab.evaluate("seen.tasks"), default=0.0)
    note = f"{rate:.0f} events/s were written of {_LEAST_RATE} wanted; longest task {longest:.0f} ms"
    return Row(f"the page behind the last event of {size} (ms)", behind, at_most(1000), "ms", behind, note=note)


def _state(name: str, seq: int) -> str:
    return f"/threads/{name}/log/state?at=seq:{seq}&runs=5&messages=20"


def _last(asker: Asker, name: str) -> int:
    """The sequence of the newest event."""
    asker.ask("GET", f"/threads/{name}/log/events?limit=1&before=0")
    return int(asker.answer["events"][0]["seq"])
