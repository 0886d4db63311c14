"""Causes of a fact: the chain from what was asked for to the fact, over runs and subagents.

An event names one cause, in its envelope. Three kinds of facts have more, or another:
- an answer of the model rests on all outcomes and messages since the answer before it. The last of them started it
- a run rests on what it was requested for (`RunRequested.wanted`): a pause, a schedule's firing, a chat message
- a subagent's run rests on the call of its caller, which is in another log
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from core.errors import NotFound
from core.events import (
    Aggregate,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    RunOrigin,
    RunPaused,
    RunRequested,
    SubagentStarted,
    ThreadCreated,
    ToolCompleted,
    thread,
)
from core.log.kinds import SUBAGENT

if TYPE_CHECKING:
    from core.log.reader import ReadAll

SEQUENCE = "seq:"
"""Begins a place that is a sequence of the stream."""
MOST_DIGITS = 18
"""Digits of a number that is read as a place: it fits 64 bits."""


class Link(NamedTuple):
    """A fact of a chain. `beside` are the other facts that it rests on, oldest first."""

    record: Record
    beside: tuple[Record, ...] = ()


async def why(read: ReadAll, aggregate: Aggregate, place: str) -> list[Link]:
    """Returns the chain of causes of a fact, the first cause first.

    `place`: see `find`.
    Raises `NotFound` for a log that is empty, and for a place that is not in it.
    """
    log = _Log(await read(aggregate))
    record: Record | None = find(log.records, place, aggregate)
    chain: list[Link] = []
    logs = {aggregate}
    while record is not None:
        before, beside = log.rests_on(record)
        chain.append(Link(record, beside))
        if before is None and (caller := log.caller()) and caller[0] not in logs:
            logs.add(caller[0])
            log = _Log(await read(caller[0]))
            before = log.started(caller[1])
        elif before is None and (wanted := wanted_by(record)) and (other := _aggregate(wanted)) not in logs:
            logs.add(other)
            log = _Log(await read(other))
            before = log.named(wanted.event)
        record = before
    return chain[::-1]


def cause_of(records: Sequence[Record], record: Record) -> Record | None:
    """Returns the cause of a record in its own log; None for the first cause, and for one that is in another log."""
    return _Log(records).rests_on(record)[0]


def find(records: Sequence[Record], place: str, aggregate: Aggregate) -> Record:
    """Returns the record at a place: the number of an event in this log (from 1), `seq:` with its sequence in the
    stream, the id of a tool call (its outcome, else its request), or the beginning of an event's id.

    Raises `NotFound`.
    """
    if not records:
        raise NotFound(f"{aggregate.kind} {aggregate.id}: nothing in the log")
    sequence = place.removeprefix(SEQUENCE)
    if place.isdecimal() and len(place) <= MOST_DIGITS:
        hits = list(records[int(place) - 1 : int(place)]) if int(place) else []
    elif sequence != place and sequence.isdecimal() and len(sequence) <= MOST_DIGITS:
        hits = [record for record in records if record.seq == int(sequence)]
    else:
        hits = [record for record in records if getattr(record.event, "call_id", None) == place]
        hits = [record for record in hits if isinstance(record.event, ToolCompleted)] or hits
        hits = hits or [record for record in records if record.id.startswith(place)]
    if not hits:
        extent = f"its events are 1 to {len(records)} (`{SEQUENCE}{records[0].seq}` to `{SEQUENCE}{records[-1].seq}`)"
        raise NotFound(f"{aggregate.kind} {aggregate.id}: no event and no call {place!r}; {extent}")
    return hits[-1]


def wanted_by(record: Record) -> RunOrigin | None:
    """Returns the event of another log, or of this one, for which a run was requested."""
    return record.event.wanted if isinstance(record.event, RunRequested) else None


def _aggregate(wanted: RunOrigin) -> Aggregate:
    return Aggregate(wanted.kind, wanted.aggregate)


class _Log:
    """Records of one log, with their places by id."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self._places = {record.id: index for index, record in enumerate(records)}

    def rests_on(self, record: Record) -> tuple[Record | None, tuple[Record, ...]]:
        """Returns the cause of a record, if it is in this log, and the other facts that it rests on."""
        match record.event:
            case ModelCompleted() | ModelFailed():
                return self._before_answer(record)
            case RunRequested(wanted=RunOrigin() as wanted) if _aggregate(wanted) == record.aggregate:
                return self.named(wanted.event), ()
            case RunRequested(input=None, wanted=None):
                return self._pause_before(record), ()
        return self._cause(record), ()

    def caller(self) -> tuple[Aggregate, str] | None:
        """Returns the log that called the subagent of this one, and the subagent; None for a thread."""
        first = self.records[0] if self.records else None
        if first is None or first.head.kind != SUBAGENT or not isinstance(first.event, ThreadCreated):
            return None
        about = first.event.metadata
        if caller := about.get("caller"):
            return Aggregate(SUBAGENT, str(caller)), first.head.aggregate_id
        return thread(str(about.get("thread"))), first.head.aggregate_id

    def started(self, subagent: str) -> Record | None:
        """Returns the start of a subagent."""
        starts = (r for r in self.records if isinstance(r.event, SubagentStarted) and r.event.subagent == subagent)
        return next(starts, None)

    def named(self, name: str) -> Record | None:
        """Returns the event with this id, message key or `run_id`."""
        if (place := self._places.get(name)) is not None:
            return self.records[place]
        named = (r for r in self.records if name in (getattr(r.event, "key", ""), getattr(r.event, "run_id", "")))
        return next(named, None)

    def _before_answer(self, answer: Record) -> tuple[Record | None, tuple[Record, ...]]:
        since: list[Record] = []
        for index in range(self._index(answer) - 1, -1, -1):
            record = self.records[index]
            if record.run != answer.run:
                continue
            if isinstance(record.event, ModelCompleted):
                break
            if isinstance(record.event, ToolCompleted | MessageAdded | ModelFailed):
                since.append(record)
        inputs = [record for record in since if not isinstance(record.event, ModelFailed)]
        main = inputs[0] if inputs else self._cause(answer)
        while main is not None and isinstance(main.event, ModelFailed):
            main = self._cause(main)
        return main, tuple(record for record in reversed(since) if record is not main)

    def _pause_before(self, record: Record) -> Record | None:
        earlier = (self.records[index] for index in range(self._index(record) - 1, -1, -1))
        return next((before for before in earlier if isinstance(before.event, RunPaused)), None)

    def _cause(self, record: Record) -> Record | None:
        place = self._places.get(record.head.cause or "")
        return self.records[place] if place is not None and self.records[place].seq < record.seq else None

    def _index(self, record: Record) -> int:
        return bisect_left(self.records, record.seq, key=lambda other: other.seq)
