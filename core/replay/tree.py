"""Runs of a thread as trees of spans: run → answer → its calls → the runs of subagents.

A span is what took time. Attempts that failed, waits for a person and takeovers are spans of their own, so that the
time of a run is told by its children. Times are those of the log's events. An answer began when its call was made; a
retry ends when the next one may begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Literal

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
from core.replay.causes import Read
from core.thread.kinds import SUBAGENT
from core.thread.previews import text_of
from core.thread.tokens import reported, tokens_of

Kind = Literal["run", "answer", "call", "retry", "wait", "attempt", "summary"]
DEEPEST = 8
"""Limit of subagents in subagents that are read."""
PAUSE_EVERY = 1000
"""Events after which other tasks of the process go on."""


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
    state: str = ""
    args: Json = {}
    """Arguments of a call."""
    subagent: str | None = None
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


async def tree(read: Read, aggregate: Aggregate, deepest: int = DEEPEST) -> list[Span]:
    """Returns the runs of a log, oldest first, with those of their subagents."""
    builder = _Builder()
    for number, record in enumerate(await read(aggregate)):
        builder.add(record)
        if number % PAUSE_EVERY == 0:
            await asyncio.sleep(0)
    for call in builder.delegated if deepest > 0 else ():
        call.children = await tree(read, Aggregate(SUBAGENT, call.subagent or ""), deepest - 1)
    return list(builder.runs.values())


class _Builder:
    """Builds the spans of one log, event by event."""

    def __init__(self) -> None:
        self.runs: dict[str, Span] = {}
        self.delegated: list[Span] = []
        self._answers: dict[str, Span] = {}
        self._calls: dict[tuple[str, str], Span] = {}
        self._waits: dict[str, Span] = {}
        self._args: dict[str, Json] = {}

    def add(self, record: Record) -> None:
        run = self.runs.get(record.run or "")
        event = record.event
        if isinstance(event, RunRequested) and record.run:
            self.runs[record.run] = Span("run", record.run, record.seq, record.at, text=_asked(event), state="pending")
        elif run is not None:
            self._of_run(run, record)

    def _of_run(self, run: Span, record: Record) -> None:
        match record.event:
            case RunStarted(attempt=attempt, worker=worker, model=model):
                run.state, run.name = "running", model or run.name
                if attempt > 1:
                    self._leaf(run, "attempt", f"attempt {attempt}", record, text=f"by {worker}")
            case ModelFailed() as failure:
                text = f"{failure.reason}, try {failure.attempt} of {failure.max_attempts}"
                span = self._leaf(run, "retry", failure.model or "model", record, text=text, failed=True)
                span.end = _shifted(record.at, failure.wait_ms or 0)
            case ModelSampled() as sampled:
                span = self._leaf(run, "answer", sampled.model, record, text=sampled.text)
                span.begin = _shifted(record.at, -sampled.duration_ms)
                span.tokens = reported(sampled.usage, calls=1).total
            case ModelCompleted() as answer:
                span = self._leaf(run, "answer", "answer", record, text=text_of(answer.message.get("content", "")))
                span.begin = _shifted(record.at, -answer.duration_ms)
                span.tokens = tokens_of(answer.message).total
                self._answers[record.run or ""] = span
                calls = answer.message.get("tool_calls") or ()
                self._args = {str(call.get("id")): call.get("args") or {} for call in calls}
            case ToolRequested(call_id=call, name=name, args=args):
                span = Span("call", name, record.seq, record.at, args=args or self._args.get(call, {}))
                self._calls[record.run or "", call] = span
                self._answers.get(record.run or "", run).children.append(span)
            case SubagentStarted(call_id=call, subagent=subagent, name=name):
                if caller := self._calls.get((record.run or "", call)):
                    caller.subagent, caller.text = subagent, name
                    self.delegated.append(caller)
            case ToolCompleted() as outcome:
                self._completed(run, record, outcome)
            case ApprovalRequested(call_id=call, tool=tool):
                self._waits[call] = Span("wait", "a person", record.seq, record.at, text=f"approval of {tool}")
                run.children.append(self._waits[call])
            case ApprovalResolved(call_id=call, decision=decision) if call in self._waits:
                wait = self._waits.pop(call)
                wait.seq, wait.end, wait.text = record.seq, record.at, f"{wait.text}: {decision}"
            case ContextCompacted():
                self._leaf(run, "summary", "summary", record)
            case Event() as end if type(end) in ENDS:
                run.seq, run.end, run.state = record.seq, record.at, ENDS[type(end)].name
                run.failed = isinstance(end, RunFailed)
                run.text = f"{run.text}: {end.text}" if isinstance(end, RunFailed) else run.text

    def _completed(self, run: Span, record: Record, outcome: ToolCompleted) -> None:
        span = self._calls.get((record.run or "", outcome.call_id))
        if span is None:  # refused by a policy, or answered by it
            span = Span("call", str(outcome.message.get("name", "?")), record.seq, record.at)
            self._answers.get(record.run or "", run).children.append(span)
        span.seq, span.end = record.seq, record.at
        span.failed = outcome.message.get("status") == "error" or outcome.unknown or bool(outcome.exit_code)
        text = text_of(outcome.message.get("content", ""))
        span.text = f"{span.text}: {text}" if span.text else text

    def _leaf(self, run: Span, kind: Kind, name: str, record: Record, text: str = "", failed: bool = False) -> Span:
        span = Span(kind, name, record.seq, record.at, record.at, text, failed)
        run.children.append(span)
        return span


def _asked(event: RunRequested) -> str:
    messages = (event.input or {}).get("messages") or []
    return text_of(messages[-1].get("content", "")) if messages else ""


def _shifted(at: str, milliseconds: int) -> str:
    return (datetime.fromisoformat(at) + timedelta(milliseconds=milliseconds)).isoformat()
