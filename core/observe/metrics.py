"""Metrics of the log: a fold of events to counters and histograms.

Labels are names of the configuration and fixed words, never ids or people. A label has at most `MOST` distinct values;
the rest count as `other`. Every process reads the whole log, so every process counts the same.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from cachetools import LRUCache

from core.errors import Invalid
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Decision,
    Event,
    FileConverted,
    FileRejected,
    FileUploaded,
    GoalEvaluated,
    Message,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
    QuestionsSuggested,
    Record,
    RunRequested,
    RunStarted,
    ThreadTitled,
    ToolCompleted,
    WebhookDelivered,
    WebhookFailed,
)
from core.lifecycle import ENDS, End
from core.thread.usage import ANSWERED_BY, UNNAMED, tokens_of

MOST = 100
"""Limit of distinct values of a label."""
OTHER = "other"
KEPT = 10_000
"""Limit of open runs whose times are remembered."""
_NAME = re.compile(r"[\w.:/@+-]{1,100}", re.ASCII)
"""The pattern of a name. Models invent tools with arbitrary names."""
_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


@dataclass(frozen=True, eq=False, slots=True)
class Family:
    """A metric: its name, its help, and the names of its labels. Histograms are of seconds."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(f"sika_{name}_total", "counter", text, labels)


def _histogram(name: str, text: str, *labels: str) -> Family:
    return Family(f"sika_{name}_seconds", "histogram", text, labels, _SECONDS)


EVENTS = _counter("events", "Events in the log.", "type")
REQUESTED = _counter("runs_requested", "Runs that were asked for.")
RUNS = _counter("runs", "Runs that ended.", "status")
RUN_SECONDS = _histogram("run_duration", "From the first start of a run to its end.", "status")
QUEUE_SECONDS = _histogram("run_queue", "From the moment a run may begin to its first start.")
ATTEMPTS = _counter("run_attempts", "Starts of runs.")
TAKEOVERS = _counter("run_takeovers", "Starts of runs that another worker, or the same one before, did not finish.")
CALLS = _counter("model_calls", "Answers of models.", "model")
CALL_SECONDS = _histogram("model_call_duration", "From a request to a model to the end of its answer.", "model")
TOKENS = _counter("model_tokens", "Tokens; cache_read is part of input.", "model", "kind")
FAILURES = _counter("model_failures", "Tries of model calls that failed.", "model", "reason")
TOOLS = _counter("tool_calls", "Outcomes of tool calls; unknown where a crash hid them.", "tool", "status")
TOOL_SECONDS = _histogram("tool_call_duration", "Duration of tool calls.", "tool")
DECISIONS = _counter("policy_decisions", "What policies did about answers and tool calls.", "policy", "action")
COMPACTIONS = _counter("compactions", "Conversations summarised, by the model that wrote the summary.", "model")
ASKED = _counter("approvals_requested", "Tool calls that were made to wait for a person.", "tool")
DECIDED = _counter("approvals_decided", "What became of calls that waited; expire: time decided.", "decision")
UPLOADS = _counter("uploads", "Files uploaded.")
UPLOADED = _counter("upload_bytes", "Bytes of files uploaded.")
CONVERSIONS = _counter("conversions", "Files converted to Markdown, or rejected.", "result")
WEBHOOKS = _counter("webhook_tries", "Tries to post an outcome; given_up is the last one that failed.", "result")


