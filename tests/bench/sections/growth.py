"""Years of use: what questions, old threads and new read models cost when there are thirty times as many threads."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from core.thread.threads import KEPT_BYTES
from tests.bench import history, processes
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_least, at_most, median, percentile
from tests.bench.processes import Broken, Sika
from tests.bench.sections.threads import Asker
from tests.support.model_server import run

_SIZES = (10_000, 100_000, 300_000)
_QUICK = (100, 1000)
_TIMES, _FEW_TIMES = 100, 10
"""Each question is asked."""
_READS = 1000
_TOUCHED = 10_000
_BUILT_SECONDS = 900.0
_MIB = 2**20
_ROW = ["thread_id", "updated_at", "metadata", "status"]
_MOST = 3.0
"""Times as long as with the fewest threads."""
_NATS_MS = 0.5
_FOLDED = 3
"""Bytes of memory that a byte of events takes in a folded state."""

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


def _run(asker: Asker, _: int) -> float:
    body = {"input": {"messages": [{"type": "human", "content": "Hello?"}]}, "if_not_exists": "create"}
    body |= {"assistant_id": "lead_agent", "context": {"model_name": "tokens-1"}}
    return asker.ask("POST", f"/threads/{uuid4()}/runs/wait", body)


_BEGINNING = history.COMMON[:-1]
_QUESTIONS: Mapping[str, Question] = {
    "list, the newest": _search(),
    "list of 50, with an offset of 100": _search(limit=50, offset=100),
    "list by creation": _search(sort_by="created_at"),
    "list by state": _search(sort_by="state_updated_at"),
    "list by status": _search(sort_by="status"),
    "list by id": _search(sort_by="thread_id"),
    "status that most have": _search(status="idle"),
    "status that twenty have": _search(status="interrupted"),
    "status that one in a thousand has": _search(status="error"),
    "metadata that all have": _search(metadata={"graph_id": "lead_agent"}),
    "metadata that a quarter has": _search(metadata={"quarter": 1}),
    "metadata that a quarter has, and a status": _search(metadata={"quarter": 1}, status="idle"),
    "two metadata values that many have": _search(metadata={"quarter": 1, "third": 1}),
    "metadata of a project left long ago": _search(metadata={"era": "left"}),
    "metadata of ten": lambda asker, turn: _kind(asker, turn, metadata={"kind": turn}),
    "metadata that many have, and of a project left": _search(metadata={"quarter": 1, "era": "left"}),
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
    "a run in a new thread, tokens limited by day": _run,
}
_GROWING: Mapping[str, Question] = {
    "count by two metadata values that many have": _count(metadata={"quarter": 1, "third": 1}),
    "words that all have, a status that few have": _search(query=f"{history.COMMON} ", status="error"),
}
"""They have no target: what they cost follows the number of threads, or of messages."""


def growth(lab: Laboratory) -> Iterator[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    config = processes.configure(lab.folder / "growth.yaml", lab.models, limits={"tokens_per_day": 10**12})
    with ExitStack() as stack:
        servers: dict[int, Sika] = {}
        for size, home in _grown(lab, config):
            servers[size] = stack.enter_context(processes.sika(home, config))
            servers[size].settle()
        yield from _questions(lab, {size: Asker(server) for size, server in servers.items()})
        first, last = min(servers), max(servers)
        yield from (_reading(servers[size], size) for size in (first, last))
        yield _touching(lab, servers[last], last)
        yield _rebuilding(lab, servers[first], first)


def _grown(lab: Laboratory, config: Path) -> Iterator[tuple[int, Path]]:
    """Data directories with more and more threads. Each is a copy of the one before, and goes on from there."""
    sizes = _QUICK if lab.quick else _SIZES
    began = datetime.now(UTC) - sizes[-1] * timedelta(days=1) / history.DAILY
    before, home = 0, lab.new_home()
    for size in sizes:
        lab.say(f"a log of {size} threads")
        started = time.monotonic()
        run(history.extend(home, config, history.Stretch(before, size, began)))
        lab.say(f"written in {time.monotonic() - started:.0f} s")
        before, grown = size, home
        if size < sizes[-1]:
            home = lab.new_home()
            shutil.copytree(grown, home, dirs_exist_ok=True)
        yield size, grown


def _questions(lab: Laboratory, askers: Mapping[int, Asker]) -> Iterator[Row]:
    """The 95th percentile of each question on servers with their years behind them, asked in turn."""
    for what, question in {**_QUESTIONS, **_GROWING}.items():
        taken: dict[int, list[float]] = {size: [] for size in askers}
        limit = at_most(_MOST) if what in _QUESTIONS else None
        for turn in range(1 + (3 if lab.quick else _TIMES if limit else _FEW_TIMES)):
            for size, asker in askers.items():
                taken[size].append(question(asker, turn))
        slow = {size: percentile(times[1:], 95) for size, times in taken.items()}
        each = ", ".join(f"{value:.2f} at {size}" for size, value in slow.items())
        medians = ", ".join(f"{median(times[1:]):.2f}" for times in taken.values())
        few, many = slow[min(slow)], slow[max(slow)]
        yield Row(what, many / few, limit, "ms", many, note=f"p95 {each}; medians {medians}")


def _reading(server: Sika, threads: int) -> Row:
    """What it costs nats-server to read a thread again that was read before, and in which nothing happened since."""
    asker, path = Asker(server), f"/threads/{history.name(history.PAUSED)}"
    asker.ask("GET", path)
    before, all_before = server.nats_cpu(), server.cpu()
    for _ in range(_READS):
        asker.ask("GET", path)
    spent, all_spent = (1000 * seconds / _READS for seconds in (server.nats_cpu() - before, server.cpu() - all_before))
    note = f"CPU of nats-server; {all_spent:.2f} of all processes"
    return Row(f"an old thread, kept, with {threads} threads (ms)", spent, at_most(_NATS_MS), "ms", spent, note=note)


def _touching(lab: Laboratory, server: Sika, threads: int) -> Row:
    """The memory that threads take which were looked at, the oldest ones."""
    touched = threads if lab.quick else _TOUCHED
    lab.say(f"reading {touched} threads")
    server.settle()
    asker, before, started = Asker(server), server.memory() / _MIB, time.monotonic()
    for number in range(touched):
        asker.ask("GET", f"/threads/{history.name(number)}")
    seconds = time.monotonic() - started
    server.settle()
    more = server.memory() / _MIB - before
    note = f"{touched} of {threads}, {seconds:.0f} s; {before:.0f} MiB before"
    return Row("memory for threads that were read (MiB)", more, at_most(_FOLDED * KEPT_BYTES / _MIB), note=note)


def _rebuilding(lab: Laboratory, server: Sika, threads: int) -> Row:
    """The share of questions that are answered while the rows are built again."""
    lab.say(f"building the read models of {threads} threads again")
    asker = Asker(server)
    asker.ask("POST", "/projections/rebuild", {})
    file, started, taken, failed = server.home / "views.db", time.monotonic(), list[float](), 0
    old = file.stat().st_ino
    while file.stat().st_ino == old:
        try:
            taken.append(asker.ask("POST", "/threads/search", {"select": _ROW}))
        except Broken:
            failed += 1
        if time.monotonic() - started > _BUILT_SECONDS:
            raise Broken(f"the read models of {threads} threads were not built within {_BUILT_SECONDS:g} s")
    share = len(taken) / (len(taken) + failed)
    note = f"{time.monotonic() - started:.0f} s; p95 {percentile(taken, 95):.1f}, slowest {max(taken):.0f} ms"
    return Row(f"searches answered while {threads} threads are indexed", share, at_least(1), note=note)
