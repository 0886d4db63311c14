"""What Prometheus reads: the numbers of the log and of this process, in its text format 0.0.4."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from weakref import WeakKeyDictionary

from aiohttp import web

from channels.http import live as alive
from channels.http.live import LIVE, Live, Services
from channels.http.routes import ROOT, Route
from core.config import Config
from core.errors import NotFound, Unavailable
from core.events import Record
from core.metrics import Family, Histogram, Metrics
from core.redaction import redactor
from core.streams import message_count

MEDIA = "text/plain"
FORMAT = "text/plain; version=0.0.4; charset=utf-8"
BEAT_SECONDS = 0.5
"""How often what was heard is counted, and the event loop is looked at."""
LAG_BEATS = 120
ASK_SECONDS = 1.0
"""How long others may take to tell their numbers. Who does not is left out."""
_STARTED = time.time()


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name, "gauge", text, labels)


STREAMS = _gauge("sika_http_open_streams", "Responses of this process that follow a thread.")
LAG = _gauge("sika_event_loop_lag_seconds", "The longest delay of the event loop in the last minute.")
POSITION = _gauge("sika_log_position", "Sequence of the newest event that this process has heard of.")
BEHIND = _gauge("sika_views_behind_events", "Events that the read models of this process do not have yet.")
OPEN = _gauge("sika_runs_open", "Runs that have not ended.", "status")
BURIED = _gauge("sika_dead_letters", "Wake-ups that were given up and put aside.")
MEMORY = _gauge("process_resident_memory_bytes", "Resident memory.")
CPU = Family("process_cpu_seconds_total", "counter", "CPU time, user and system.")
SINCE = _gauge("process_start_time_seconds", "Start of the process, in seconds since 1970.")

Values = Mapping[tuple[str, ...], float]


class Meter:
    """Counts what the log of one application says, from its start on. One that fell behind reads the log."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._metrics = Metrics()
        self._lags: deque[float] = deque(maxlen=LAG_BEATS)
        self._seq = services.log.position
        self._behind = False
        self._counting = asyncio.Lock()
        self._listening = services.log.listen(None)
        self._ear = self._listening.__enter__()  # at once: what comes before `run` has begun is heard, too

    async def run(self) -> None:
        """Runs for as long as the application."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                begin = loop.time()
                await asyncio.sleep(BEAT_SECONDS)
                self._lags.append(max(0.0, loop.time() - begin - BEAT_SECONDS))
                await self._count()
                if self._behind:
                    with suppress(Unavailable):
                        await self._catch_up()
        finally:
            self._listening.__exit__(None, None, None)

    async def _count(self) -> None:
        async with self._counting:
            if self._behind:
                return
            records, self._behind = await self._ear.drain()
            for record in records:
                self._add(record)

    async def _catch_up(self) -> None:
        log = self._services.log
        async for record in log.between(self._seq, await log.last()):
            self._add(record)
        self._behind = False

    def _add(self, record: Record) -> None:
        if record.seq > self._seq:
            self._metrics.add(record)
            self._seq = record.seq

    async def text(self, streams: int) -> str:
        """Everything as it is now."""
        await self._count()
        numbers = self._metrics.numbers
        log, views = self._services.log, self._services.views
        values: dict[Family, Values] = {
            **numbers.counts,
            STREAMS: _one(streams),
            LAG: _one(max(self._lags, default=0.0)),
            POSITION: _one(log.position),
            BEHIND: _one(max(0, log.position - views.seq)),
            CPU: _one(time.process_time()),
            SINCE: _one(_STARTED),
        }
        if (memory := _resident()) is not None:
            values[MEMORY] = _one(memory)
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                values[OPEN] = await self._open()
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                values[BURIED] = _one(await message_count(log.bus, "dlq"))
        return "".join(f"{line}\n" for line in _lines(values, numbers.histograms))

    async def _open(self) -> Values:
        return {(status,): runs for status, runs in (await self._services.views.open_counts()).items()}


_METERS: WeakKeyDictionary[Live, Meter] = WeakKeyDictionary()


def _meter(live: Live) -> Meter:
    """The application's; made when it is first asked for."""
    meter = _METERS.get(live)
    if meter is None:
        meter = _METERS[live] = Meter(live.services)
        live.background(meter.run())
    return meter


async def running(app: web.Application) -> AsyncIterator[None]:
    """For `Application.cleanup_ctx`, after `Live.running`: count from the start on, not from the first question on."""
    if app[LIVE].services.config().metrics.enabled:
        _meter(app[LIVE])
    yield


async def metrics(request: web.Request) -> web.Response:
    """Metrics for Prometheus.

    What begins with `sika_` and ends with `_total` or is a histogram is counted from the log, which every replica hears
    as a whole: take the largest of the replicas, not their sum. Counting begins with the process. The rest is about
    the process that answers.
    """
    live = alive.of(request)
    if not live.services.config().metrics.enabled:
        raise NotFound("metrics.enabled is false")
    text = await _meter(live).text(live.listeners)
    return web.Response(body=text.encode(), headers={"Content-Type": FORMAT, "Cache-Control": "no-store"})


# ── the format ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(
    values: Mapping[Family, Values], histograms: Mapping[Family, Mapping[tuple[str, ...], Histogram]]
) -> Iterator[str]:
    for family, rows in values.items():
        yield from _head(family)
        for labels, value in rows.items():
            yield f"{family.name}{_labels(family, labels)} {_number(value)}"
    for family, found in histograms.items():
        yield from _head(family)
        for labels, histogram in found.items():
            below = list(accumulate(histogram.counts))
            for bound, count in zip((*family.buckets, float("inf")), below, strict=True):
                yield f"{family.name}_bucket{_labels(family, labels, le=_number(bound))} {count}"
            yield f"{family.name}_sum{_labels(family, labels)} {_number(histogram.sum)}"
            yield f"{family.name}_count{_labels(family, labels)} {below[-1]}"


def _head(family: Family) -> tuple[str, str]:
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {family.name} {text}", f"# TYPE {family.name} {family.kind}"


def _labels(family: Family, values: tuple[str, ...], **more: str) -> str:
    pairs = [*zip(family.labels, values, strict=True), *more.items()]
    listed = ",".join(f'{name}="{_escaped(redactor.known(value))}"' for name, value in pairs)
    return f"{{{listed}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


# ── the process ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _one(value: float) -> Values:
    return {(): value}


def _resident() -> int | None:
    """Bytes; None where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _opened(config: Config) -> bool:
    return config.metrics.public


ROUTES = (
    Route(
        "GET",
        "/metrics",
        metrics,
        {200: MEDIA},
        errors=(404,),
        scope="admin",
        role="admin",
        mounts=ROOT,
        opened=_opened,
    ),
)
