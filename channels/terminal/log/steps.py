"""Steps of a thread for people: a line for each answer, call, wait and retry, under the totals of their run. Pure.

A call is one line, with its outcome, at the place of its request. If its worker was lost meanwhile, the outcome has a
line of its own. Events without a rule here are shown as in `channels.terminal.log.story`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from channels.terminal.log.numbers import Numbers
from channels.terminal.log.story import is_error
from channels.terminal.text import Style, clean, money, one_line, seconds
from core.events import (
    ApprovalRequested,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunStarted,
    SubagentProgressed,
    ToolCompleted,
    ToolRequested,
)
from core.lifecycle import ENDS
from core.phrases import UNCUT, counted, decisions, quote, subject_of
from core.replay.money import Cost, Meter, Prices, Used, together
from core.wording import Narration, line_of, text_of_event

IDLE_SECONDS = 1.0
"""Length of a gap between two events from which on it has a line."""
RESULT_SHARE = 3
"""The part of a line that a result may take: one third."""


class Totals(msgspec.Struct):
    """Sums over the events of a run or a thread. Times are in seconds."""

    runs: int = 0
    events: int = 0
    answers: int = 0
    calls: int = 0
    tokens: int = 0
    cost: Cost = {}
    retries: int = 0
    failures: int = 0
    attempts: int = 0
    waited: float = 0.0
    """Time between a pause and the run that goes on from it."""
    begin: str = ""
    end: str = ""

    def add(self, record: Record, used: Used | None) -> None:
        """Takes in an event, with the usage of its model call."""
        self.events += 1
        if used:
            self.tokens, self.cost = self.tokens + used.tokens.total, together((self.cost, used.cost))
        self.begin, self.end = self.begin or record.at, record.at
        match record.event:
            case RunRequested():
                self.runs += 1
            case RunStarted(attempt=attempt) if attempt > 1:
                self.attempts += 1
            case ModelCompleted():
                self.answers += 1
            case ModelFailed():
                self.retries += 1
            case ToolCompleted() as outcome:
                self.calls += 1
                self.failures += is_error(outcome)
            case RunFailed():
                self.failures += 1

    def text(self) -> str:
        """Returns `2.3 s · 2 532 tokens · 2 failed attempts`."""
        took = max(0.0, _between(self.begin, self.end) - self.waited) if self.begin else 0.0
        failures = ((self.retries, "failed attempt"), (self.failures, "failure"), (self.attempts, "takeover"))
        facts = [span(took), f"{_thousands(self.tokens)} tokens", money(self.cost)]
        facts += [counted(self.answers, "answer"), counted(self.calls, "call")]
        facts += [counted(number, word) for number, word in failures if number]
        facts += [f"waited {span(self.waited)}"] if self.waited >= IDLE_SECONDS else []
        return " · ".join(filter(None, facts))


class Row(NamedTuple):
    """A line before it is laid out. `took` is in milliseconds, None where nothing took time."""

    record: Record
    mark: str
    text: str
    result: str = ""
    took: int | None = None
    note: str = ""
    """Stands for the time that it took."""
    failed: bool = False
    more: tuple[str, ...] = ()
    """Further lines, in full."""


def lines(
    records: Sequence[Record],
    style: Style,
    width: int,
    every: Sequence[Record] | None = None,
    prices: Prices | None = None,
) -> Iterator[str]:
    """Yields the lines of events, and the totals. `every`: all events of the log, for the numbers."""
    numbers = Numbers(every or records)
    of_runs: dict[str | None, Totals] = {}
    whole = Totals()
    meter = Meter(prices)
    for record in records:
        meter.learn(record)
        used = meter.used(record)
        whole.add(record, used)
        of_runs.setdefault(record.run, Totals()).add(record, used)
    whole.waited = sum(_waits(records))
    begins: dict[str | None, str] = {}
    models: dict[str | None, str] = {r.run: r.event.model or "" for r in records if isinstance(r.event, RunStarted)}
    current: str | None = None
    for row in rows(records):
        run = row.record.run
        begin = begins.setdefault(run, row.record.at)
        if run is not None and run != current:
            current = run
            count = sum(name is not None for name in begins)
            facts = " · ".join(filter(None, [models.get(run, ""), of_runs[run].text()]))
            yield style.bold(one_line(f"run {count}  {run}  {facts}", max(20, width)))
        yield from _laid_out(row, numbers.of(row.record), _between(begin, row.record.at), style, width)
    yield style.bold(
        one_line(f"{counted(whole.runs, 'run')} · {counted(whole.events, 'event')} · {whole.text()}", max(20, width))
    )


def rows(records: Sequence[Record]) -> Iterator[Row]:
    """Yields the rows of events."""
    builder = _Rows(records)
    before: Record | None = None
    for record in records:
        yield from builder.gap(before, record)
        yield from builder.of(record)
        before = record


class _Rows:
    def __init__(self, records: Sequence[Record]) -> None:
        self._outcomes = _outcomes(records)
        self._args: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._shown: set[int] = set()
        """Sequences of events that are in an earlier row."""
        self._workers: dict[str, str] = {}

    def gap(self, before: Record | None, record: Record) -> Iterator[Row]:
        """Yields the row of a time in which nothing happened, before an event that does not explain it."""
        if before is None or _took(record.event) or isinstance(record.event, RunStarted | ToolCompleted):
            return
        idle = _between(before.at, record.at)
        if idle >= IDLE_SECONDS:
            waits = isinstance(before.event, RunPaused | ApprovalRequested)
            yield Row(record, "⋯", f"{span(idle)}{' waiting for a person' if waits else ''}")

    def of(self, record: Record) -> Iterator[Row]:
        run, event = record.run or "", record.event
        match event:
            case RunStarted():
                yield from self._started(record, run, event)
            case ModelCompleted():
                yield self._answer(record, run, event)
            case ModelFailed():
                yield Row(record, "!", line_of(event, limit=UNCUT), failed=True)
            case ToolRequested():
                yield self._requested(record, run, event)
            case ToolCompleted() if record.seq not in self._shown:
                yield self._completed(record, run, event)
            case ToolCompleted() | RunCompleted():
                yield from [Row(record, "■", text_of_event(event))] if isinstance(event, RunCompleted) else []
            case ApprovalRequested():
                command = "\n".join(clean(str(value)) for value in event.args.values() if isinstance(value, str))
                yield Row(record, "?", text_of_event(event), more=tuple(command.splitlines()))
            case SubagentProgressed():
                pass
            case _:
                mark = "■" if type(event) in ENDS else " "
                text = f"{record.type}  {Narration().text(record, limit=UNCUT)}".rstrip()
                yield Row(record, mark, text, failed=isinstance(event, RunFailed))

    def _started(self, record: Record, run: str, event: RunStarted) -> Iterator[Row]:
        before = self._workers.get(run)
        self._workers[run] = event.worker
        if event.attempt > 1:
            lost = f"{before} gone; " if before and before != event.worker else ""
            yield Row(record, "⚡", f"{lost}{text_of_event(event)}", failed=True)

    def _answer(self, record: Record, run: str, event: ModelCompleted) -> Row:
        for call in event.message.get("tool_calls") or ():
            self._args[run, str(call.get("id"))] = call.get("args") or {}
        text = quote(event.message, UNCUT) or counted(len(event.message.get("tool_calls") or ()), "call")
        return Row(record, "◆", " ".join([text, decisions(event.decisions, UNCUT)]), took=event.duration_ms)

    def _requested(self, record: Record, run: str, event: ToolRequested) -> Row:
        args = event.args or self._args.get((run, event.call_id), {})
        text = f"{event.name}  {subject(args)}".rstrip()
        outcome = self._outcomes.get((record.seq, event.call_id))
        if outcome is None:
            return Row(record, " ", text, "(no end)", note="open")
        self._shown.add(outcome.seq)
        return _of_outcome(record, outcome, text)

    def _completed(self, record: Record, run: str, event: ToolCompleted) -> Row:
        """Returns the row of an outcome whose request was not answered by the worker that made it."""
        began = (run, event.call_id) in self._args
        return _of_outcome(
            record, record, f"{event.message.get('name', '?')}  {'…picked up' if began else ''}".rstrip()
        )


def _of_outcome(record: Record, outcome: Record, text: str) -> Row:
    event = outcome.event
    assert isinstance(event, ToolCompleted)
    failed = is_error(event) or event.unknown
    result = f"exit {event.exit_code}  " if event.exit_code else ""
    result += " ".join([quote(event.message, UNCUT), decisions(event.decisions, UNCUT)])
    return Row(record, "✗" if failed else " ", text, result, event.duration_ms, failed=failed)


def subject(args: Mapping[str, Any]) -> str:
    """Returns what a call does: its command, path or query, else all arguments."""
    if text := subject_of(args):
        return " ⏎ ".join(line.strip() for line in text.splitlines())
    others = {name: value for name, value in args.items() if name != "description"}
    return msgspec.json.encode(others).decode() if others else ""


def span(value: float) -> str:
    """Returns a time in seconds as people say it: `80 ms`, `2.3 s`, `2 h 10 min`."""
    if value < 60:
        return seconds(round(value * 1000))
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join([f"{number} {unit}" for number, unit in units if number][:2])


def _outcomes(records: Sequence[Record]) -> dict[tuple[int, str], Record]:
    """Returns the outcomes of requests, by the request's sequence, where no other attempt began in between."""
    begun: dict[tuple[str, str], int] = {}
    outcomes: dict[tuple[int, str], Record] = {}
    for record in records:
        run, event = record.run or "", record.event
        match event:
            case RunStarted():
                for key in [key for key in begun if key[0] == run]:
                    del begun[key]
            case ToolRequested(call_id=call):
                begun[run, call] = record.seq
            case ToolCompleted(call_id=call) if (run, call) in begun:
                outcomes[begun.pop((run, call)), call] = record
    return outcomes


