"""Export of the spans of this process's runs, and of measures, to a collector: OpenTelemetry's OTLP over HTTP.

The exporter follows the log as the read models do: no run waits for it, and it catches up with missed events.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from adapters.tracing import asked
from adapters.tracing.flush import flush
from adapters.tracing.spans import Spans, Value
from core.config.settings import Tracing
from core.errors import Unavailable
from core.events import Record, thread
from core.log.feed import Listener
from core.log.store import EventLog

if TYPE_CHECKING:
    from adapters.tracing.pipeline import Pipeline

log = structlog.get_logger("sika.tracing")

GATHER_SECONDS = 1.0
FLUSH_SECONDS = 2.0
"""Timeout of the last spans at the end of the process."""


class Exporter:
    """Exports spans. One per process; `worker` is its name. Only the process of a run exports its spans."""

    _pipeline: Pipeline
    """Set by `run`."""

    def __init__(self, log: EventLog, worker: str, settings: Tracing, version: str = "") -> None:
        self._log = log
        self._spans = Spans(worker)
        self._seq = log.position
        self._endpoint = settings.otlp.endpoint or ""
        self._headers = {name: secret.reveal() for name, secret in settings.otlp.headers.items()}
        environment = asked.environment(settings)
        self._resource: dict[str, Value] = {
            "service.name": settings.otlp.service_name,
            "service.instance.id": worker,
            **({"service.version": version} if version else {}),
            **({"deployment.environment.name": environment} if environment else {}),
        }

    async def run(self) -> None:
        """Follows the log until cancelled; then flushes."""
        self._pipeline = await anyio.to_thread.run_sync(self._connect)
        try:
            await self._follow()
        finally:
            with anyio.CancelScope(shield=True):
                await flush(self._pipeline.ends, FLUSH_SECONDS)

    def _connect(self) -> Pipeline:
        """Returns the pipeline. Call it in a thread: the SDK's import takes 0.2 s."""
        from adapters.tracing.pipeline import Pipeline

        return Pipeline(self._endpoint, self._headers, self._resource)

    async def _follow(self) -> None:
        with self._log.listen(None) as listener:
            behind = True
            try:
                while True:
                    try:
                        behind = await self._advance(listener, behind)
                    except Unavailable as error:
                        log.warning("spans wait for the log", error=str(error))
                        behind = True
                    await asyncio.sleep(GATHER_SECONDS)
            finally:
                records, lost = await listener.drain()
                for record in [] if behind or lost else records:
                    self._put(record)

    async def _advance(self, listener: Listener, behind: bool) -> bool:
        """Adds the events that came. Returns True if some were lost, and the log must be read."""
        if behind:
            async for record in self._log.between(self._seq, await self._log.last()):
                await self._take(record)
        records, lost = await listener.take()
        for record in records:
            await self._take(record)
        return lost

    async def _take(self, record: Record) -> None:
        if record.seq > self._seq and self._spans.missing(record):
            async for earlier in self._log.read(thread(record.aggregate.id), upto=record.seq - 1):
                self._spans.add(earlier)  # exported by its worker then
        self._put(record)

    def _put(self, record: Record) -> None:
        if record.seq <= self._seq:
            return
        self._seq = record.seq
        for span in self._spans.add(record):
            self._pipeline.add(span)
