"""Fold of events to spans of runs. The times are those of the events; nothing else is measured.

Names follow OpenTelemetry's conventions for generative AI and messaging (semantic conventions 1.41). Ids are derived
from ids of the log, so that a repeated span has the same id. Spans contain no text of a conversation and no users; of a
decision, they contain its policy and action.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from hashlib import blake2b
from typing import Any

import structlog

from core import traces
from core.errors import Invalid
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Decision,
    Message,
    ModelCompleted,
    ModelFailed,
    Record,
    RunFailed,
    RunRequested,
    RunStarted,
    ToolCompleted,
    ToolRequested,
)
from core.lifecycle import ENDS
from core.thread.usage import ANSWERED_BY, Tokens, tokens_of

log = structlog.get_logger("sika.tracing")

KEPT = 10_000
"""Limit of open runs that are remembered."""
MOST_TEXT = 500
MOST_NAME = 100
"""Limit of characters of a policy's or action's name."""
MOST_MOMENTS = 128
"""Limit of moments of a run (OpenTelemetry's own, `OTEL_SPAN_EVENT_COUNT_LIMIT`)."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Value = str | int | float | bool | list[str]


class Kind(IntEnum):
    """OTLP's `SpanKind`."""

    INTERNAL = 1
    CLIENT = 3
    CONSUMER = 5


@dataclass(frozen=True, slots=True)
class Moment:
    """A span event of OpenTelemetry's. `at` is in nanoseconds since 1970."""

    name: str
    at: int
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    """A span of OpenTelemetry's. Ids are hexadecimal, times are nanoseconds since 1970; `error` describes a failure."""

    trace: str
    id: str
    parent: str | None
    name: str
    kind: Kind
    start: int
    end: int
    attributes: Mapping[str, Value]
    error: str | None = None
    moments: Sequence[Moment] = ()


@dataclass(slots=True)
class _Run:
    trace: str
    span: str
    parent: str | None = None
    sampled: bool = True
    agent: str = ""
    model: str | None = None
    mine: bool = True
    """True if this process exports it: its worker does, or did, the run."""
    requested: str = ""
    begin: int = 0
    """Time of its request."""
    attempts: int = 0
    last: int = 0
    """Time of its last event: the next span begins then."""
    tools: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name and begin of open tool calls."""
    tokens: Tokens = field(default_factory=Tokens)
    moments: list[Moment] = field(default_factory=list)


class Spans:
    """The fold: `add` returns the spans that an event ends. With `worker`, only spans of the runs of that worker."""

    def __init__(self, worker: str | None = None) -> None:
        self._worker = worker
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def missing(self, record: Record) -> bool:
        """True if the event starts a run of this worker whose earlier events were not added. Add them first, and drop
        their spans.
        """
        if record.type != "run.started" or record.run in self._runs:
            return False
        with suppress(Invalid):
            event = record.event
            return isinstance(event, RunStarted) and self._worker in (None, event.worker)
        return False

    def add(self, record: Record) -> list[Span]:
        if record.head.kind != "thread" or record.run is None:
            return []
        try:
            return self._add(record, record.run)
        except (Invalid, ValueError) as error:  # an unreadable event must not stop the others
            log.warning("event without a span", id=record.id, error=str(error))
            return []

    def _add(self, record: Record, name: str) -> list[Span]:
        event, now = record.event, nanoseconds(record.at)
        run = self._runs.get(name)
        if isinstance(event, RunRequested):
            self._keep(name, _requested(record, event, name, now, mine=self._worker is None))
            return []
        if run is None and isinstance(event, RunStarted):
            run = self._keep(name, _Run(_trace(name), _span(name), begin=now, last=now))
        if run is None:
            return []
        if isinstance(event, RunStarted):
            run.mine = self._worker in (None, event.worker)
        ended = _ended(run, record, event, now)
        if type(event) in ENDS:
            del self._runs[name]
        return ended if run.mine and run.sampled else []

    def _keep(self, name: str, run: _Run) -> _Run:
        self._runs[name] = run
        if len(self._runs) > KEPT:
            self._runs.popitem(last=False)
        return run


def _requested(record: Record, event: RunRequested, name: str, now: int, *, mine: bool) -> _Run:
    run = _Run(_trace(name), _span(name), mine=mine, agent=event.assistant, requested=record.id, begin=now, last=now)
    if parent := traces.of(event):
        run.trace, run.parent, run.sampled = parent
    return run


def _ended(run: _Run, record: Record, event: Any, now: int) -> list[Span]:
    """Updates a run by an event, and returns the spans that the event ends."""
    before, run.last = run.last, now
    match event:
        case RunStarted():
            run.model, run.attempts = event.model or run.model, event.attempt
            return [_receive_span(run, record, event, before, now)]
        case ModelCompleted():
            run.tokens = run.tokens.plus(tokens_of(event.message))
            begin = now - event.duration_ms * 1_000_000 if event.duration_ms else before
            attributes, moments = _response_attributes(run, event.message), _policy_moments(event.decisions, now)
            return [_child(run, record, _chat_name(attributes), Kind.CLIENT, begin, now, attributes, moments=moments)]
        case ModelFailed():
            run.last += (event.wait_ms or 0) * 1_000_000
            attributes = _request_attributes(run, event.model)
            attributes |= {"error.type": event.error, "sika.model.failure": event.reason}
            name = _chat_name(attributes)
            return [_child(run, record, name, Kind.CLIENT, before, now, attributes, error=event.reason)]
        case ToolRequested():
            run.tools[event.call_id] = event.name, now
        case ToolCompleted() if event.call_id in run.tools:
            name, begin = run.tools.pop(event.call_id)
            return [_tool_span(run, record, event, name, begin, now)]
        case ToolCompleted():
            _add_moments(run, *_policy_moments(event.decisions, now, event.call_id))
        case ContextCompacted():
            run.tokens = run.tokens.plus(tokens_of(event.summary))
            _add_moments(run, _compaction_moment(event, now))
        case ApprovalRequested() | ApprovalResolved():
            _add_moments(run, _approval_moment(event, now))
        case _ if type(event) in ENDS:
            return [_run_span(run, record, event, now)]
    return []


def _receive_span(run: _Run, record: Record, event: RunStarted, begin: int, end: int) -> Span:
    """Returns the span from a run's request, or its last worker's last event, to its start."""
    attributes: dict[str, Value] = {
        "messaging.system": "nats",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.destination.name": record.head.actor,
        "messaging.client.id": event.worker,
        "sika.run.attempt": event.attempt,
    }
    if run.requested:
        attributes["messaging.message.id"] = run.requested
    return _child(run, record, f"receive {record.head.actor}", Kind.CONSUMER, begin, end, attributes)


def _tool_span(run: _Run, record: Record, event: ToolCompleted, name: str, begin: int, end: int) -> Span:
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": event.call_id,
    }
    error = None
    if event.unknown:
        error = attributes["error.type"] = "unknown_outcome"
    elif event.message.get("status") == "error":
        error = attributes["error.type"] = "_OTHER"
    moments = _policy_moments(event.decisions, end)
    name = f"execute_tool {name}"
    return _child(run, record, name, Kind.INTERNAL, begin, end, attributes, error=error, moments=moments)


def _run_span(run: _Run, record: Record, event: Any, end: int) -> Span:
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": run.agent,
        "gen_ai.conversation.id": record.aggregate.id,
        "gen_ai.usage.input_tokens": run.tokens.input,
        "gen_ai.usage.output_tokens": run.tokens.output,
        "sika.run.id": record.run or "",
        "sika.run.status": ENDS[type(event)].name,
        "sika.run.attempts": run.attempts,
    }
    if run.model:
        attributes["gen_ai.request.model"] = run.model
    error = None
    if isinstance(event, RunFailed):
        error, attributes["error.type"] = event.text[:MOST_TEXT] or event.error, event.error
    name = f"invoke_agent {run.agent}".rstrip()
    return Span(
        run.trace,
        run.span,
        run.parent,
        name,
        Kind.INTERNAL,
        run.begin,
        max(run.begin, end),
        attributes,
        error,
        tuple(run.moments),
    )


def _request_attributes(run: _Run, other: str | None) -> dict[str, Value]:
    """Returns the attributes of a request to the run's model, or to another in its place."""
    attributes: dict[str, Value] = {"gen_ai.operation.name": "chat"}
    if model := other or run.model:
        attributes["gen_ai.request.model"] = model
    if other and run.model and other != run.model:
        attributes["sika.model.instead_of"] = run.model
    return attributes


def _chat_name(attributes: Mapping[str, Value]) -> str:
    return f"chat {attributes.get('gen_ai.request.model', '')}".rstrip()


def _response_attributes(run: _Run, message: Message) -> dict[str, Value]:
    """Returns the attributes of a model's response."""
    metadata = message.get("response_metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    other = metadata.get(ANSWERED_BY)
    tokens, attributes = tokens_of(message), _request_attributes(run, other if isinstance(other, str) else None)
    for name, key in (("gen_ai.provider.name", "model_provider"), ("gen_ai.response.model", "model_name")):
        if isinstance(value := metadata.get(key), str) and value:
            attributes[name] = value
    if isinstance(reason := metadata.get("finish_reason"), str):
        attributes["gen_ai.response.finish_reasons"] = [reason]
    if tokens.total:
        attributes["gen_ai.usage.input_tokens"] = tokens.input
        attributes["gen_ai.usage.output_tokens"] = tokens.output
    if tokens.cache_read:
        attributes["gen_ai.usage.cache_read.input_tokens"] = tokens.cache_read
    return attributes


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _add_moments(run: _Run, *moments: Moment) -> None:
    run.moments += moments[: MOST_MOMENTS - len(run.moments)]


def _policy_moments(decisions: Iterable[Decision], at: int, call_id: str | None = None) -> list[Moment]:
    """Returns the moments of policies' decisions; `call_id` where the span has none."""
    call: dict[str, Value] = {"gen_ai.tool.call.id": call_id} if call_id else {}
    return [
        Moment(
            "sika.policy.decision",
            at,
            call | {"sika.policy.name": decision.policy[:MOST_NAME], "sika.policy.action": decision.action[:MOST_NAME]},
        )
        for decision in decisions
    ]


def _compaction_moment(event: ContextCompacted, at: int) -> Moment:
    attributes: dict[str, Value] = {
        "sika.context.tokens_before": event.tokens_before,
        "sika.context.tokens_after": event.tokens_after,
    }
    if event.model:
        attributes["gen_ai.request.model"] = event.model
    return Moment("sika.context.compacted", at, attributes)


def _approval_moment(event: ApprovalRequested | ApprovalResolved, at: int) -> Moment:
    attributes: dict[str, Value] = {"sika.approval.id": event.approval, "gen_ai.tool.call.id": event.call_id}
    if isinstance(event, ApprovalRequested):
        return Moment("sika.approval.requested", at, {**attributes, "gen_ai.tool.name": event.tool})
    return Moment("sika.approval.resolved", at, {**attributes, "sika.approval.decision": event.decision})


# ── ids and times ────────────────────────────────────────────────────────────────────────────────────────────────────


def _child(
    run: _Run,
    record: Record,
    name: str,
    kind: Kind,
    begin: int,
    end: int,
    attributes: dict[str, Value],
    *,
    error: str | None = None,
    moments: Sequence[Moment] = (),
) -> Span:
    """Returns a span of a run, with an id derived from the event that ends it. It never ends before it begins, though
    clocks of several machines may disagree.
    """
    attributes["gen_ai.conversation.id"] = record.aggregate.id
    span, begin = _span(record.id), min(begin, end)
    return Span(run.trace, span, run.span, name, kind, begin, end, attributes, error, tuple(moments))


def _trace(run: str) -> str:
    return blake2b(run.encode(), digest_size=16, person=b"trace").hexdigest()


def _span(name: str) -> str:
    return blake2b(name.encode(), digest_size=8, person=b"span").hexdigest()


def nanoseconds(at: str) -> int:
    """Converts an event's time to nanoseconds since 1970. Raises `ValueError`."""
    return (datetime.fromisoformat(at) - _EPOCH) // timedelta(microseconds=1) * 1000
