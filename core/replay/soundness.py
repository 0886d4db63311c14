"""Integrity of a thread's log as it is stored, and of an exported file.

Messages are read with their subject and headers, which `EventLog.read` does not return.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from core.bus.streams import Stored, counts, messages, page
from core.errors import Invalid, NotFound, SikaError
from core.events import (
    Aggregate,
    Opaque,
    Record,
    RunRequested,
    ThreadErased,
    ThreadPruned,
    ToolCompleted,
    ToolRequested,
    thread,
)
from core.ids import safe_id
from core.log.chain import CHAIN, START, link
from core.log.kinds import KIND, SUBAGENT
from core.log.store import EventLog
from core.phrases import counted
from core.replay.causes import origin_of
from core.replay.exports.archive import Archive
from core.replay.undecoded import problem_of
from core.thread.fold import fold

GUARD = "Nats-Expected-Last-Subject-Sequence"
_FORGET = (ThreadErased, ThreadPruned)
"""Events before which a log has none, or whose earlier events are being erased."""
_EVERY_CUT = 200
"""Logs up to this length are also folded event by event; longer ones in pieces of a fiftieth."""


class Verdict(NamedTuple):
    events: int
    runs: int
    problems: list[str]
    notes: list[str]

    def lines(self) -> list[str]:
        if not self.problems:
            return [*self.notes, f"ok: {counted(self.events, 'event')}, {counted(self.runs, 'run')}"]
        return [
            *self.notes,
            *self.problems,
            f"{counted(len(self.problems), 'problem')} in {counted(self.events, 'event')}",
        ]


async def verify(log: EventLog, thread_id: str) -> Verdict:
    """Checks a thread's log. Raises `NotFound` if there is none."""
    subject = log.bus.names.log(thread(safe_id(thread_id, "thread")))
    stored = [message async for message in messages(log.bus, "log", subject)]
    if not stored:
        raise NotFound(f"thread {thread_id}: nothing in the log")
    return await _verdict(log, subject, stored)


async def verify_all(log: EventLog) -> AsyncIterator[tuple[str, Verdict]]:
    """Checks every thread, in one pass over the log; yields a thread's verdict once its last event was read.

    The numbers of events are read at the start, so only threads with events on both sides of the current sequence are
    in memory. Threads that the pass did not complete (a lagging replica, a purge meanwhile) are read from the stream's
    leader.
    """
    names = log.bus.names
    every = names.log(Aggregate("thread", "*"))
    left = await counts(log.bus, "log", every)
    read: dict[str, list[Stored]] = {}
    seq, more = 0, bool(left)
    while more and left:
        part, more = await page(log.bus, "log", every, seq + 1)
        for message in part:
            seq, subject = message.seq, message.subject
            if subject not in left:
                continue  # created, or completely read, since the start
            read.setdefault(subject, []).append(message)
            left[subject] -= 1
            if not left[subject]:
                del left[subject]
                yield names.aggregate(subject).id, await _verdict(log, subject, read.pop(subject))
    for subject in left:
        read.pop(subject, None)
        if stored := [message async for message in messages(log.bus, "log", subject)]:
            yield names.aggregate(subject).id, await _verdict(log, subject, stored)


async def _verdict(log: EventLog, subject: str, stored: Sequence[Stored]) -> Verdict:
    problems: list[str] = []
    records: list[Record] = []
    for message in stored:
        try:
            record = await log.whole(Record(message.seq, message.data))
        except SikaError as error:
            problems.append(f"{message.seq}: {error}")
            continue
        if problem := problem_of(record):
            problems.append(f"{message.seq}: {problem}")
        records.append(record)
        problems += _envelope(message, record, subject)
    problems += (
        _chain(stored, records)
        + _hashes(stored)
        + _causes(records)
        + _lives(records)
        + _calls(records)
        + _folds(records)
    )
    opaque = sorted({record.type for record in records if isinstance(record.event, Opaque) and not problem_of(record)})
    notes = [f"passed over, of other versions or extensions: {', '.join(opaque)}"] if opaque else []
    runs = sum(isinstance(record.event, RunRequested) for record in records)
    return Verdict(len(stored), runs, sorted(problems, key=_place), notes)


async def verify_file(archive: Archive) -> Verdict:
    """Checks the logs of a file. Its sums and hashes were checked when it was opened."""
    problems: list[str] = []
    records: list[Record] = []
    for aggregate in archive.aggregates():
        part = list(await archive.read(aggregate))
        records += part
        flaws = [f"{record.seq}: {problem}" for record in part if (problem := problem_of(record))]
        if aggregate.kind in (KIND, SUBAGENT):
            flaws += _causes(part) + _lives(part) + _calls(part) + _folds(part)
        problems += [f"{problem} ({aggregate})" if aggregate != archive.root else problem for problem in flaws]
    notes = [f"the hash of its last event is {archive.chain(archive.root)}"]
    notes += ["it was redacted: its hashes are its own, not those of the log"] if archive.header.redacted else []
    runs = sum(isinstance(record.event, RunRequested) for record in records)
    return Verdict(len(records), runs, sorted(problems, key=_place), notes)


