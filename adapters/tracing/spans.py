"""Facts to spans: what a run did and how long it took, told when it is over; nothing is measured for it.

Names follow OpenTelemetry's conventions for generative AI and messaging (semantic conventions 1.41). Ids are derived
from ids of the log, so that what is told twice is the same span. No text of a conversation gets into a span, nor who
said it: of decisions, what was decided and by which policy.
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
"""Runs that have not ended, which are remembered."""
MOST_TEXT = 500
MOST_NAME = 100
"""Characters of a name that is not ours."""
MOST_MOMENTS = 128
"""Of a run (OpenTelemetry's own limit, `OTEL_SPAN_EVENT_COUNT_LIMIT`)."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Value = str | int | float | bool | list[str]


class Kind(IntEnum):
    """OTLP's `SpanKind`."""

    INTERNAL = 1
    CLIENT = 3
    CONSUMER = 5


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened during a span: an event of OpenTelemetry's. `at` in nanoseconds since 1970."""

    name: str
    at: int
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    """A span as OpenTelemetry has it. Ids in hexadecimal, times in nanoseconds since 1970; `error`: what went wrong."""

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


def spans(records: Iterable[Record]) -> list[Span]:
    """What the runs in these events did, in the order in which it was over."""
    fold = Spans()
    return [span for record in records for span in fold.add(record)]


@dataclass(slots=True)
class _Run:
    trace: str
    span: str
    parent: str | None = None
    sampled: bool = True
    agent: str = ""
    model: str | None = None
    ours: bool = True
    """Whether this process tells of it: its worker does, or did, the run."""
    requested: str = ""
    begin: int = 0
    """When it was asked for."""
    attempts: int = 0
    last: int = 0
    """When something last happened to it: what comes next began then."""
    tools: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name and begin of tool calls at work."""
    tokens: Tokens = field(default_factory=Tokens)
    moments: list[Moment] = field(default_factory=list)


class Spans:
    """The fold: takes in an event, gives the spans that it ends. `worker`: only of runs that this one does."""

    def __init__(self, worker: str | None = None) -> None:
        self._worker = worker
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def missing(self, record: Record) -> bool:
        """Whether the event starts a run of ours whose beginning was not heard: then what came before is added first,
        and what that gives is not told.
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
        except (Invalid, ValueError) as error:  # one event that cannot be read must not stop the others
            log.warning("event without a span", id=record.id, error=str(error))
            return []

    def _add(self, record: Record, name: str) -> list[Span]:
        event, now = record.event, nanoseconds(record.at)
        run = self._runs.get(name)
        if isinstance(event, RunRequested):
            self._keep(name, _requested(record, event, name, now, ours=self._worker is None))
            return []
        if run is None and isinstance(event, RunStarted):
            run = self._keep(name, _Run(_trace(name), _span(name), begin=now, last=now))
        if run is None:
            return []
        if isinstance(event, RunStarted):
            run.ours = self._worker in (None, event.worker)
        found = _told(run, record, event, now)
        if type(event) in ENDS:
            del self._runs[name]
        return found if run.ours and run.sampled else []

    def _keep(self, name: str, run: _Run) -> _Run:
        self._runs[name] = run
        if len(self._runs) > KEPT:
            self._runs.popitem(last=False)
        return run


def _requested(record: Record, event: RunRequested, name: str, now: int, *, ours: bool) -> _Run:
    run = _Run(_trace(name), _span(name), ours=ours, agent=event.assistant, requested=record.id, begin=now, last=now)
    if parent := traces.of(event):
        run.trace, run.parent, run.sampled = parent
    return run


def _told(run: _Run, record: Record, event: Any, now: int) -> list[Span]:
    """The spans that an event ends, and what it means for those that come."""
    before, run.last = run.last, now
    match event:
        case RunStarted():
            run.model, run.attempts = event.model or run.model, event.attempt
            return [_waited(run, record, event, before, now)]
        case ModelCompleted():
            run.tokens = run.tokens.plus(tokens_of(event.message))
            begin = now - event.duration_ms * 1_000_000 if event.duration_ms else before
            attributes, decided = _answer(run, event.message), _decided(event.decisions, now)
            return [_child(run, record, _chat(attributes), Kind.CLIENT, begin, now, attributes, moments=decided)]
        case ModelFailed():
            run.last += (event.wait_ms or 0) * 1_000_000
            attributes = _asked(run, event.model)
            attributes |= {"error.type": event.error, "sika.model.failure": event.reason}
            return [_child(run, record, _chat(attributes), Kind.CLIENT, before, now, attributes, error=event.reason)]
        case ToolRequested():
            run.tools[event.call_id] = event.name, now
        case ToolCompleted() if event.call_id in run.tools:
            name, begin = run.tools.pop(event.call_id)
            return [_called(run, record, event, name, begin, now)]
        case ToolCompleted():
            _note(run, *_decided(event.decisions, now, event.call_id))
        case ContextCompacted():
            run.tokens = run.tokens.plus(tokens_of(event.summary))
            _note(run, _compacted(event, now))
        case ApprovalRequested() | ApprovalResolved():
            _note(run, _approval(event, now))
        case _ if type(event) in ENDS:
            return [_whole(run, record, event, now)]
    return []


def _waited(run: _Run, record: Record, event: RunStarted, begin: int, end: int) -> Span:
    """From the moment a run lay in the queue, or its last worker was heard of, to its start."""
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


def _called(run: _Run, record: Record, event: ToolCompleted, name: str, begin: int, end: int) -> Span:
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
    decided = _decided(event.decisions, end)
    called = f"execute_tool {name}"
    return _child(run, record, called, Kind.INTERNAL, begin, end, attributes, error=error, moments=decided)


def _whole(run: _Run, record: Record, event: Any, end: int) -> Span:
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


def _asked(run: _Run, other: str | None) -> dict[str, Value]:
    """Which model was asked: the run's, or another in its place."""
    attributes: dict[str, Value] = {"gen_ai.operation.name": "chat"}
    if model := other or run.model:
        attributes["gen_ai.request.model"] = model
    if other and run.model and other != run.model:
        attributes["sika.model.instead_of"] = run.model
    return attributes


def _chat(attributes: Mapping[str, Value]) -> str:
    return f"chat {attributes.get('gen_ai.request.model', '')}".rstrip()


def _answer(run: _Run, message: Message) -> dict[str, Value]:
    """What the provider said of its answer."""
    said = message.get("response_metadata")
    said = said if isinstance(said, dict) else {}
    other = said.get(ANSWERED_BY)
    tokens, attributes = tokens_of(message), _asked(run, other if isinstance(other, str) else None)
    for name, key in (("gen_ai.provider.name", "model_provider"), ("gen_ai.response.model", "model_name")):
        if isinstance(value := said.get(key), str) and value:
            attributes[name] = value
    if isinstance(reason := said.get("finish_reason"), str):
        attributes["gen_ai.response.finish_reasons"] = [reason]
    if tokens.total:
        attributes["gen_ai.usage.input_tokens"] = tokens.input
        attributes["gen_ai.usage.output_tokens"] = tokens.output
    if tokens.cache_read:
        attributes["gen_ai.usage.cache_read.input_tokens"] = tokens.cache_read
    return attributes


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _note(run: _Run, *moments: Moment) -> None:
    run.moments += moments[: MOST_MOMENTS - len(run.moments)]


def _decided(decisions: Iterable[Decision], at: int, call_id: str | None = None) -> list[Moment]:
    """What policies did about an answer or a call; `call_id` where the span does not say which."""
    which: dict[str, Value] = {"gen_ai.tool.call.id": call_id} if call_id else {}
    return [
        Moment(
            "sika.policy.decision",
            at,
            {"sika.policy.name": one.policy[:MOST_NAME], "sika.policy.action": one.action[:MOST_NAME], **which},
        )
        for one in decisions
    ]


def _compacted(event: ContextCompacted, at: int) -> Moment:
    attributes: dict[str, Value] = {
        "sika.context.tokens_before": event.tokens_before,
        "sika.context.tokens_after": event.tokens_after,
    }
    if event.model:
        attributes["gen_ai.request.model"] = event.model
    return Moment("sika.context.compacted", at, attributes)


def _approval(event: ApprovalRequested | ApprovalResolved, at: int) -> Moment:
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
    """Named by the event that ends it. Clocks of several machines may disagree: none ends before it begins."""
    attributes["gen_ai.conversation.id"] = record.aggregate.id
    span, begin = _span(record.id), min(begin, end)
    return Span(run.trace, span, run.span, name, kind, begin, end, attributes, error, tuple(moments))


def _trace(run: str) -> str:
    return blake2b(run.encode(), digest_size=16, person=b"trace").hexdigest()


def _span(name: str) -> str:
    return blake2b(name.encode(), digest_size=8, person=b"span").hexdigest()


def nanoseconds(at: str) -> int:
    """Since 1970, of a time as events have it. Raises `ValueError`."""
    return (datetime.fromisoformat(at) - _EPOCH) // timedelta(microseconds=1) * 1000
