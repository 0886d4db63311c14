"""Instruments by OpenTelemetry's SDK: durations of operations, their tokens, consumed messages.

Names, units and buckets are those of OpenTelemetry's conventions for generative AI and messaging (semantic conventions
1.41). Each span is recorded by one process: the sum over all processes is right.
"""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.metrics import Meter

from adapters.tracing.spans import Kind, Span, Value

_OPERATION = (
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model", "error.type",
)  # fmt: skip
_MESSAGE = ("messaging.system", "messaging.operation.name", "messaging.destination.name")
_DURATION_BOUNDS = tuple(0.01 * 2**n for n in range(14))
_TOKEN_BOUNDS = tuple(4.0**n for n in range(14))


class Measures:
    """Records spans."""

    def __init__(self, meter: Meter) -> None:
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_DURATION_BOUNDS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKEN_BOUNDS,
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of messages taken up."
        )

    def add(self, span: Span) -> None:
        if span.kind is Kind.CONSUMER:
            self._consumed.add(1, _selected(span, _MESSAGE))
            return
        operation = _selected(span, _OPERATION)
        self._duration.record((span.end - span.start) / 1e9, operation)
        if span.kind is Kind.CLIENT:
            for kind in ("input", "output"):
                used = span.attributes.get(f"gen_ai.usage.{kind}_tokens")
                if isinstance(used, int):
                    self._tokens.record(used, {**operation, "gen_ai.token.type": kind})


def _selected(span: Span, names: Iterable[str]) -> dict[str, Value]:
    return {name: span.attributes[name] for name in names if name in span.attributes}
