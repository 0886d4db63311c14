"""Replay of every recorded thread in few processes: the imports of a process take longer than a hundred runs."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from actors.wiring.added import with_added
from actors.wiring.compose import reading
from actors.wiring.options import Options
from core.bus.endpoint import Endpoint
from core.errors import SikaError
from core.observe import logs
from core.replay.source import LogSource
from core.runs.replay import Report

CHUNK = 64
"""Threads that a process replays at a time."""
Show = Callable[[int, int], None]
"""Shows how many threads are done, of how many."""


class Replayed(msgspec.Struct, frozen=True):
    """The result of a thread. `report` is None for a thread that was left out: nothing since, or no run."""

    thread: str
    report: Report | None
    error: str = ""
    """Why the thread could not be replayed."""


class Part(msgspec.Struct, frozen=True):
    """The results of a process, and the CPU seconds that they took."""

    threads: Sequence[Replayed]
    cpu: float


async def replay_all(
    options: Options, place: Endpoint, since: timedelta | None, processes: int | None, show: Show
) -> list[Part]:
    """Replays all threads with an event in the last `since`; `show` is called after each chunk."""
    async with reading(options, place) as running:
        threads = sorted([aggregate.id async for aggregate in LogSource(running.log).threads()])
    after = (datetime.now(UTC) - since).isoformat() if since else ""
    chunks = [threads[begin : begin + CHUNK] for begin in range(0, len(threads), CHUNK)]
    workers = max(1, min(processes or os.cpu_count() or 1, len(chunks)))
    address = {field.name: getattr(place, field.name) for field in fields(place) if field.name != "trouble"}
    work = partial(_work, options, address, after)
    parts: list[Part] = []
    done, loop = 0, asyncio.get_running_loop()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            for part in asyncio.as_completed([loop.run_in_executor(pool, work, chunk) for chunk in chunks]):
                parts.append(await part)
                done += len(parts[-1].threads)
                show(done, len(threads))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return parts


def _work(options: Options, address: Mapping[str, Any], after: str, threads: Sequence[str]) -> Part:
    """Replays threads, in a process of its own."""
    logs.configure("critical", sys.stderr)  # the policies of a replay write what they wrote once before
    begun = time.process_time()
    results = asyncio.run(_chunk(options, Endpoint(**address), after, threads))
    return Part(results, time.process_time() - begun)


async def _chunk(options: Options, place: Endpoint, after: str, threads: Sequence[str]) -> list[Replayed]:
    from actors.debugging.rehearsal import Rehearsal
    from core.events import thread

    async with reading(options, place) as running:
        source = LogSource(running.log)
        rehearsal = Rehearsal(source, await with_added(options, running.log), running.log)
        results = []
        for identity in threads:
            tip = await running.log.tip(thread(identity)) if after else 0
            newest = [record async for record in running.log.read(thread(identity), after=tip - 1)] if tip else []
            if after and (not newest or newest[-1].at < after):
                results.append(Replayed(identity, None))
                continue
            try:
                report = await rehearsal.replay(identity)
                results.append(Replayed(identity, report if report.runs else None))
            except SikaError as error:
                results.append(Replayed(identity, None, f"{type(error).__name__}: {error}"))
        return results
