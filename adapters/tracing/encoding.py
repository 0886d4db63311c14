"""OTLP as JSON (opentelemetry-proto 1): ids in hexadecimal, 64-bit numbers as text, enums as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adapters.tracing.measures import Measure, Measures
from adapters.tracing.spans import Moment, Span, Value
from core.metrics import Histogram

SCOPE = {"name": "sika"}
CUMULATIVE = 2
"""OTLP's `AggregationTemporality`: each point is about all the time since the begin."""


def spans(found: Sequence[Span], resource: Mapping[str, Value]) -> bytes:
    """An `ExportTraceServiceRequest`."""
    scoped = {"scope": SCOPE, "spans": [_span(span) for span in found]}
    return msgspec.json.encode(
        {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scoped]}]}
    )


def measures(found: Measures, resource: Mapping[str, Value], now: int) -> bytes:
    """An `ExportMetricsServiceRequest`."""
    metrics = [_measure(one, found, now) for one in found.values]
    scoped = {"scope": SCOPE, "metrics": metrics}
    return msgspec.json.encode(
        {"resourceMetrics": [{"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scoped]}]}
    )


def _span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace,
        "spanId": span.id,
        **({"parentSpanId": span.parent} if span.parent else {}),
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
        **({"events": [_event(moment) for moment in span.moments]} if span.moments else {}),
        "status": {} if span.error is None else {"code": 2, "message": span.error},
    }


def _event(moment: Moment) -> dict[str, Any]:
    return {"timeUnixNano": str(moment.at), "name": moment.name, "attributes": _attributes(moment.attributes)}


def _measure(measure: Measure, found: Measures, now: int) -> dict[str, Any]:
    times = {"startTimeUnixNano": str(found.begin), "timeUnixNano": str(now)}
    points = [
        {"attributes": _attributes(dict(series)), **times, **_point(measure, values)}
        for series, values in found.values[measure].items()
    ]
    data: dict[str, Any] = {"aggregationTemporality": CUMULATIVE, "dataPoints": points}
    shaped = {"histogram": data} if measure.bounds else {"sum": {**data, "isMonotonic": True}}
    return {"name": measure.name, "unit": measure.unit, "description": measure.text, **shaped}


def _point(measure: Measure, values: Histogram) -> dict[str, Any]:
    count = str(sum(values.counts))
    if not measure.bounds:
        return {"asInt": count}
    counts = [str(one) for one in values.counts]
    return {"count": count, "sum": values.sum, "bucketCounts": counts, "explicitBounds": measure.bounds}


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [_value(one) for one in value]}}
