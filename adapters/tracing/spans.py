"""Facts to spans: what a run did and how long it took, told when it is over; nothing is measured for it.

Names follow OpenTelemetry's conventions for generative AI and messaging (semantic conventions 1.41). Ids are derived
from ids of the log, so that what is told twice is the same span. No text of a conversation gets into a span.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from hashlib import blake2b
from typing import Any

import structlog

from core.errors import Invalid
from core.events import (
    Message,
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
    ToolCompleted,
    ToolRequested,
)
from core.usage import Tokens, tokens_of

log = structlog.get_logger("sika.tracing")

KEPT = 10_000
"""Runs that have not ended, which are remembered."""
TRACEPARENT = "traceparent"
"""Key of a run's metadata: the span that wanted it (W3C Trace Context, level 1)."""
MOST_TEXT = 500
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATUS: Mapping[type, str] = {
    RunCompleted: "success",
    RunPaused: "paused",
    RunFailed: "error",
    RunCancelled: "interrupted",
    RunRolledBack: "rolled_back",
}

Value = str | int | float | bool | list[str]


class Kind(IntEnum):
    """OTLP's `SpanKind`."""

    INTERNAL = 1
    CLIENT = 3
    CONSUMER = 5


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
        if type(event) in _STATUS:
            del self._runs[name]
        return found if run.ours and run.sampled else []

    def _keep(self, name: str, run: _Run) -> _Run:
        self._runs[name] = run
        if len(self._runs) > KEPT:
            self._runs.popitem(last=False)
        return run


def _requested(record: Record, event: RunRequested, name: str, now: int, *, ours: bool) -> _Run:
    run = _Run(_trace(name), _span(name), ours=ours, agent=event.assistant, requested=record.id, begin=now, last=now)
    given = event.metadata.get(TRACEPARENT)
    found = _PARENT.fullmatch(given) if isinstance(given, str) else None
    if found and not (found[1] == "00" and found[5]):
        run.trace, run.parent, run.sampled = found[2], found[3], bool(int(found[4], 16) & 1)
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
            return [_child(run, record, f"chat {run.model}", Kind.CLIENT, begin, now, _answer(run, event.message))]
        case ModelFailed():
            run.last += (event.wait_ms or 0) * 1_000_000
            attributes = {**_asked(run), "error.type": event.error, "sika.model.failure": event.reason}
            name = f"chat {run.model}"
            return [_child(run, record, name, Kind.CLIENT, before, now, attributes, error=event.reason)]
        case ToolRequested():
            run.tools[event.call_id] = event.name, now
        case ToolCompleted() if event.call_id in run.tools:
            name, begin = run.tools.pop(event.call_id)
            return [_called(run, record, event, name, begin, now)]
        case _ if type(event) in _STATUS:
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
    return _child(run, record, f"execute_tool {name}", Kind.INTERNAL, begin, end, attributes, error=error)


def _whole(run: _Run, record: Record, event: Any, end: int) -> Span:
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": run.agent,
        "gen_ai.conversation.id": record.head.aggregate,
        "gen_ai.usage.input_tokens": run.tokens.input,
        "gen_ai.usage.output_tokens": run.tokens.output,
        "sika.run.id": record.run or "",
        "sika.run.status": _STATUS[type(event)],
        "sika.run.attempts": run.attempts,
    }
    if run.model:
        attributes["gen_ai.request.model"] = run.model
    error = None
    if isinstance(event, RunFailed):
        error, attributes["error.type"] = event.text[:MOST_TEXT] or event.error, event.error
    name = f"invoke_agent {run.agent}".rstrip()
    return Span(run.trace, run.span, run.parent, name, Kind.INTERNAL, run.begin, max(run.begin, end), attributes, error)


def _asked(run: _Run) -> dict[str, Value]:
    return {"gen_ai.operation.name": "chat", **({"gen_ai.request.model": run.model} if run.model else {})}


def _answer(run: _Run, message: Message) -> dict[str, Value]:
    """What the provider said of its answer."""
    tokens, attributes = tokens_of(message), _asked(run)
    said = message.get("response_metadata")
    said = said if isinstance(said, dict) else {}
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
) -> Span:
    """Named by the event that ends it. Clocks of several machines may disagree: none ends before it begins."""
    attributes["gen_ai.conversation.id"] = record.head.aggregate
    return Span(run.trace, _span(record.id), run.span, name, kind, min(begin, end), end, attributes, error)


def _trace(run: str) -> str:
    return blake2b(run.encode(), digest_size=16, person=b"trace").hexdigest()


def _span(name: str) -> str:
    return blake2b(name.encode(), digest_size=8, person=b"span").hexdigest()


def nanoseconds(at: str) -> int:
    """Since 1970, of a time as events have it. Raises `ValueError`."""
    return (datetime.fromisoformat(at) - _EPOCH) // timedelta(microseconds=1) * 1000
