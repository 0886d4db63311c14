"""Recorded runs replayed in parallel processes, beside the CPU that they took when they were live."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from actors.debugging import rehearsal_all
from actors.wiring import compose
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.events import Event, Record, thread
from core.log.store import EventLog
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, cpu_seconds
from tests.support.workers import Client, worker

_RECORDED = 10_000
_LIVE = 60
_WARM = 10
_LIMIT = 0.5
_CONCURRENT = 32
_LOOK = {"name": "ls", "args": {"description": "look", "path": "/mnt/user-data/workspace"}}


def replay_runs(lab: Laboratory) -> Iterator[Row]:
    """CPU milliseconds of a replayed run, the start of the processes included, and runs a second."""
    count = _RECORDED // (20 if lab.quick else 1)
    live, replayed, seconds, differing = asyncio.run(_measured(count))
    yield Row(
        f"replay of {count} runs of 3 model calls, all processes",
        replayed / live,
        at_most(_LIMIT),
        "ms CPU/run",
        ours=1000 * replayed,
        bare=1000 * live,
        note=f"bare: the live run; {count / seconds:.0f} runs/s, {differing} differ",
    )


async def _measured(count: int) -> tuple[float, float, float, int]:
    with TemporaryDirectory() as folder:
        home = Path(folder)
        turns = [{"tool_calls": [_LOOK]}, {"tool_calls": [_LOOK]}, {"text": "Done."}]
        (home / "scripts.json").write_text(json.dumps({"m": {"turns": turns}}))
        command = [sys.executable, "-m", "tests.support.model_server", "--count-only", "--scripts"]
        models = await asyncio.create_subprocess_exec(
            *command, str(home / "scripts.json"), stdout=asyncio.subprocess.PIPE
        )
        assert models.stdout is not None
        try:
            url = (await models.stdout.readline()).decode().strip()
            (home / "config.yaml").write_text(
                json.dumps({"models": [{"name": "m", "model": "m", "base_url": url, "api_key": "none"}]})
            )
            live = await _live(home, models.pid)
        finally:
            with suppress(ProcessLookupError):
                models.terminate()
            await models.wait()
        return live, *await _replayed(home, count)


async def _live(home: Path, models: int) -> float:
    """Returns the CPU seconds of a live run: of this process and its nats-server."""
    async with (
        embedded.start(home) as server,
        worker(Endpoint(server.url, token=server.token), home, home / "config.yaml", skills=True) as system,
    ):
        client = Client(system)
        for number in range(_WARM + _LIVE):
            if number == _WARM:
                before = cpu_seconds(os.getpid()) - cpu_seconds(models)
            await client.said(await client.thread(f"live-{number}"), "Go on.", "m")
        return (cpu_seconds(os.getpid()) - cpu_seconds(models) - before) / _LIVE


async def _replayed(home: Path, count: int) -> tuple[float, float, int]:
    """Copies one thread until there are so many, and replays all. Returns CPU seconds a run, seconds, differing."""
    options = compose.Options(home, config=home / "config.yaml")
    async with embedded.start(home) as server:
        place = Endpoint(server.url, token=server.token)
        async with compose.reading(options, place) as running:
            records = [record async for record in running.log.read(thread("live-0"))]
            for begin in range(_WARM + _LIVE, count, _CONCURRENT):
                numbers = range(begin, min(begin + _CONCURRENT, count))
                await asyncio.gather(*(_copy(running.log, f"copy-{number}", records) for number in numbers))
        begun = time.monotonic()
        parts = await rehearsal_all.replay_all(options, place, None, None, lambda done, of: None)
        seconds = time.monotonic() - begun
    reports = [one.report for part in parts for one in part.threads if one.report is not None]
    assert len(reports) == count, f"{len(reports)} of {count} threads were replayed"
    differing = sum(report.divergence is not None for report in reports)
    return sum(part.cpu for part in parts) / count, seconds, differing


async def _copy(log: EventLog, identity: str, records: list[Record]) -> None:
    seq = 0
    for record in records:
        event = record.event
        assert isinstance(event, Event)
        [written] = await log.append(thread(identity), [event], expected=seq, actor=record.head.actor, run=record.run)
        seq = written.seq