def _laid_out(row: Row, number: int, at: float, style: Style, width: int) -> Iterator[str]:
    took = row.note or (_short(row.took) if row.took is not None else "")
    head = f"{number:>5} {at:>8.2f} {took:>7} {row.mark} "
    room = max(20, width - len(head))
    text, result = one_line(row.text, UNCUT), one_line(row.result, UNCUT)
    if len(text) + len(result) + 2 > room:
        width = min(len(result), max(room // RESULT_SHARE, room - len(text) - 2))
        text, result = one_line(text, room - width - 2 if width else room), one_line(result, width) if width else ""
    line = f"{head}{text}" + (f"  {result}" if result else "")
    yield style.red(line) if row.failed else line
    yield from (f"{' ' * len(head)}{more}" for more in row.more)


def _waits(records: Sequence[Record]) -> Iterator[float]:
    """Yields the times between pauses and the runs that went on from them."""
    paused: Record | None = None
    for record in records:
        if isinstance(record.event, RunPaused):
            paused = record
        elif paused is not None and isinstance(record.event, RunRequested):
            yield _between(paused.at, record.at)
            paused = None


def _took(event: object) -> int:
    return getattr(event, "duration_ms", 0) or 0


def _between(begin: str, end: str) -> float:
    try:
        return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds())
    except ValueError:
        return 0.0


def _short(milliseconds: int) -> str:
    return f"{milliseconds}ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f}s"


def _thousands(number: int) -> str:
    return f"{number:,}".replace(",", " ")
