"""Runs of a thread as trees of spans: run → answer → its calls → the runs of subagents.

A span is a stretch of time. Attempts that failed, waits for a person and takeovers are spans of their own, so that the
time of a run follows from its children. Times are those of the log's events. An answer began when its call was made; a
retry ends when the next one may begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from core.events import (
    Aggregate,
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Event,
    Json,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
    Record,
    RunFailed,
    RunRequested,
    RunStarted,
    SubagentStarted,
    ToolCompleted,
    ToolRequested,
)
from core.lifecycle import ENDS
from core.log.kinds import SUBAGENT
from core.replay.cuts import MORE, Spend, cut
from core.replay.money import Cost, Meter, Prices
from core.thread.messages import text_of

if TYPE_CHECKING:
    from core.log.reader import Read
    from core.thread.state import Run

Kind = Literal["run", "answer", "call", "retry", "wait", "attempt", "summary"]
DEEPEST = 8
"""Limit of subagents in subagents that are read."""
SHORT = 8
"""Characters by which a subagent is named."""
PAUSE_EVERY = 1000
"""Events after which other tasks of the process go on."""
LONGEST = 2000
"""Characters of a text in a bounded tree."""
SPAN_BYTES = 500
"""Bytes that a span takes besides its text and its arguments."""


class Span(msgspec.Struct):
    """A span of a run. `seq` is the event that ended it, or the one that began it while it is open.

    `end` is None while it is open. `tokens` are its own; `state` is the end of a run.
    """

    kind: Kind
    name: str
    seq: int
    begin: str
    end: str | None = None
    text: str = ""
    failed: bool = False
    tokens: int = 0
    cost: Cost = {}
    """Its own costs, by the prices of today."""
    state: str = ""
    args: Json = {}
    """Arguments of a call."""
    subagent: str | None = None
    number: int = 0
    """The number of the event `seq` in its log, from 1; 0 where the log was not read from its beginning."""
    actor: str = ""
    """The actor whose event it is."""
    children: list[Span] = []

    def all(self) -> Iterator[Span]:
        """Yields the span and all below it, in order."""
        yield self
        for child in self.children:
            yield from child.all()

    def milliseconds(self) -> int | None:
        """Returns its duration; None while it is open."""
        if self.end is None:
            return None
        took = datetime.fromisoformat(self.end) - datetime.fromisoformat(self.begin)
        return max(0, round(took / timedelta(milliseconds=1)))


def shares(run: Span) -> dict[str, int]:
    """Returns the milliseconds of a run by what it waited for: the critical path, walked back from its end.

    Where several children ran at once, only the one that ended last counts for the time they share. A call of a
    subagent is divided among what its run waited for. `other` is time in which no child was open.
    """
    if run.end is None:
        return {}
    result: dict[str, int] = {}
    end = _time(run.end)
    for child in sorted((c for c in _parts(run) if c.end), key=lambda c: _time(c.end or ""), reverse=True):
        begin, until = _time(child.begin), min(end, _time(child.end or ""))
        if until <= begin:
            continue
        _count(result, "other", end - until)
        inner = [grand for grand in child.children if grand.kind == "run" and grand.end]
        if inner:
            for name, milliseconds in shares(inner[0]).items():
                _count(result, name, timedelta(milliseconds=milliseconds))
        else:
            _count(result, _waited_for(child), until - begin)
        end = begin
    _count(result, "other", max(timedelta(), end - _time(run.begin)))
    return dict(sorted(result.items(), key=lambda item: -item[1]))


class Lane(NamedTuple):
    """The work of one actor of a run: the lead, a subagent, or the person that it waited for."""

    name: str
    spans: list[Span]


def lanes(run: Span) -> list[Lane]:
    """Returns the lanes of a run, in the order in which they begin: one for each actor, and one for each subagent."""
    result: dict[str, Lane] = {}
    _fill(run, run.actor, result)
    return sorted(result.values(), key=lambda lane: min(span.begin for span in lane.spans))


def _fill(span: Span, name: str, lanes: dict[str, Lane]) -> None:
    """Puts the spans below a span into lanes, those of subagents into lanes of their own."""
    for child in span.children:
        lane = child.name if child.kind == "wait" else name
        if child.kind == "run":
            lane = f"{span.text.partition(':')[0]} {(span.subagent or '')[:SHORT]}"
        elif not child.subagent:
            lanes.setdefault(lane, Lane(lane, [])).spans.append(child)
        _fill(child, lane, lanes)


def _parts(run: Span) -> Iterator[Span]:
    """Yields answers, their calls, retries and waits of a run."""
    for child in run.children:
        yield child
        yield from (call for call in child.children if call.kind == "call")


def _waited_for(span: Span) -> str:
    return {"answer": "model", "retry": "retries", "wait": "a person", "summary": "summaries"}.get(span.kind, span.name)


def _count(result: dict[str, int], name: str, more: timedelta) -> None:
    if milliseconds := round(more / timedelta(milliseconds=1)):
        result[name] = result.get(name, 0) + milliseconds


def _time(at: str) -> datetime:
    return datetime.fromisoformat(at)


async def tree(read: Read, aggregate: Aggregate, prices: Prices | None = None) -> list[Span]:
    """Returns the runs of a log, oldest first, with those of their subagents. Holds them, and not the log."""

    async def records(log: Aggregate) -> AsyncIterator[Record]:
        async with aclosing(read(log)) as stored:
            async for record in stored:
                yield Record(record.seq, record.raw, record.head)  # decoded for itself: a file's are kept, but plain

    return await _tree(records, _Builder(prices), aggregate)


async def bounded_tree(
    read: Read, aggregate: Aggregate, prices: Prices | None, spend: Spend, run: Run | None = None
) -> list[Span]:
    """Returns the same, or one run of a thread, without holding the log: texts and arguments are cut (`LONGEST`).
    `spend` is told the bytes that each span takes.
    """

    def records(log: Aggregate) -> AsyncIterator[Record]:
        if run is None or log != aggregate:
            return read(log)
        return read(log, after=run.requested_seq - 1, upto=run.ended_seq)

    return await _tree(records, _Builder(prices, spend, run.id if run else None), aggregate)


Records = Callable[[Aggregate], AsyncIterator[Record]]


async def _tree(records: Records, builder: _Builder, aggregate: Aggregate, deepest: int = DEEPEST) -> list[Span]:
    number = 0
    async for record in records(aggregate):
        builder.add(record)
        number += 1
        if number % PAUSE_EVERY == 0:
            await asyncio.sleep(0)
    for call in builder.delegated if deepest > 0 else ():
        call.children = await _tree(records, builder.another(), Aggregate(SUBAGENT, call.subagent or ""), deepest - 1)
    return list(builder.runs.values())


class _Builder:
    """Builds the spans of one log, event by event; those of one run if it is named. With `spend`, texts are cut."""

    def __init__(self, prices: Prices | None, spend: Spend | None = None, only: str | None = None) -> None:
        self.runs: dict[str, Span] = {}
        self._prices, self._spend, self._only = prices, spend, only
        self._longest = None if spend is None else LONGEST
        self._meter = Meter(prices)
        self._number = 0
        self.delegated: list[Span] = []
        self._answers: dict[str, Span] = {}
        self._calls: dict[tuple[str, str], Span] = {}
        self._waits: dict[str, Span] = {}
        self._args: dict[str, Json] = {}

    def another(self) -> _Builder:
        """Returns a builder for the log of a subagent."""
        return _Builder(self._prices, self._spend)

    def add(self, record: Record) -> None:
        self._number += self._only is None
        if self._only not in (None, record.run):
            return
        run = self.runs.get(record.run or "")
        event = record.event
        if isinstance(event, RunRequested) and record.run:
            self.runs[record.run] = self._span("run", record.run, record, text=_text_of_request(event), state="pending")
        elif run is not None:
            self._of_run(run, record)
        self._meter.learn(record)

    def _of_run(self, run: Span, record: Record) -> None:
        match record.event:
            case RunStarted(attempt=attempt, worker=worker, model=model):
                run.state, run.name, run.actor = "running", model or run.name, record.head.actor
                if attempt > 1:
                    self._leaf(run, "attempt", f"attempt {attempt}", record, text=f"by {worker}")
            case ModelFailed() as failure:
                text = f"{failure.reason}, try {failure.attempt} of {failure.max_attempts}"
                span = self._leaf(run, "retry", failure.model or "model", record, text=text, failed=True)
                span.end = _shifted(record.at, failure.wait_ms or 0)
            case ModelSampled() as sampled:
                span = self._leaf(run, "answer", sampled.model, record, text=sampled.text)
                span.begin = _shifted(record.at, -sampled.duration_ms)
            case ModelCompleted() as answer:
                self._answered(run, record, answer)
            case ToolRequested(call_id=call, name=name, args=args):
                span = self._span("call", name, record, args=args or self._args.get(call, {}))
                self._calls[record.run or "", call] = span
                self._answers.get(record.run or "", run).children.append(span)
            case SubagentStarted(call_id=call, subagent=subagent, name=name):
                if caller := self._calls.get((record.run or "", call)):
                    caller.subagent, caller.text = subagent, name
                    self.delegated.append(caller)
            case ToolCompleted() as outcome:
                self._completed(run, record, outcome)
            case ApprovalRequested(call_id=call, tool=tool):
                self._waits[call] = self._span("wait", "a person", record, text=f"approval of {tool}")
                run.children.append(self._waits[call])
            case ApprovalResolved(call_id=call, decision=decision) if call in self._waits:
                wait = self._waits.pop(call)
                wait.text = f"{wait.text}: {decision}"
                self._end(wait, record)
            case ContextCompacted():
                self._leaf(run, "summary", "summary", record)
            case Event() as end if type(end) in ENDS:
                self._end(run, record)
                run.state = ENDS[type(end)].name
                run.failed = isinstance(end, RunFailed)
                if isinstance(end, RunFailed):
                    self._say(run, f"{run.text}: {end.text}")

    def _answered(self, run: Span, record: Record, answer: ModelCompleted) -> None:
        span = self._leaf(run, "answer", "answer", record, text=text_of(answer.message.get("content", "")))
        span.begin = _shifted(record.at, -answer.duration_ms)
        self._answers[record.run or ""] = span
        calls = answer.message.get("tool_calls") or ()
        self._args = {str(call.get("id")): call.get("args") or {} for call in calls}

    def _completed(self, run: Span, record: Record, outcome: ToolCompleted) -> None:
        span = self._calls.get((record.run or "", outcome.call_id))
        if span is None:  # refused by a policy, or answered by it
            span = self._span("call", str(outcome.message.get("name", "?")), record)
            self._answers.get(record.run or "", run).children.append(span)
        self._end(span, record)
        span.failed = outcome.message.get("status") == "error" or outcome.unknown or bool(outcome.exit_code)
        text = text_of(outcome.message.get("content", ""))
        self._say(span, f"{span.text}: {text}" if span.text else text)

    def _leaf(self, run: Span, kind: Kind, name: str, record: Record, text: str = "", failed: bool = False) -> Span:
        """Adds a span of one event to a run, with the usage of its model call."""
        span = self._span(kind, name, record, text=text, failed=failed)
        span.end = record.at
        if used := self._meter.used(record):
            span.tokens, span.cost = used.tokens.total, used.cost
        run.children.append(span)
        return span

    def _span(
        self, kind: Kind, name: str, record: Record, text: str = "", args: Json | None = None, **facts: Any
    ) -> Span:
        span = Span(kind, name, record.seq, record.at, number=self._number, actor=record.head.actor, **facts)
        shown = cut(args or {}, self._longest)
        span.args = shown if isinstance(shown, dict) else {MORE: shown}
        if self._spend is not None:
            self._spend(SPAN_BYTES + len(msgspec.json.encode(span.args)))
        self._say(span, text)
        return span

    def _say(self, span: Span, text: str) -> None:
        """Gives a span its text."""
        span.text = cut(text, self._longest)
        if self._spend is not None:
            self._spend(len(span.text))

    def _end(self, span: Span, record: Record) -> None:
        span.seq, span.number, span.end = record.seq, self._number, record.at


def _text_of_request(event: RunRequested) -> str:
    messages = (event.input or {}).get("messages") or []
    return text_of(messages[-1].get("content", "")) if messages else ""


def _shifted(at: str, milliseconds: int) -> str:
    return (datetime.fromisoformat(at) + timedelta(milliseconds=milliseconds)).isoformat()
