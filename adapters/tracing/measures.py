"""Spans to measures: how long operations took, how many tokens they used, how many messages were taken up.

Names, units and buckets are those of OpenTelemetry's conventions for generative AI and messaging (semantic conventions
1.41). As spans are told by one process each, so is what is measured of them: the sum over all processes is right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapters.tracing.spans import Kind, Span, Value
from core.metrics import Histogram

MOST_SERIES = 2000
"""Of one measure; what comes later is counted as one (OpenTelemetry, §Cardinality limits)."""
OVERFLOW: Mapping[str, Value] = {"otel.metric.overflow": True}
_OPERATION = (
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model", "error.type",
)  # fmt: skip
_MESSAGE = ("messaging.system", "messaging.operation.name", "messaging.destination.name")


@dataclass(frozen=True, eq=False, slots=True)
class Measure:
    """What is measured. Without bounds it is a count."""

    name: str
    unit: str
    text: str
    bounds: tuple[float, ...] = ()


DURATION = Measure(
    "gen_ai.client.operation.duration", "s", "GenAI operation duration.", tuple(0.01 * 2**n for n in range(14))
)
TOKENS = Measure(
    "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", tuple(4.0**n for n in range(14))
)
CONSUMED = Measure("messaging.client.consumed.messages", "{message}", "Number of messages taken up.")

Series = tuple[tuple[str, Value], ...]


class Measures:
    """The fold. `begin`: when it was begun, in nanoseconds since 1970."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.values: dict[Measure, dict[Series, Histogram]] = {}

    def add(self, span: Span) -> None:
        if span.kind is Kind.CONSUMER:
            self._observe(CONSUMED, 1, _chosen(span, _MESSAGE))
            return
        operation = _chosen(span, _OPERATION)
        self._observe(DURATION, (span.end - span.start) / 1e9, operation)
        if span.kind is Kind.CLIENT:
            for kind in ("input", "output"):
                used = span.attributes.get(f"gen_ai.usage.{kind}_tokens")
                if isinstance(used, int):
                    self._observe(TOKENS, used, {**operation, "gen_ai.token.type": kind})

    def _observe(self, measure: Measure, value: float, about: Mapping[str, Value]) -> None:
        found = self.values.setdefault(measure, {})
        series = tuple(about.items())
        if series not in found and len(found) >= MOST_SERIES:
            series = tuple(OVERFLOW.items())
        histogram = found.get(series) or found.setdefault(series, Histogram(len(measure.bounds)))
        histogram.counts[bisect_left(measure.bounds, value)] += 1
        histogram.sum += value


def _chosen(span: Span, names: Iterable[str]) -> dict[str, Value]:
    return {name: span.attributes[name] for name in names if name in span.attributes}
