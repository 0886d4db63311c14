"""Cold start: from nothing to the first healthy answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.bench import processes
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, median

_IMPORTS = "import asyncio, anyio, msgspec, nats, aiosqlite, structlog, aiohttp.web, yaml, uvloop"
"""What a server needs at once, whoever writes it."""


def cold(lab: Laboratory) -> Iterator[Row]:
    tries, threads = (1, 20) if lab.quick else (5, 1000)
    lab.say("cold starts on fresh data directories")
    imports, fresh, answered = [], [], []
    for _ in range(tries):
        imports.append(processes.timed(["-c", _IMPORTS]))
        with processes.cold_start(lab.new_home(), lab.config) as (server, seconds):
            first = lab.load(server, "tokens-1", 1, 1).samples[0].total
            fresh.append(seconds)
            answered.append(seconds + first)
    yield _row("fresh data directory (seconds)", fresh, imports)
    yield Row("  … and until a run has been answered (seconds)", median(answered), None, "s", median(answered))

    lab.say(f"cold starts on {threads} threads")
    home = lab.new_home()
    with lab.sika(home, warm=False) as server:
        lab.load(server, "tokens-1", threads, 50)
        server.settle()
    imports, full = [], []
    for _ in range(tries):
        imports.append(processes.timed(["-c", _IMPORTS]))
        full.append(_start(home, lab.config))
    yield _row(f"{threads} threads (seconds)", full, imports)


def _start(home: Path, config: Path) -> float:
    with processes.cold_start(home, config) as (_, seconds):
        return seconds


def _row(what: str, starts: list[float], imports: list[float]) -> Row:
    own = median(start - base for start, base in zip(starts, imports, strict=True))
    note = f"of which {median(imports):.2f} s of imports are taken off"
    return Row(what, own, at_most(1.0), "s", median(starts), note=note)
