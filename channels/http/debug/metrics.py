"""Metrics for Prometheus: the numbers of the log and of this process."""

from __future__ import annotations

import asyncio
import importlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Annotated, get_args
from weakref import WeakKeyDictionary

from aiohttp import web

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.live import LIVE, Live, Services
from channels.http.server.routes import ROOT
from core.bus.streams import message_count
from core.chat.status import statuses
from core.config.load import Config
from core.errors import NotFound, Unavailable
from core.events import Record
from core.observe.metrics import Family, Metrics
from core.runtime.admission import By

MEDIA = "text/plain"
FORMAT = "text/plain; version=0.0.4; charset=utf-8"
BEAT_SECONDS = 0.5
"""Interval at which received metrics are counted, and the event loop is measured."""
LAG_BEATS = 120
ASK_SECONDS = 1.0
"""Time for other processes to send their numbers. Late ones are left out."""


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name, "gauge", text, labels)


STREAMS = _gauge("sika_http_open_streams", "Responses of this process that follow a thread.")
LAG = _gauge("sika_event_loop_lag_seconds", "The longest delay of the event loop in the last minute.")
POSITION = _gauge("sika_log_position", "Sequence of the newest event that this process has heard of.")
BEHIND = _gauge("sika_views_behind_events", "Events that the read models of this process do not have yet.")
OPEN = _gauge("sika_runs_open", "Runs that have not ended.", "status")
AT_WORK = _gauge("sika_runs_at_work", "Runs that this process works on, without those that wait for others.")
WAITING = _gauge("sika_runs_waiting", "Runs that wait in this process for a place: it is at its bound.")
BOUND = _gauge("sika_runs_bound", "1 for what keeps runs waiting in this process now, else 0.", "bound")
REACHED = _gauge("sika_runs_bound_ratio", "The part of a bound that is reached: from 1 on, runs wait.", "bound")
BURIED = _gauge("sika_dead_letters", "Wake-ups that were given up and put aside.")
IN_FLIGHT = _gauge("sika_actor_in_flight", "Wake-ups and requests that this process works on.", "actor")
HANDLED = _gauge("sika_actor_handled", "Wake-ups and requests that this process worked on since its start.", "actor")
FAILED = _gauge("sika_actor_failed", "Failed attempts of this process since its start.", "actor")
RESTARTS = _gauge("sika_actor_restarts", "Restarts of loops of this process after an error.", "actor")
ACTOR_LAG = _gauge("sika_actor_lag_events", "Events of the log that this process has not dispatched yet.", "actor")
CHAT_UP = _gauge("sika_chat_connected", "1 if an account of a chat platform is connected, else 0.", "account")
CHAT_IN = _gauge("sika_chat_received", "Messages that an account's process received since its start.", "account")
CHAT_OUT = _gauge("sika_chat_sent", "Messages and changes that an account's process sent since its start.", "account")
CHAT_FAILED = _gauge("sika_chat_failed", "Calls of the platform that failed since the process's start.", "account")
CHAT_RECONNECTS = _gauge("sika_chat_reconnects", "Connections after the first since the process's start.", "account")
CHAT_LIMITED = _gauge("sika_chat_rate_limited", "1 while the platform asks to wait, else 0.", "account")
CHAT_OPEN = _gauge("sika_chat_open_deliveries", "Conversations in which something is to be said.", "account")
DURATION = _gauge("sika_actor_duration_seconds", "Duration of the newest 512 pieces of work.", "actor", "quantile")

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

    async def text(self, streams: int) -> bytes:
        """Everything as it is now, as Prometheus reads it."""
        await asyncio.to_thread(importlib.import_module, "channels.http.server.exposition")
        from channels.http.server import exposition

        await self._count()
        numbers = self._metrics.numbers
        log, views = self._services.log, self._services.views
        values: dict[Family, Values] = {
            **numbers.counts,
            STREAMS: _one(streams),
            LAG: _one(max(self._lags, default=0.0)),
            POSITION: _one(log.position),
            BEHIND: _one(max(0, log.position - views.seq)),
            **self._places(),
            **self._actors(),
        }
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                values[OPEN] = await self._open()
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                values[BURIED] = _one(await message_count(log.bus, "dlq"))
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(2 * ASK_SECONDS):  # a frozen process is waited for, too
                values.update(await self._chats())
        return exposition.text(values, numbers.histograms)

    def _places(self) -> dict[Family, Values]:
        """Returns the runs that have and that want a place, and what keeps the latter waiting."""
        if self._services.load is None:
            return {}
        load = self._services.load()
        return {
            AT_WORK: _one(load.at_work),
            WAITING: _one(load.waiting),
            BOUND: {(bound,): bound == load.by for bound in get_args(By)},
            REACHED: {(bound,): part for bound, part in load.reached.items()},
        }

    def _actors(self) -> dict[Family, Values]:
        """Returns the work of this process's actors."""
        report, position = self._services.report, self._services.log.position
        actors = report().actors if report else ()
        families: dict[Family, Values] = {
            IN_FLIGHT: {(actor.name,): actor.in_flight for actor in actors},
            HANDLED: {(actor.name,): actor.handled for actor in actors},
            FAILED: {(actor.name,): actor.failed for actor in actors},
            RESTARTS: {(actor.name,): actor.restarts for actor in actors},
            ACTOR_LAG: {(a.name,): max(0, position - a.position) for a in actors if a.position is not None},
            DURATION: {
                (actor.name, quantile): ms / 1000
                for actor in actors
                for quantile, ms in (("0.5", actor.p50_ms), ("0.95", actor.p95_ms))
                if ms is not None
            },
        }
        return {family: values for family, values in families.items() if values}

    async def _chats(self) -> dict[Family, Values]:
        """Returns the numbers of the accounts of chat platforms, as their processes say."""
        accounts = await self._services.accounts.all()
        enabled = {name: True for name, account in accounts.items() if account.settings.enabled}
        reports = {(status.account,): status for status in await statuses(self._services.log.bus, enabled)}
        families: dict[Family, Values] = {
            CHAT_UP: {name: status.state == "connected" for name, status in reports.items()},
            CHAT_IN: {name: status.received for name, status in reports.items()},
            CHAT_OUT: {name: status.sent for name, status in reports.items()},
            CHAT_FAILED: {name: status.failures for name, status in reports.items()},
            CHAT_RECONNECTS: {name: status.reconnects for name, status in reports.items()},
            CHAT_LIMITED: {name: bool(status.rate_limited_until) for name, status in reports.items()},
            CHAT_OPEN: {name: n for name, status in reports.items() if (n := status.open_deliveries) is not None},
        }
        return {family: values for family, values in families.items() if values}

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


def _opened(config: Config) -> bool:
    return config.metrics.public


ROUTES = Routes(mounts=ROOT, opened=_opened)


@ROUTES("GET", "/metrics", "admin", role="admin", errors=(404,))
async def metrics(call: Call) -> Annotated[web.Response, MEDIA]:
    """Metrics for Prometheus.

    What begins with `sika_` and ends with `_total` or is a histogram is counted from the log, which every replica hears
    as a whole: take the largest of the replicas, not their sum. Counting begins with the process. The rest is about
    the process that answers.
    """
    if not call.config.metrics.enabled:
        raise NotFound("metrics.enabled is false")
    text = await _meter(call.live).text(call.live.listeners)
    return web.Response(body=text, headers={"Content-Type": FORMAT, "Cache-Control": "no-store"})


def _one(value: float) -> Values:
    return {(): value}
