"""What is measured of spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from adapters.tracing.measures import Measures
from adapters.tracing.spans import Kind, Span, Value
from tests.adapters.tracing.story import spans, whole

DURATION, TOKENS = "gen_ai.client.operation.duration", "gen_ai.client.token.usage"
CONSUMED = "messaging.client.consumed.messages"


def points(*found: Span) -> dict[str, list[Any]]:
    """The data points by measure."""
    reader = InMemoryMetricReader()
    measures = Measures(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    for span in found:
        measures.add(span)
    data: Any = reader.get_metrics_data()
    [scope] = data.resource_metrics[0].scope_metrics
    return {metric.name: list(metric.data.data_points) for metric in scope.metrics}


def sums(points: list[Any]) -> dict[tuple[Value, ...], tuple[int, float]]:
    """How many there were, and their sum, by the values of the attributes."""
    return {tuple(point.attributes.values()): (point.count, point.sum) for point in points}


def chat(model: str, seconds: float = 1.0) -> Span:
    about: Mapping[str, Value] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.conversation.id": "t",
    }
    return Span("t", "s", None, "chat", Kind.CLIENT, 0, int(seconds * 1e9), about)


def test_a_run() -> None:
    measured = points(*spans(whole()))
    answered = ("chat", "openai", "main", "gpt-x")
    assert sums(measured[DURATION]) == {
        ("chat", "main", "RateLimitError"): (1, 1.0),
        answered: (2, 1.5),
        ("execute_tool",): (1, 2.0),
        ("invoke_agent", "main"): (1, 11.0),
    }
    assert sums(measured[TOKENS]) == {(*answered, "input"): (1, 100), (*answered, "output"): (1, 7)}
    assert [(tuple(point.attributes.values()), point.value) for point in measured[CONSUMED]] == [
        (("nats", "receive", "lead"), 1)
    ]


@pytest.mark.parametrize(("seconds", "bucket"), [(0.01, 0), (0.011, 1), (81.92, 13), (100, 14)])
def test_buckets(seconds: float, bucket: int) -> None:
    [point] = points(chat("m", seconds))[DURATION]
    assert list(point.bucket_counts).index(1) == bucket


def test_many_models_are_one() -> None:
    """Past the SDK's limit of series; what it is must not grow without one."""
    found = points(*(chat(f"m{number}") for number in range(3000)))[DURATION]
    assert len(found) <= 2001
    assert sum(point.count for point in found if "otel.metric.overflow" in point.attributes) >= 999
