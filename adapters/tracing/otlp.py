"""Sends spans of this process's runs to a collector, and what is measured of them: OTLP over HTTP, as JSON.

It follows the log as the read models do, so no run waits for it, and it is told of whatever happened while nobody
looked. When the collector is down, spans are dropped and counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from contextlib import suppress

import aiohttp
import anyio
import msgspec
import structlog

from adapters.tracing import asked, encoding
from adapters.tracing.measures import Measures
from adapters.tracing.spans import Span, Spans, Value
from core.errors import Unavailable
from core.events import Record, thread
from core.log import Ear, EventLog
from core.settings import Tracing

log = structlog.get_logger("sika.tracing")

GATHER_SECONDS = 1.0
BATCH = 512
"""Spans in one request."""
QUEUED = 4096
"""Spans that may wait."""
SEND_SECONDS = 10.0
TRIES = 4
PAUSE_SECONDS = 1.0
"""Before the second try; then twice as long each time."""
LONGEST_PAUSE_SECONDS = 30.0
"""A collector's own wish is followed up to this."""
FLUSH_SECONDS = 2.0
"""How long the end of the process waits for the last spans."""
AGAIN = frozenset({429, 502, 503, 504})
"""Answers after which another try may help (OTLP, §Retryable response codes)."""
MEASURE_SECONDS = 60.0
"""How often measures are sent (OpenTelemetry's default, `OTEL_METRIC_EXPORT_INTERVAL`)."""


class Exporter:
    """One per process. `worker`: its name; the spans of a run are told by the process that does it, and by no other."""

    def __init__(self, log: EventLog, worker: str, settings: Tracing, version: str = "") -> None:
        self.sent = 0
        self.dropped = 0
        self._log = log
        self._spans = Spans(worker)
        self._seq = log.position
        self._waiting: deque[Span] = deque()
        self._some = asyncio.Event()
        self._measures = Measures(time.time_ns())
        self._refused = ""
        self._traces, self._metrics = _urls(settings.otlp.endpoint or "")
        self._headers = {name: secret.reveal() for name, secret in settings.otlp.headers.items()}
        environment = asked.environment(settings)
        self._resource: dict[str, Value] = {
            "service.name": settings.otlp.service_name,
            "service.instance.id": worker,
            **({"service.version": version} if version else {}),
            **({"deployment.environment.name": environment} if environment else {}),
        }

    async def run(self) -> None:
        """Runs for as long as the process."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SEND_SECONDS)) as session:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow)
                    tasks.start_soon(self._send_all, session)
                    tasks.start_soon(self._measure, session)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(FLUSH_SECONDS):
                    while self._waiting:
                        await self._send(session, tries=1)
                    await self._tell(session)
                self._drop(len(self._waiting), "the process ends")
                self._waiting.clear()

    # ── from the log ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _follow(self) -> None:
        with self._log.listen(None) as ear:
            behind = True
            try:
                while True:
                    try:
                        behind = await self._hear(ear, behind)
                    except Unavailable as error:
                        log.warning("spans wait for the log", error=str(error))
                        behind = True
                    await asyncio.sleep(GATHER_SECONDS)
            finally:
                records, lost = await ear.drain()
                for record in [] if behind or lost else records:
                    self._put(record)

    async def _hear(self, ear: Ear, behind: bool) -> bool:
        """Take in what came; whether something was lost, and the log must be read."""
        if behind:
            async for record in self._log.between(self._seq, await self._log.last()):
                await self._take(record)
        records, lost = await ear.take()
        for record in records:
            await self._take(record)
        return lost

    async def _take(self, record: Record) -> None:
        if record.seq > self._seq and self._spans.missing(record):
            async for earlier in self._log.read(thread(record.aggregate.id), upto=record.seq - 1):
                self._spans.add(earlier)  # told by whoever did it then
        self._put(record)

    def _put(self, record: Record) -> None:
        if record.seq <= self._seq:
            return
        self._seq = record.seq
        for span in self._spans.add(record):
            self._measures.add(span)
            if len(self._waiting) < QUEUED:
                self._waiting.append(span)
                self._some.set()
            else:
                self.dropped += 1

    # ── to the collector ────────────────────────────────────────────────────────────────────────────────────────────

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                await self._send(session, tries=TRIES)

    async def _send(self, session: aiohttp.ClientSession, *, tries: int) -> None:
        """The next batch; when that is cancelled, the batch waits on."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            refused, reason = await self._try(session, encoding.spans(batch, self._resource), tries)
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))
            raise
        refused = len(batch) if refused is None else refused
        self.sent += len(batch) - refused
        self._drop(refused, reason)

    async def _try(self, session: aiohttp.ClientSession, body: bytes, tries: int) -> tuple[int | None, str]:
        """How many spans the collector did not take (None: any), and why."""
        number = 1
        while True:
            status, wish, answer = await self._post(session, self._traces, body)
            if 200 <= status < 300:
                return _rejected(answer)
            if number == tries or (status and status not in AGAIN):
                return None, f"HTTP {status}" if status else answer
            pause = PAUSE_SECONDS * 2 ** (number - 1) * random.uniform(0.8, 1.2)
            await asyncio.sleep(min(max(pause, wish), LONGEST_PAUSE_SECONDS))
            number += 1

    async def _measure(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(MEASURE_SECONDS)
            await self._tell(session)

    async def _tell(self, session: aiohttp.ClientSession) -> None:
        """All that was measured so far. What is not taken now is part of the next; a collector may take spans only."""
        if not self._measures.values:
            return
        body = encoding.measures(self._measures, self._resource, time.time_ns())
        status, _, answer = await self._post(session, self._metrics, body)
        reason = "" if 200 <= status < 300 else f"HTTP {status}" if status else answer
        if reason and reason != self._refused:
            log.warning("measures not taken", reason=reason)
        self._refused = reason

    def _drop(self, spans: int, reason: str) -> None:
        self.dropped += spans
        if spans:
            log.warning("spans dropped", spans=spans, reason=reason, in_all=self.dropped)

    async def _post(self, session: aiohttp.ClientSession, url: str, body: bytes) -> tuple[int, float, str]:
        """Status (0: none), the pause in seconds that the collector wishes, and what it said."""
        headers = {**self._headers, "Content-Type": "application/json"}
        try:
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                wish = response.headers.get("Retry-After", "")
                return response.status, float(wish) if wish.isdigit() else 0.0, await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return 0, 0.0, type(error).__name__


def _urls(endpoint: str) -> tuple[str, str]:
    """Where spans and measures go."""
    base = endpoint.rstrip("/").removesuffix("/v1/traces")
    return f"{base}/v1/traces", f"{base}/v1/metrics"


def _rejected(answer: str) -> tuple[int, str]:
    """How many spans a collector that took the request did not take (OTLP, §Partial success), and why."""
    with suppress(msgspec.MsgspecError, ValueError, TypeError, AttributeError):
        partial = msgspec.json.decode(answer).get("partialSuccess") or {}
        return int(partial.get("rejectedSpans", 0)), str(partial.get("errorMessage", ""))[:200]
    return 0, ""