async def compare(log: EventLog, archive: Archive) -> list[str]:
    """Returns the events of the log that are not as they were when the file was exported. Raises `Invalid`."""
    if archive.header.redacted:
        raise Invalid(f"{archive.path.name}: was redacted, and holds no hashes of the log")
    problems = []
    for aggregate in archive.aggregates():
        there = {record.id: record.raw async for record in log.read(aggregate, bodies=False)}
        async for record in archive.stored(aggregate):
            if there.get(record.id) != record.raw:
                how = "was changed" if record.id in there else "is missing"
                problems.append(f"{record.seq}: {how} since {archive.path.name} was exported ({aggregate})")
    return problems


def _purged(records: Sequence[Record]) -> bool:
    """Returns whether earlier events may be missing: their erasure, from the oldest on, may still be going on."""
    return any(isinstance(record.event, _FORGET) for record in records)


def _chain(stored: Sequence[Stored], records: Sequence[Record]) -> list[str]:
    """Checks the guards: every append named its predecessor. Another one means a missing or an inserted event."""
    problems = []
    before = None if _purged(records) else 0
    for message in stored:
        expected = message.header(GUARD)
        batched = message.header("Nats-Batch-Sequence") not in (None, "1")
        if expected is None and not batched:
            problems.append(f"{message.seq}: appended without a guard")
        elif expected is not None and before is not None and int(expected) != before:
            problems.append(f"{message.seq}: follows {expected} by its guard, but {before} in the log")
        before = message.seq
    return problems


def _hashes(stored: Sequence[Stored]) -> list[str]:
    """Checks the chain of hashes (`core.log.chain`). Events of older versions have none; what is before the first event
    that is left of a pruned log is unknown.
    """
    problems = []
    before: str | None = None if stored and stored[0].header(GUARD) != "0" else START
    for message in stored:
        own = message.header(CHAIN)
        if own is not None and before is not None and own != link(before, message.data):
            problems.append(f"{message.seq}: does not fit the chain of hashes: it, or an event before it, was changed")
        before = own or START
    return problems


def _envelope(message: Stored, record: Record, subject: str) -> list[str]:
    head = record.head
    problems = []
    if not subject.endswith(f".{head.kind}.{head.aggregate_id}"):
        problems.append(f"{record.seq}: the event belongs to {record.aggregate}, its subject is {subject}")
    for name, value in (("Nats-Msg-Id", head.id), ("Sika-Type", head.type)):
        if (header := message.header(name)) != value:
            problems.append(f"{record.seq}: header {name} is {header}, the event says {value}")
    return problems


def _causes(records: Sequence[Record]) -> list[str]:
    problems = []
    ids: set[str] = set()
    purged = _purged(records)
    for record in records:
        if record.id in ids:
            problems.append(f"{record.seq}: the id {record.id} occurs a second time")
        if record.head.cause is not None and record.head.cause not in ids and not purged:
            problems.append(f"{record.seq}: its cause {record.head.cause} is not an earlier event of this thread")
        origin = origin_of(record)
        of_this = origin is not None and (origin.kind, origin.aggregate) == record.aggregate
        if origin is not None and of_this and origin.event not in ids and not purged:
            problems.append(f"{record.seq}: it was requested for {origin.event}, which is not an earlier event")
        ids.add(record.id)
    return problems


def _lives(records: Sequence[Record]) -> list[str]:
    """Returns events that may not follow in the life of their run (`core.lifecycle`)."""
    opaque = {record.seq for record in records if isinstance(record.event, Opaque)}
    return [f"{seq}: {text}" for seq, text in fold(records).problems if seq not in opaque]


def _calls(records: Sequence[Record]) -> list[str]:
    """Checks that calls with an outcome were begun, or requested. The outcome of a call that a policy refused, or that
    was open when its run was stopped, follows no intent.
    """
    problems = []
    calls: set[str] = set()
    for record in records:
        event = record.event
        calls.update(_message_call_ids(record))
        if record.run is None:
            continue
        if isinstance(event, ToolRequested):
            calls.add(event.call_id)
        elif isinstance(event, ToolCompleted) and event.call_id not in calls:
            problems.append(f"{record.seq}: outcome of the tool call {event.call_id}, which nobody asked for")
    return problems


def _message_call_ids(record: Record) -> Iterator[str]:
    """Yields the ids of tool calls in the messages of an event of any type."""
    return _call_ids(msgspec.json.decode(record.raw)) if b'"tool_calls"' in record.raw else iter(())


def _call_ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for call in value.get("tool_calls") or ():
            if isinstance(call, dict):
                yield str(call.get("id"))
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from _call_ids(child)


def _folds(records: Sequence[Record]) -> list[str]:
    """Checks that folding in pieces gives the same state as folding at once."""
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
