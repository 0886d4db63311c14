"""The fold of events to numbers: what is counted, what is measured, and that labels stay few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Decision,
    Event,
    FileConverted,
    FileRejected,
    FileUploaded,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunRolledBack,
    RunStarted,
    ThreadCreated,
    ToolCompleted,
    WebhookDelivered,
    WebhookFailed,
    encode,
    written,
)
from core.observe.metrics import EVENTS, KEPT, MOST, Family, Metrics


def record(event: Event, second: float = 0.0, run: str | None = "r", at: str | None = None) -> Record:
    at = at or f"2026-01-01T00:00:{second:09.6f}+00:00"
    return Record(
        1, encode(event, written(event, id="e", kind="thread", aggregate_id="t", actor="lead", at=at, run=run))
    )


def folded(*records: Record) -> Metrics:
    metrics = Metrics()
    for one in records:
        metrics.add(one)
    return metrics


def counts(metrics: Metrics) -> dict[str, float]:
    """All but the events by type, as `name label …`."""
    return {
        " ".join((family.name.removeprefix("sika_").removesuffix("_total"), *labels)): value
        for family, values in metrics.numbers.counts.items()
        for labels, value in values.items()
        if family is not EVENTS
    }


def sums(metrics: Metrics) -> dict[str, tuple[float, int]]:
    """Of histograms: the sum and how many there were."""
    return {
        " ".join((family.name.removeprefix("sika_").removesuffix("_seconds"), *labels)): (
            round(found.sum, 6),
            sum(found.counts),
        )
        for family, values in metrics.numbers.histograms.items()
        for labels, found in values.items()
    }


def started(attempt: int = 1, model: str = "main") -> RunStarted:
    return RunStarted(attempt=attempt, worker="w", lease=1, model=model)


def said(**more: Any) -> ModelCompleted:
    used = {"input_tokens": 100, "output_tokens": 7, "input_token_details": {"cache_read": 40}}
    return ModelCompleted(message={"type": "ai", "id": "m", "content": "x", "usage_metadata": used}, **more)


def did(name: str = "bash", status: str = "success", **more: Any) -> ToolCompleted:
    return ToolCompleted(call_id="c", message={"type": "tool", "name": name, "status": status, "content": ""}, **more)


def decided(*names: tuple[str, str]) -> dict[str, Any]:
    return {"decisions": [Decision(policy=policy, action=action) for policy, action in names]}


def compacted(model: str | None) -> ContextCompacted:
    return ContextCompacted(summary={"usage_metadata": {"input_tokens": 90, "output_tokens": 9}}, kept=[], model=model)


ASKED = ApprovalRequested(approval="a", call_id="c", tool="bash", args={}, digest="d")
FAILED = ModelFailed(error="E", text="t", attempt=1, max_attempts=3, reason="busy")

COUNTED: dict[str, tuple[list[Event], Mapping[str, float]]] = {
    "ended": ([RunCompleted()], {"runs success": 1}),
    "paused": ([RunPaused(next=["tools"])], {"runs paused": 1}),
    "failed": ([RunFailed(error="E", text="t")], {"runs error": 1}),
    "cancelled": ([RunCancelled()], {"runs interrupted": 1}),
    "undone": ([RunRolledBack()], {"runs rolled_back": 1}),
    "taken over": ([started(), started(2), started(3)], {"run_attempts": 3, "run_takeovers": 2}),
    "an answer": (
        [started(), said()],
        {"run_attempts": 1, "model_calls main": 1}
        | {f"model_tokens main {kind}": n for kind, n in (("input", 100), ("output", 7), ("cache_read", 40))},
    ),
    "an answer without usage": (
        [started(model="n"), ModelCompleted(message={"type": "ai"})],
        {"run_attempts": 1, "model_calls n": 1},
    ),
    "an answer to a run that began before": ([FAILED], {"model_failures unknown busy": 1}),
    "the model of the newest attempt": (
        [started(), started(2, "other"), FAILED],
        {"run_attempts": 2, "run_takeovers": 1, "model_failures other busy": 1},
    ),
    "an answer of a model that stood in": (
        [
            started(),
            ModelFailed(error="E", text="t", attempt=1, max_attempts=3, reason="busy", model="spare"),
            ModelCompleted(message={"type": "ai", "response_metadata": {"answered_by": "small"}}),
        ],
        {"run_attempts": 1, "model_failures spare busy": 1, "model_calls small": 1},
    ),
    "decisions": (
        [
            said(**decided(("loops", "warned"), ("loops", "stopped"))),
            did(**decided(("loops", "warned"), ("a policy of\nsomebody's", "warned"))),
        ],
        {"model_calls unknown": 1, "tool_calls bash success": 1}
        | {f"model_tokens unknown {kind}": n for kind, n in (("input", 100), ("output", 7), ("cache_read", 40))}
        | {"policy_decisions loops warned": 2, "policy_decisions loops stopped": 1}
        | {"policy_decisions other warned": 1},
    ),
    "summaries": (
        [compacted("small"), compacted(None)],
        {f"{name} {model}": 1.0 for name in ("compactions", "model_calls") for model in ("small", "unknown")}
        | {f"model_tokens {m} {kind}": n for m in ("small", "unknown") for kind, n in (("input", 90), ("output", 9))},
    ),
    "approvals": (
        [
            ASKED,
            ASKED,
            ApprovalResolved(approval="a", call_id="c", decision="edit"),
            ApprovalResolved(approval="b", call_id="c", decision="expire"),
        ],
        {"approvals_requested bash": 2, "approvals_decided edit": 1, "approvals_decided expire": 1},
    ),
    "tools": (
        [did(), did(status="error"), did("ls"), did(unknown=True, status="error")],
        {"tool_calls bash success": 1, "tool_calls bash error": 1, "tool_calls ls success": 1}
        | {"tool_calls bash unknown": 1},
    ),
    "a tool message without a name": (
        [ToolCompleted(call_id="c", message={"type": "tool"})],
        {"tool_calls unknown success": 1},
    ),
    "files": (
        [
            FileUploaded(name="a", size=10, sha256=""),
            FileUploaded(name="b", size=5, sha256=""),
            FileConverted(name="a", markdown="a.md", source_sha256=""),
            FileRejected(name="b", reason="no"),
        ],
        {"uploads": 2, "upload_bytes": 15, "conversions converted": 1, "conversions rejected": 1},
    ),
    "webhooks": (
        [
            WebhookFailed(reason="no", attempt=1, again_at="2026-01-01T00:00:01+00:00"),
            WebhookFailed(reason="no", attempt=2),
            WebhookDelivered(status=200, attempt=1),
        ],
        {"webhook_tries failed": 1, "webhook_tries given_up": 1, "webhook_tries delivered": 1},
    ),
    "what is not about runs": ([ThreadCreated(user="u")], {}),
}


@pytest.mark.parametrize(("events", "expected"), COUNTED.values(), ids=COUNTED)
def test_counted(events: Sequence[Event], expected: Mapping[str, float]) -> None:
    metrics = folded(*map(record, events))
    assert counts(metrics) == expected
    assert sum(metrics.numbers.counts[EVENTS].values()) == len(events)


MEASURED: dict[str, tuple[list[tuple[Event, float]], dict[str, tuple[float, int]]]] = {
    "a run": (
        [(RunRequested(), 1), (started(), 3.5), (RunCompleted(), 10)],
        {"run_queue": (2.5, 1), "run_duration success": (6.5, 1)},
    ),
    "a run that was to wait": (
        [(RunRequested(not_before="2026-01-01T00:00:03+00:00"), 1), (started(), 3.5)],
        {"run_queue": (0.5, 1)},
    ),
    "a run that was taken over counts from its first start": (
        [(RunRequested(), 1), (started(), 2), (started(2), 20), (RunFailed(error="E", text="t"), 30)],
        {"run_queue": (1, 1), "run_duration error": (28, 1)},
    ),
    "a run that began before we listened": ([(started(), 1), (RunCompleted(), 2)], {}),
    "a run that never began": ([(RunRequested(), 1), (RunCancelled(), 2)], {}),
    "clocks that disagree": ([(RunRequested(), 5), (started(), 4)], {"run_queue": (0, 1)}),
    "a model call": ([(started(), 1), (said(duration_ms=1500), 3)], {"model_call_duration main": (1.5, 1)}),
    "a call cut off, of which nobody knows how long it took": ([(said(), 3)], {}),
    "tools": (
        [(did(duration_ms=20), 1), (did(duration_ms=30), 1), (did(duration_ms=9, unknown=True), 1)],
        {"tool_call_duration bash": (0.05, 2)},
    ),
}


@pytest.mark.parametrize(("events", "expected"), MEASURED.values(), ids=MEASURED)
def test_measured(events: Sequence[tuple[Event, float]], expected: dict[str, tuple[float, int]]) -> None:
    assert sums(folded(*(record(event, second) for event, second in events))) == expected


def test_values_on_a_bound_are_below_it() -> None:
    metrics = folded(record(did(duration_ms=100)), record(did(duration_ms=101)), record(did(duration_ms=10**9)))
    [(family, values)] = metrics.numbers.histograms.items()
    [found] = values.values()
    assert [found.counts[family.buckets.index(bound)] for bound in (0.1, 0.25)] == [1, 1]
    assert found.counts[-1] == 1


# ── few labels ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_many_names_become_other() -> None:
    metrics = folded(*(record(did(f"tool-{n}")) for n in range(MOST + 50)), record(did("tool-0")))
    found = counts(metrics)
    assert len(found) == MOST + 1
    assert (found["tool_calls tool-0 success"], found["tool_calls other success"]) == (2, 50)
    assert len(sums(metrics)) == MOST + 1


def test_many_policies_and_actions_become_other() -> None:
    names = [(f"policy-{n}", f"action-{n}") for n in range(MOST + 50)]
    found = counts(folded(record(did(**decided(*names)))))
    assert len(found) == MOST + 2
    assert found["policy_decisions other other"] == 50


@pytest.mark.parametrize("name", ["rm -rf /", "a\nb", 'quo"ted', "x" * 101, "ünï"])
def test_what_a_model_made_up_is_no_label(name: str) -> None:
    assert counts(folded(record(did(name)))) == {"tool_calls other success": 1}


def test_no_ids_among_the_labels() -> None:
    families: set[Family] = set()
    for events, _ in COUNTED.values():
        metrics = folded(*map(record, events))
        families |= metrics.numbers.counts.keys() | metrics.numbers.histograms.keys()
    assert {label for family in families for label in family.labels} == {
        "type", "status", "model", "kind", "reason", "tool", "result", "policy", "action", "decision",
    }  # fmt: skip


def test_runs_without_end_are_forgotten() -> None:
    metrics = folded(*(record(RunRequested(), run=f"r{n}") for n in range(KEPT + 1)))
    metrics.add(record(started(), 5, run="r0"))
    assert sums(metrics) == {}
    metrics.add(record(started(), 5, run=f"r{KEPT}"))
    assert sums(metrics) == {"run_queue": (5, 1)}


# ── total ────────────────────────────────────────────────────────────────────────────────────────────────────────────

ODD = {
    "an unknown type": b'{"id":"e","type":"stone.thrown","kind":"thread","aggregate":"t","actor":"x","at":"?"}',
    "a known type that does not fit": (
        b'{"id":"e","type":"tool.completed","kind":"thread","aggregate":"t","actor":"x","at":"?","call_id":5}'
    ),
    "a time that is none": (
        b'{"id":"e","type":"run.requested","kind":"thread","aggregate":"t","actor":"x","at":"yesterday"}'
    ),
}


@pytest.mark.parametrize("raw", ODD.values(), ids=ODD)
def test_what_cannot_be_read_is_an_event_and_no_more(raw: bytes) -> None:
    metrics = folded(Record(1, raw))
    assert sum(metrics.numbers.counts[EVENTS].values()) == 1
    assert sums(metrics) == {}
