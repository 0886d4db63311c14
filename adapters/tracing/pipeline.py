"""Pipeline of spans to a collector by OpenTelemetry's SDK: batches, retries, protobuf over HTTP.

It works in threads of the SDK, so that `add` and the event loop never wait. Imported only with an endpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from adapters.tracing.measures import Measures
from adapters.tracing.spans import Kind, Moment, Span, Value

SCOPE = "sika"
BATCH = 512
"""Limit of spans in a request."""
QUEUED = 4096
"""Limit of waiting spans; beyond it the oldest are dropped."""
GATHER_SECONDS = 1.0
SEND_SECONDS = 10.0
"""Timeout of a batch with all its retries."""
MEASURE_SECONDS = 60.0
"""Interval of measures (OpenTelemetry's default, `OTEL_METRIC_EXPORT_INTERVAL`)."""
REPEAT_SECONDS = 600.0
"""Interval in which the exporters log the same problem once."""
_KINDS: Mapping[Kind, SpanKind] = {
    Kind.INTERNAL: SpanKind.INTERNAL,
    Kind.CLIENT: SpanKind.CLIENT,
    Kind.CONSUMER: SpanKind.CONSUMER,
}


class Pipeline:
    """Sends spans and their measures. `endpoint` is the collector's base URL."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], resource: Mapping[str, Value]) -> None:
        traces, metrics = urls(endpoint)
        self._resource, self._scope = Resource(resource), InstrumentationScope(SCOPE)
        self._spans = BatchSpanProcessor(
            OTLPSpanExporter(traces, headers=headers, timeout=SEND_SECONDS),
            max_queue_size=QUEUED,
            max_export_batch_size=BATCH,
            schedule_delay_millis=GATHER_SECONDS * 1000,
        )
        exporter = OTLPMetricExporter(metrics, headers=headers, timeout=SEND_SECONDS)
        reader = PeriodicExportingMetricReader(exporter, MEASURE_SECONDS * 1000)
        self._meters = MeterProvider([reader], self._resource, shutdown_on_exit=False)
        self._measures = Measures(self._meters.get_meter(SCOPE))
        for module in (OTLPSpanExporter.__module__, OTLPMetricExporter.__module__):
            logging.getLogger(module).addFilter(_RARELY)

    def add(self, span: Span) -> None:
        self._measures.add(span)
        self._spans.on_end(_readable(span, self._resource, self._scope))

    @property
    def ends(self) -> Sequence[Callable[[], object]]:
        """Blocking calls that send the remaining data."""
        return self._spans.shutdown, self._meters.shutdown


class _Rarely(logging.Filter):
    """Passes a message of a library once in `REPEAT_SECONDS`, whatever its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._next: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = (record.name, record.msg), time.monotonic()
        if now < self._next.get(key, now):
            return False
        self._next[key] = now + REPEAT_SECONDS
        return True


_RARELY = _Rarely()


def urls(endpoint: str) -> tuple[str, str]:
    """Returns the URLs for spans and for measures."""
    base = endpoint.rstrip("/").removesuffix("/v1/traces")
    return f"{base}/v1/traces", f"{base}/v1/metrics"


def _readable(span: Span, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    remote = span.attributes.get("gen_ai.operation.name") == "invoke_agent"  # a run's parent is its client's span
    return ReadableSpan(
        span.name,
        _context(span.trace, span.id),
        _context(span.trace, span.parent, remote=remote) if span.parent else None,
        resource,
        span.attributes,
        [_event(moment) for moment in span.moments],
        kind=_KINDS[span.kind],
        status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start,
        end_time=span.end,
        instrumentation_scope=scope,
    )


def _context(trace: str, span: str, *, remote: bool = False) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), remote, TraceFlags(TraceFlags.SAMPLED))


def _event(moment: Moment) -> Event:
    return Event(moment.name, moment.attributes, moment.at)
