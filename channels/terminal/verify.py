"""`sika log verify`: reads a thread's log as it is stored and looks for what must not be.

Every message is asked for by itself, from the stream's leader, with its subject and headers: `EventLog.read` would stop
at the first body that is not an event, and does not show where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from channels.terminal.stored import Stored, messages
from core.errors import Invalid, NotFound, SikaError
from core.events import (
    Opaque,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunRolledBack,
    RunStarted,
    ThreadErased,
    ToolCompleted,
    ToolRequested,
    thread,
)
from core.ids import safe_id
from core.log import EventLog
from core.state import fold

_ENDS = (RunCompleted, RunFailed, RunCancelled, RunRolledBack)
_EVERY_CUT = 200
"""Logs up to this length are folded in pieces at every possible cut; longer ones in pieces of a fiftieth."""


class Verdict(NamedTuple):
    events: int
    runs: int
    problems: list[str]
    notes: list[str]

    def lines(self) -> list[str]:
        if not self.problems:
            return [*self.notes, f"ok: {self.events} events, {self.runs} runs"]
        return [*self.notes, *self.problems, f"{len(self.problems)} problems in {self.events} events"]


async def verify(log: EventLog, thread_id: str) -> Verdict:
    """Check a thread's log. Raises `NotFound` if there is none."""
    aggregate = thread(safe_id(thread_id, "thread"))
    subject = log.bus.names.log(aggregate)
    pairs: list[tuple[Stored, Record | None]] = []
    problems: list[str] = []
    async for message in messages(log.bus, "log", subject):
        try:
            pairs.append((message, await _record(log, message)))
        except SikaError as error:
            pairs.append((message, None))
            problems.append(f"{message.seq}: {error}")
    if not pairs:
        raise NotFound(f"thread {thread_id}: nothing in the log")
    records = [record for _, record in pairs if record is not None]
    problems += _chain([message for message, _ in pairs], records)
    for message, record in pairs:
        if record is not None:
            problems += _envelope(message, record, subject)
    problems += _causes(records) + _runs(records) + _folds(records)
    unknown = [record for record in records if isinstance(record.event, Opaque)]
    notes = [f"{record.seq}: {record.type} v{record.head.v} is not known to this version" for record in unknown]
    runs = sum(isinstance(record.event, RunRequested) for record in records)
    return Verdict(len(pairs), runs, sorted(problems, key=_place), notes)


async def _record(log: EventLog, message: Stored) -> Record:
    """The event, decoded with its schema; its body fetched if it lies elsewhere."""
    record = Record(message.seq, message.data)
    if record.head.blob is not None:  # not by `log.read`: it decodes the whole page, and another one may be broken
        record = await log.whole(record)
    if isinstance(record.event, Opaque) and record.event.problem:
        raise Invalid(record.event.problem)
    return record


def _chain(stored: Sequence[Stored], records: Sequence[Record]) -> list[str]:
    """Every append named the sequence it followed. Another one before it: something is missing, or was forced in."""
    problems = []
    erased = bool(records) and isinstance(records[0].event, ThreadErased)
    before = None if erased else 0  # the tombstone's predecessors are gone, as they should be
    for message in stored:
        expected = message.header("Nats-Expected-Last-Subject-Sequence")
        batched = message.header("Nats-Batch-Sequence") not in (None, "1")
        if expected is None and not batched:
            problems.append(f"{message.seq}: appended without a guard")
        elif expected is not None and before is not None and int(expected) != before:
            problems.append(f"{message.seq}: follows {expected} by its guard, but {before} in the log")
        before = message.seq
    return problems


def _envelope(message: Stored, record: Record, subject: str) -> list[str]:
    head = record.head
    problems = []
    if not subject.endswith(f".{head.kind}.{head.aggregate}"):
        problems.append(f"{record.seq}: the event belongs to {head.kind}/{head.aggregate}, its subject is {subject}")
    for name, value in (("Nats-Msg-Id", head.id), ("Sika-Type", head.type)):
        if (found := message.header(name)) != value:
            problems.append(f"{record.seq}: header {name} is {found}, the event says {value}")
    return problems


def _causes(records: Sequence[Record]) -> list[str]:
    problems = []
    seen: set[str] = set()
    purged = bool(records) and isinstance(records[0].event, ThreadErased)
    for record in records:
        if record.id in seen:
            problems.append(f"{record.seq}: the id {record.id} occurs a second time")
        if record.head.cause is not None and record.head.cause not in seen and not purged:
            problems.append(f"{record.seq}: its cause {record.head.cause} is not an earlier event of this thread")
        seen.add(record.id)
    return problems


def _runs(records: Sequence[Record]) -> list[str]:
    """Runs are requested before they start and end once; tool outcomes have intents, or close a stopped run's calls."""
    problems = []
    requested: set[str] = set()
    ended: set[str] = set()
    stopping: set[str] = set()
    intents: set[tuple[str, str]] = set()
    for record in records:
        run, event = record.run, record.event
        if run is None or isinstance(event, Opaque):
            continue
        if isinstance(event, RunRequested):
            stopping |= requested - ended if event.multitask in ("interrupt", "rollback") else set()
            requested.add(run)
        elif run not in requested:
            problems.append(f"{record.seq}: {record.type} of run {run}, which nobody requested")
        if run in ended and isinstance(event, (RunStarted, *_ENDS)):
            problems.append(f"{record.seq}: {record.type} of run {run}, which had ended")
        if isinstance(event, _ENDS):
            ended.add(run)
        elif isinstance(event, ToolRequested):
            intents.add((run, event.call_id))
        elif isinstance(event, ToolCompleted) and (run, event.call_id) not in intents and run not in stopping:
            problems.append(f"{record.seq}: outcome of the tool call {event.call_id}, which was never begun")
        if record.type == "run.cancel_requested":
            stopping.add(run)
    return problems


def _folds(records: Sequence[Record]) -> list[str]:
    """Folding is the same in one go and in pieces."""
    whole = fold(records)
    sizes = {1, 7, len(records) // 2} if len(records) <= _EVERY_CUT else {len(records) // 50, len(records) // 2}
    problems = []
    for size in sorted(size for size in sizes if size):
        state = fold(())
        for start in range(0, len(records), size):
            state = fold(records[start : start + size], state)
        if state != whole:
            problems.append(f"0: folding in pieces of {size} gives another state than folding at once")
    return problems


def _place(problem: str) -> int:
    return int(problem.partition(":")[0])