class Histogram:
    """Counts of values between the bounds of a family's buckets (the last: above all), and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.sum = 0.0


class Numbers:
    """Values by family and labels. Families are listed in the order in which they first had a value."""

    def __init__(self) -> None:
        self.counts: dict[Family, dict[tuple[str, ...], float]] = {}
        self.histograms: dict[Family, dict[tuple[str, ...], Histogram]] = {}
        self._values: dict[str, set[str]] = {}

    def count(self, family: Family, *labels: str, by: float = 1) -> None:
        values = self.counts.setdefault(family, {})
        if labels not in values:
            labels = self._bounded(family, labels)
        values[labels] = values.get(labels, 0) + by

    def observe(self, family: Family, value: float, *labels: str) -> None:
        histograms = self.histograms.setdefault(family, {})
        if labels not in histograms:
            labels = self._bounded(family, labels)
        histogram = histograms.get(labels) or histograms.setdefault(labels, Histogram(len(family.buckets)))
        histogram.counts[bisect_left(family.buckets, value)] += 1
        histogram.sum += value

    def _bounded(self, family: Family, labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self._limited(name, value) for name, value in zip(family.labels, labels, strict=True))

    def _limited(self, name: str, value: str) -> str:
        values = self._values.setdefault(name, set())
        if value not in values:
            if len(values) >= MOST or not _NAME.fullmatch(value):
                return OTHER
            values.add(value)
        return value


@dataclass(slots=True)
class _Run:
    eligible: float | None = None
    """The time from which it may start."""
    started: float | None = None
    model: str = UNNAMED


class Metrics:
    """The fold. For runs that began before its first event it counts events, and measures no durations."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self._runs: LRUCache[str, _Run] = LRUCache(KEPT)

    def add(self, record: Record) -> None:
        self.numbers.count(EVENTS, record.type)
        try:
            self._fold(record)
        except (Invalid, ValueError):  # an event or a time that cannot be read: the projections log it
            return

    def _fold(self, record: Record) -> None:
        numbers, event = self.numbers, record.event
        match event:
            case ModelCompleted():
                self._answered(record, event)
            case ToolCompleted():
                self._called(event)
            case RunRequested():
                numbers.count(REQUESTED)
                self._run(record).eligible = max(_time(record.at), _time(event.not_before or record.at))
            case RunStarted():
                self._started(record, event)
            case ModelFailed():
                numbers.count(FAILURES, event.model or self._model(record), event.reason)
            case ContextCompacted():
                numbers.count(COMPACTIONS, event.model or UNNAMED)
                self._used(event.model or UNNAMED, event.summary)
            case ModelSampled():
                self._used(event.model, {"usage_metadata": event.usage})
            case ThreadTitled() | GoalEvaluated() | QuestionsSuggested() if event.model is not None:
                self._used(event.model, {"usage_metadata": event.usage})
            case ApprovalRequested():
                numbers.count(ASKED, event.tool)
            case ApprovalResolved():
                numbers.count(DECIDED, event.decision)
            case FileUploaded():
                numbers.count(UPLOADS)
                numbers.count(UPLOADED, by=event.size)
            case FileConverted():
                numbers.count(CONVERSIONS, "converted")
            case FileRejected():
                numbers.count(CONVERSIONS, "rejected")
            case WebhookDelivered():
                numbers.count(WEBHOOKS, "delivered")
            case WebhookFailed():
                numbers.count(WEBHOOKS, "failed" if event.again_at else "given_up")
            case Event() if end := ENDS.get(type(event)):
                self._ended(record, end)

    def _started(self, record: Record, event: RunStarted) -> None:
        run = self._run(record)
        self.numbers.count(ATTEMPTS)
        if event.attempt > 1:
            self.numbers.count(TAKEOVERS)
        elif run.eligible is not None and run.started is None:
            self.numbers.observe(QUEUE_SECONDS, _since(run.eligible, record))
            run.started = _time(record.at)
        run.model = event.model or run.model

    def _ended(self, record: Record, end: End) -> None:
        self.numbers.count(RUNS, end.name)
        run = self._runs.pop(record.run or "", None)
        if run and run.started is not None:
            self.numbers.observe(RUN_SECONDS, _since(run.started, record), end.name)

    def _answered(self, record: Record, event: ModelCompleted) -> None:
        model = _stand_in(event.message) or self._model(record)
        self._used(model, event.message)
        self._decided(event.decisions)
        if event.duration_ms > 0:
            self.numbers.observe(CALL_SECONDS, event.duration_ms / 1000, model)

    def _used(self, model: str, message: Message) -> None:
        tokens = tokens_of(message)
        self.numbers.count(CALLS, model)
        for kind, amount in (("input", tokens.input), ("output", tokens.output), ("cache_read", tokens.cache_read)):
            if amount:
                self.numbers.count(TOKENS, model, kind, by=amount)

    def _decided(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self.numbers.count(DECISIONS, decision.policy, decision.action)

    def _called(self, event: ToolCompleted) -> None:
        name = _text(event.message.get("name"), UNNAMED)
        status = "unknown" if event.unknown else _text(event.message.get("status"), "success")
        self.numbers.count(TOOLS, name, status)
        self._decided(event.decisions)
        if not event.unknown:
            self.numbers.observe(TOOL_SECONDS, event.duration_ms / 1000, name)

    def _model(self, record: Record) -> str:
        run = self._runs.get(record.run or "")
        return run.model if run else UNNAMED

    def _run(self, record: Record) -> _Run:
        name = record.run or ""
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = _Run()
        return run


def _stand_in(message: Message) -> str | None:
    """Returns the model that answered in place of the run's."""
    metadata = message.get("response_metadata")
    model = metadata.get(ANSWERED_BY) if isinstance(metadata, dict) else None
    return _text(model, "") or None


def _text(value: Any, default: str) -> str:
    return value if isinstance(value, str) and value else default


def _since(moment: float, record: Record) -> float:
    """Returns the seconds since then, at least 0: clocks of several machines may disagree."""
    return max(0.0, _time(record.at) - moment)


def _time(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
