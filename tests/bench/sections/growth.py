"""Years of use: what questions, old threads and new read models cost when there are thirty times as many threads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from actors import compose
from tests.bench import giant, history
from tests.bench.laboratory import Laboratory, ask
from tests.bench.measure import Row, at_most, median, percentile
from tests.bench.processes import Broken, Sika
from tests.bench.sections.threads import Asker
from tests.support.model_server import run

_SIZES = (10_000, 100_000, 300_000)
_QUICK = (100, 300, 1000)
_READS = 200
_BUILT_SECONDS = 900.0
_MIB = 2**20
_ROW = ["thread_id", "updated_at", "metadata", "status"]
_MOST = 3.0

Question = Callable[[Asker, int], float]
"""Asks it for the so-many-th time."""


def _search(**body: Any) -> Question:
    return lambda asker, _: asker.ask("POST", "/threads/search", {"select": _ROW, **body})


def _count(**body: Any) -> Question:
    return lambda asker, _: asker.ask("POST", "/threads/count", body)


def _get(path: str) -> Question:
    return lambda asker, _: asker.ask("GET", path)


def _kind(asker: Asker, turn: int, **filters: Any) -> float:
    taken = asker.ask("POST", "/threads/search", {"select": _ROW, **filters})
    if len(asker.answer) != history.OF_A_KIND:
        raise Broken(f"{filters}: {len(asker.answer)} hits, expected {history.OF_A_KIND}")
    return taken


_BEGINNING = history.COMMON[:-1]
_QUESTIONS: Mapping[str, Question] = {
    "list, the newest": _search(),
    "list of 50, with an offset of 100": _search(limit=50, offset=100),
    "list by creation": _search(sort_by="created_at"),
    "list by state": _search(sort_by="state_updated_at"),
    "list by status": _search(sort_by="status"),
    "list by id": _search(sort_by="thread_id"),
    "status that most have": _search(status="idle"),
    "status that few have": _search(status="busy"),
    "status that one in a thousand has": _search(status="error"),
    "metadata that all have": _search(metadata={"graph_id": "lead_agent"}),
    "metadata that a quarter has": _search(metadata={"quarter": 1}),
    "metadata that a quarter has, and a status": _search(metadata={"quarter": 1}, status="idle"),
    "metadata of a project left long ago": _search(metadata={"era": "left"}),
    "metadata of ten": lambda asker, turn: _kind(asker, turn, metadata={"kind": turn}),
    "words that all have": _search(query=f"{history.COMMON} "),
    "the beginning of a word that all have": _search(query=_BEGINNING),
    "a word that ten have": lambda asker, turn: _kind(asker, turn, query=f"kind{turn}x"),
    "count all": _count(),
    "count by status": _count(status="idle"),
    "count by metadata": _count(metadata={"quarter": 1}),
    "count by words": _count(query=f"{history.COMMON} "),
    "console: totals": _get("/console/stats"),
    "console: runs": _get("/console/runs"),
    "console: failed runs": _get("/console/runs?status=error"),
    "console: tokens of the day": _get("/console/usage?days=1"),
    "console: usage of 30 days": _get("/console/usage?days=30"),
    "cancel by status": lambda asker, _: asker.ask("POST", "/runs/cancel", {"status": "pending"}),
}


def growth(lab: Laboratory) -> Iterator[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield from _questions(lab)
    yield from _logs(lab)
    yield from _giants(lab)


def _questions(lab: Laboratory) -> Iterator[Row]:
    """The 95th percentile of each question on servers with their years behind them, asked in turn."""
    sizes = _QUICK if lab.quick else _SIZES
    asked = 3 if lab.quick else 40
    with ExitStack() as stack:
        askers = {size: Asker(stack.enter_context(_aged(lab, size))) for size in sizes}
        for what, question in _QUESTIONS.items():
            taken: dict[int, list[float]] = {size: [] for size in sizes}
            for turn in range(asked + 1):
                for size, asker in askers.items():
                    taken[size].append(question(asker, turn))
            slow = {size: percentile(times[1:], 95) for size, times in taken.items()}
            yield _compared(what, "p95", slow, {size: median(times[1:]) for size, times in taken.items()})


def _compared(what: str, figure: str, by_size: Mapping[int, float], middle: Mapping[int, float]) -> Row:
    """The figure at the largest size as a ratio to that at the smallest."""
    first, *_, last = by_size
    each = ", ".join(f"{value:.2f} at {size}" for size, value in by_size.items())
    medians = ", ".join(f"{value:.2f}" for value in middle.values())
    note = f"{figure} {each}; medians {medians}"
    return Row(what, by_size[last] / by_size[first], at_most(_MOST), "ms", by_size[last], note=note)


@contextmanager
def _aged(lab: Laboratory, threads: int) -> Iterator[Sika]:
    """A server whose read models hold so many threads, which its log does not have."""
    lab.say(f"read models of {threads} threads")
    home = lab.new_home()
    history.write_rows(home / "grown.db", threads)
    run(_adopt(lab, home))
    with lab.sika(home, warm=False) as server:
        Asker(server).ask("POST", "/threads/count", {})
        yield server


async def _adopt(lab: Laboratory, home: Path) -> None:
    async with compose.attach(compose.Options(home, lab.config)) as running:
        await history.adopt(home / "grown.db", running.log, home / "views.db")


def _logs(lab: Laboratory) -> Iterator[Row]:
    """What reading threads costs that are long past, and whether questions are answered while rows are built anew."""
    sizes, touched = ((100, 1000), 100) if lab.quick else ((10_000, 100_000), 10_000)
    read: dict[int, float] = {}
    for size in sizes:
        lab.say(f"a log of {size} threads")
        home = lab.new_home()
        run(_publish(lab, home, size))
        with lab.sika(home, warm=False) as server:
            asker = Asker(server)
            _await_rows(asker, size)
            server.settle()
            read[size] = _reading(server, asker)
            before = server.memory() / _MIB
            for number in range(touched):
                asker.ask("GET", f"/threads/{history.name(number)}")
            server.settle()
            after = server.memory() / _MIB
            yield Row(f"memory after {touched} of {size} threads were read (MiB)", after, None, "MiB", after, before)
            yield _rebuilding(server, asker, size)
    few, many = read
    note = f"the same thread {_READS} times; {read[few]:.2f} with {few} threads"
    yield Row("an old thread, kept: CPU per read", read[many] / read[few], at_most(_MOST), "ms", read[many], note=note)


async def _publish(lab: Laboratory, home: Path, threads: int) -> None:
    async with compose.attach(compose.Options(home, lab.config)) as running:
        await history.publish(running.log, threads)


def _await_rows(asker: Asker, threads: int) -> None:
    """Return when the read models have been built from the log."""
    deadline = time.monotonic() + _BUILT_SECONDS
    while time.monotonic() < deadline:
        with suppress(Broken):  # not answered within its time
            asker.ask("POST", "/threads/count", {})
            if asker.answer == threads:
                return
        time.sleep(0.5)
    raise Broken(f"the read models of {threads} threads were not built within {_BUILT_SECONDS:g} s")


def _reading(server: Sika, asker: Asker) -> float:
    """Milliseconds of CPU, those of nats-server included, to read a thread again that was read before."""
    path = f"/threads/{history.name(history.OPEN)}"
    asker.ask("GET", path)
    before = server.cpu()
    for _ in range(_READS):
        asker.ask("GET", path)
    return 1000 * (server.cpu() - before) / _READS


def _rebuilding(server: Sika, asker: Asker, threads: int) -> Row:
    """The slowest of the questions that are asked while the rows are built again."""
    asker.ask("POST", "/projections/rebuild", {})
    file, slowest, started = server.home / "views.db", 0.0, time.monotonic()
    old = file.stat().st_ino
    while file.stat().st_ino == old:
        slowest = max(slowest, asker.ask("POST", "/threads/search", {"select": _ROW}))
        if time.monotonic() - started > _BUILT_SECONDS:
            raise Broken(f"the read models of {threads} threads were not built within {_BUILT_SECONDS:g} s")
    seconds = time.monotonic() - started
    return Row(
        f"slowest search while {threads} threads are indexed anew",
        slowest,
        None,
        "ms",
        slowest,
        note=f"{seconds:.1f} s",
    )


# ── one giant thread ─────────────────────────────────────────────────────────────────────────────────────────────────

_GIANTS = (100_000, 1_000_000)
_QUICK_GIANTS = (2000,)
_SNAPSHOT_SECONDS = 120.0
_CLIENTS = 50
_TURNS = 10
_BESIDE = 1500
"""Events of the thread whose turns those of the giant are compared with: the same conversation, hardly any past."""


def _giants(lab: Laboratory) -> Iterator[Row]:
    """What one thread costs that has been talked in for years."""
    for size in _QUICK_GIANTS if lab.quick else _GIANTS:
        lab.say(f"one thread of {size} events")
        home = lab.new_home()
        run(_publish_giant(lab, home, size))
        with lab.sika(home, warm=False) as server:
            Asker(server).ask("GET", _STATE.format(giant.NAME))
            _await_snapshot(home)
            server.settle()
        with lab.sika(home, warm=False) as server:
            server.settle()
            asker = Asker(server)
            yield _cold_giant(server, asker, size)
            yield from _reading_giant(server, asker, size)
            yield _joining_giant(server, asker, size)
            yield _turns_of_giant(server, size)


_STATE = "/threads/{}/state?select=next"


async def _publish_giant(lab: Laboratory, home: Path, size: int) -> None:
    async with compose.attach(compose.Options(home, lab.config)) as running:
        log = running.log
        await history.store(log, giant.records(size, seq=await log.last()))
        await history.store(log, giant.records(_BESIDE, seq=await log.last(), name="beside"))


def _await_snapshot(home: Path) -> None:
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
    limit = at_most(50) if size <= _GIANTS[0] else None
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
    """CPU of turns, against those of a thread with as long a conversation and hardly any past."""
    cpu: dict[str, float] = {}
    for name in ("beside", giant.NAME):
        cpu[name] = _cpu_of(server, lambda n, name=name: run(ask(server, name, f"And {n}?", "tokens-50")), _TURNS)  # type: ignore[misc]
    ratio = cpu[giant.NAME] / cpu["beside"]
    return Row(f"a turn in a thread of {size} events", ratio, at_most(1.3), "ms of CPU", cpu[giant.NAME], cpu["beside"])
