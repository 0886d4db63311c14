"""What is measured of spans."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from adapters.tracing import measures
from adapters.tracing.measures import CONSUMED, DURATION, TOKENS, Measure, Measures
from adapters.tracing.spans import Kind, Span, Value, spans
from tests.adapters.tracing.story import whole


def folded(*found: Span) -> Measures:
    measured = Measures(0)
    for span in found:
        measured.add(span)
    return measured


def sums(measured: Measures, measure: Measure) -> dict[tuple[Value, ...], tuple[int, float]]:
    """How many there were, and their sum, by the values of the attributes."""
    return {
        tuple(value for _, value in series): (sum(histogram.counts), histogram.sum)
        for series, histogram in measured.values.get(measure, {}).items()
    }


def chat(model: str, seconds: float = 1.0, **attributes: Value) -> Span:
    about: Mapping[str, Value] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.conversation.id": "t",
        **attributes,
    }
    return Span("t", "s", None, "chat", Kind.CLIENT, 0, int(seconds * 1e9), about)


def test_a_run() -> None:
    measured = folded(*spans(whole()))
    answered = ("chat", "openai", "main", "gpt-x")
    assert sums(measured, DURATION) == {
        ("chat", "main", "RateLimitError"): (1, 1.0),
        answered: (2, 1.5),
        ("execute_tool",): (1, 2.0),
        ("invoke_agent", "main"): (1, 11.0),
    }
    assert sums(measured, TOKENS) == {(*answered, "input"): (1, 100), (*answered, "output"): (1, 7)}
    assert sums(measured, CONSUMED) == {("nats", "receive", "lead"): (1, 1)}


@pytest.mark.parametrize(("seconds", "bucket"), [(0.01, 0), (0.011, 1), (81.92, 13), (100, 14)])
def test_buckets(seconds: float, bucket: int) -> None:
    [histogram] = folded(chat("m", seconds)).values[DURATION].values()
    assert histogram.counts.index(1) == bucket


def test_many_models_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "MOST_SERIES", 3)
    measured = folded(*(chat(f"m{number}") for number in (0, 1, 2, 3, 4, 0)))
    assert sums(measured, DURATION) == {
        ("chat", "m0"): (2, 2.0),
        ("chat", "m1"): (1, 1.0),
        ("chat", "m2"): (1, 1.0),
        (True,): (2, 2.0),
    }
