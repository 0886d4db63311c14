"""What spans a run's facts amount to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from adapters.tracing.spans import KEPT, MOST_MOMENTS, Kind, Moment, Span, Spans, nanoseconds
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Event,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunRolledBack,
)
from tests.adapters.tracing.story import (
    PARENT,
    THREAD,
    asked,
    at,
    decided,
    did,
    failed,
    records,
    requested,
    said,
    spans,
    started,
    whole,
)

ZERO = nanoseconds(at(0))


def times(found: Sequence[Span]) -> list[tuple[str, float, float]]:
    """Name, begin and end in seconds of the story."""
    return [(span.name, (span.start - ZERO) / 1e9, (span.end - ZERO) / 1e9) for span in found]


def told(*events: tuple[float, Event]) -> list[tuple[str, float, float]]:
    return times(spans(records(*events)))


def test_a_run() -> None:
    found = spans(whole())
    assert times(found) == [
        ("receive lead", 0, 1),
        ("chat main", 1, 2),
        ("chat main", 4.5, 5.5),
        ("execute_tool bash", 6, 8),
        ("chat main", 9.5, 10),
        ("invoke_agent lead_agent", 0, 11),
    ]
    *children, root = found
    assert {span.trace for span in found} == {root.trace}
    assert {span.parent for span in children} == {root.id}
    assert root.parent is None
    assert len({span.id for span in found}) == len(found)
    assert all(len(span.trace) == 32 and len(span.id) == 16 for span in found)
    assert [span.kind for span in found] == [
        Kind.CONSUMER, Kind.CLIENT, Kind.CLIENT, Kind.INTERNAL, Kind.CLIENT, Kind.INTERNAL,
    ]  # fmt: skip
    assert [span.error for span in found] == [None, "busy", None, None, None, None]


def test_attributes() -> None:
    waited, broke, answered, called, _, root = (dict(span.attributes) for span in spans(whole()))
    everywhere = {"gen_ai.conversation.id": THREAD}
    assert waited == everywhere | {
        "messaging.system": "nats",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "lead",
        "messaging.client.id": "worker-1",
        "messaging.message.id": "run-1-1",
        "sika.run.attempt": 1,
    }
    assert broke == everywhere | {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "main",
        "error.type": "RateLimitError",
        "sika.model.failure": "busy",
    }
    assert answered == everywhere | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "main",
        "gen_ai.response.model": "gpt-x",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 40,
    }
    assert called == everywhere | {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "bash",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
    }
    assert root == everywhere | {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "lead_agent",
        "gen_ai.request.model": "main",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "sika.run.id": "run-1",
        "sika.run.status": "success",
        "sika.run.attempts": 1,
    }


def test_nothing_that_was_said_is_told() -> None:
    assert "secret" not in str(spans(whole()))


def test_told_again_it_is_the_same() -> None:
    assert spans(whole()) == spans(whole())
    other = spans(records((0, requested()), (1, started()), (2, RunCompleted()), run="run-2"))
    assert not {span.id for span in other} & {span.id for span in spans(whole())}
    assert {span.trace for span in other} != {span.trace for span in spans(whole())}


CASES = {
    "a crash between: the tool began when it was first meant to": (
        [(0, requested()), (1, started()), (2, asked()), (20, started(2)), (25, did())],
        [("receive lead", 0, 1), ("receive lead", 2, 20), ("execute_tool bash", 2, 25)],
    ),
    "a call of which nobody knows how long it took": (
        [(0, requested()), (1, started()), (3, said(0))],
        [("receive lead", 0, 1), ("chat main", 1, 3)],
    ),
    "a failed try begins after the pause of the one before": (
        [(0, requested()), (1, started()), (2, failed(3000)), (6, failed(None))],
        [("receive lead", 0, 1), ("chat main", 1, 2), ("chat main", 5, 6)],
    ),
    "an answer to a call that never began": ([(0, requested()), (1, started()), (2, did())], [("receive lead", 0, 1)]),
    "a run that never began": ([(0, requested()), (2, RunCancelled())], [("invoke_agent lead_agent", 0, 2)]),
    "clocks that disagree": ([(5, requested()), (4, started())], [("receive lead", 4, 4)]),
    "of a run whose beginning is unknown": (
        [(3, started()), (4, RunCompleted())],
        [("receive lead", 3, 3), ("invoke_agent", 3, 4)],
    ),
    "what comes after the end": (
        [(0, requested()), (1, RunCompleted()), (2, did())],
        [("invoke_agent lead_agent", 0, 1)],
    ),
}


@pytest.mark.parametrize(("events", "expected"), CASES.values(), ids=CASES)
def test_told(events: Sequence[tuple[float, Event]], expected: Sequence[tuple[str, float, float]]) -> None:
    assert told(*events) == expected


ENDS: dict[str, tuple[Event, str | None]] = {
    "success": (RunCompleted(), None),
    "paused": (RunPaused(next=["tools"]), None),
    "error": (RunFailed(error="TooManySteps", text="It had not finished."), "It had not finished."),
    "interrupted": (RunCancelled(), None),
    "rolled_back": (RunRolledBack(), None),
}


@pytest.mark.parametrize(("status", "end", "error"), [(status, *end) for status, end in ENDS.items()], ids=ENDS)
def test_ends(status: str, end: Event, error: str | None) -> None:
    root = spans(records((0, requested()), (1, started()), (2, end)))[-1]
    assert root.attributes["sika.run.status"] == status
    assert root.error == error
    assert root.attributes.get("error.type") == ("TooManySteps" if error else None)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(did(), None), (did(status="error"), "_OTHER"), (did(status="error", unknown=True), "unknown_outcome")],
)
def test_tool_errors(outcome: Any, error: str | None) -> None:
    span = spans(records((0, requested()), (1, started()), (2, asked()), (3, outcome)))[-1]
    assert (span.error, span.attributes.get("error.type")) == (error, error)


# ── who answered ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_stands_in_for_another() -> None:
    story = records(
        (0, requested()),
        (1, started()),
        (2, failed(None)),
        (3, failed(None, "spare")),
        (5, said(response_metadata={"answered_by": "small"})),
    )
    found = [
        (span.name, span.attributes["gen_ai.request.model"], span.attributes.get("sika.model.instead_of"))
        for span in spans(story)[1:]
    ]
    assert found == [("chat main", "main", None), ("chat spare", "spare", "main"), ("chat small", "small", "main")]


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────────────

DECIDED = {"sika.policy.name": "loops", "sika.policy.action": "warned"}
SUMMARY = {"type": "human", "content": "secret", "usage_metadata": {"input_tokens": 900, "output_tokens": 9}}
ASKED_FOR = ApprovalRequested(
    approval="a1", call_id="c1", tool="bash", args={"command": "secret"}, digest="d", text="secret"
)
RESOLVED = ApprovalResolved(approval="a1", call_id="c1", decision="reject", by="secret", message="secret")
COMPACTED = ContextCompacted(
    summary=SUMMARY, kept=[], reason="secret", tokens_before=5000, tokens_after=800, model="small"
)
MOMENTS: dict[str, tuple[Event, str, dict[str, Any]]] = {
    "a decision about a call that was never made": (
        did(decisions=[decided()]),
        "sika.policy.decision",
        {**DECIDED, "gen_ai.tool.call.id": "c1"},
    ),
    "a summary": (
        COMPACTED,
        "sika.context.compacted",
        {"sika.context.tokens_before": 5000, "sika.context.tokens_after": 800, "gen_ai.request.model": "small"},
    ),
    "a question": (
        ASKED_FOR,
        "sika.approval.requested",
        {"sika.approval.id": "a1", "gen_ai.tool.call.id": "c1", "gen_ai.tool.name": "bash"},
    ),
    "its answer": (
        RESOLVED,
        "sika.approval.resolved",
        {"sika.approval.id": "a1", "gen_ai.tool.call.id": "c1", "sika.approval.decision": "reject"},
    ),
}


@pytest.mark.parametrize(("event", "name", "attributes"), MOMENTS.values(), ids=MOMENTS)
def test_moments_of_the_run(event: Event, name: str, attributes: dict[str, Any]) -> None:
    *others, root = spans(records((0, requested()), (1, started()), (2, event), (3, RunCompleted())))
    assert root.moments == (Moment(name, ZERO + 2 * 10**9, attributes),)
    assert not any(span.moments for span in others)
    assert "secret" not in str(root)


def test_decisions_about_an_answer_and_a_call_are_moments_of_theirs() -> None:
    story = records(
        (0, requested()),
        (1, started()),
        (3, said(decision=True)),
        (4, asked()),
        (5, did(decisions=[decided(), decided("x" * 200, "cut")])),
        (6, RunCompleted()),
    )
    _, answer, call, root = spans(story)
    assert answer.moments == (Moment("sika.policy.decision", answer.end, DECIDED),)
    assert [moment.attributes["sika.policy.name"] for moment in call.moments] == ["loops", "x" * 100]
    assert root.moments == ()


def test_what_a_summary_cost_is_part_of_the_run() -> None:
    root = spans(records((0, requested()), (1, started()), (2, COMPACTED), (3, said()), (4, RunCompleted())))[-1]
    usage = [root.attributes[f"gen_ai.usage.{kind}_tokens"] for kind in ("input", "output")]
    assert usage == [1000, 16]


def test_moments_stay_few() -> None:
    many = [(2.0, did(decisions=[decided()] * 100))] * 3
    root = spans(records((0, requested()), (1, started()), *many, (3, RunCompleted())))[-1]
    assert len(root.moments) == MOST_MOMENTS


# ── traceparent ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("parent", [PARENT, PARENT.replace("00-", "01-", 1) + "-what-comes-later", PARENT[:-2] + "03"])
def test_below_the_span_that_wanted_it(parent: str) -> None:
    found = spans(whole(traceparent=parent))
    assert {span.trace for span in found} == {"0af7651916cd43dd8448eb211c80319c"}
    assert found[-1].parent == "b7ad6b7169203331"
    assert found[-1].id == spans(whole())[-1].id


@pytest.mark.parametrize("given", [{}, {"traceparent": "x"}])
def test_the_field_counts_where_the_metadata_says_nothing(given: dict[str, Any]) -> None:
    request = RunRequested(metadata=given, traceparent=PARENT)
    root = spans(records((0, request), (1, RunCompleted())))[-1]
    assert (root.trace, root.parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    other = RunRequested(metadata={"traceparent": PARENT.replace("b7ad", "c8ad")}, traceparent=PARENT)
    assert spans(records((0, other), (1, RunCompleted())))[-1].parent == "c8ad6b7169203331"


@pytest.mark.parametrize(
    "parent",
    [
        None, 5, "", "x", PARENT.upper(), f"{PARENT}-more", PARENT.replace("00-", "ff-", 1), PARENT[:-1],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    ],
)  # fmt: skip
def test_what_is_no_parent_is_none(parent: Any) -> None:
    assert spans(whole(traceparent=parent)) == spans(whole())


def test_a_parent_that_is_not_sampled_has_no_children() -> None:
    assert spans(whole(traceparent=PARENT[:-2] + "00")) == []


# ── whose ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_span_is_told_by_the_worker_that_did_it() -> None:
    story = records(
        (0, requested()),
        (1, started(worker="a")),
        (3, said()),
        (9, started(2, "b")),
        (11, said()),
        (12, RunCompleted()),
    )
    by = {name: [span for record in story for span in fold.add(record)] for name, fold in folds("a", "b", "c").items()}
    assert times(by["a"]) == [("receive lead", 0, 1), ("chat main", 2, 3)]
    assert times(by["b"]) == [("receive lead", 3, 9), ("chat main", 10, 11), ("invoke_agent lead_agent", 0, 12)]
    assert by["c"] == []
    assert {span.id for span in by["a"] + by["b"]} == {span.id for span in spans(story)}


def folds(*workers: str) -> dict[str, Spans]:
    return {worker: Spans(worker) for worker in workers}


def test_a_run_that_is_taken_over_unheard_is_missing() -> None:
    story = records((0, requested()), (1, started(worker="a")), (3, said()), (9, started(2, "b")), (12, RunCompleted()))
    fold = Spans("b")
    assert fold.missing(story[3])
    assert not Spans("c").missing(story[3])
    for record in story[:3]:
        fold.add(record)
    assert not fold.missing(story[3])
    assert times([span for record in story[3:] for span in fold.add(record)]) == [
        ("receive lead", 3, 9),
        ("invoke_agent lead_agent", 0, 12),
    ]


# ── total ────────────────────────────────────────────────────────────────────────────────────────────────────────────

HEAD = '{"id":"e","kind":"%s","aggregate":"t","actor":"x","run":"r","at":"%s","type":"%s"}'


@pytest.mark.parametrize(
    "raw",
    [
        HEAD % ("thread", at(0), "stone.thrown"),
        HEAD % ("thread", "yesterday", "run.requested"),
        HEAD % ("thread", at(0), "run.started"),
        HEAD % ("store", at(0), "run.completed"),
    ],
)
def test_what_cannot_be_read_is_no_span(raw: str) -> None:
    record = Record(1, raw.encode())
    fold = Spans()
    assert fold.add(record) == []
    assert not fold.missing(record)


def test_runs_without_end_are_forgotten() -> None:
    fold = Spans()
    for number in range(KEPT + 1):
        for record in records((0, requested()), run=f"r{number}"):
            fold.add(record)
    [first] = records((1, RunCompleted()), run="r0")
    [last] = records((1, RunCompleted()), run=f"r{KEPT}")
    assert (len(fold.add(first)), len(fold.add(last))) == (0, 1)
