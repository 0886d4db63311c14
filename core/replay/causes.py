"""Causes of a fact: the chain from what was asked for to the fact, over runs and subagents.

An event names one cause, in its envelope. Three kinds of facts have more, or another:
- an answer of the model rests on all outcomes and messages since the answer before it. The last of them started it
- a run rests on what it was requested for (`RunRequested.wanted`): a pause, a schedule's firing, a chat message
- a subagent's run rests on the call of its caller, which is in another log

A cause lies before its effect, so logs are read backwards from there, as far as the cause. Of a log the events that
were read last are held (`HELD`, `HELD_BYTES`), as the next cause is mostly among them.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

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
    type_of,
)
from core.log.kinds import SUBAGENT

if TYPE_CHECKING:
    from core.log.reader import ReadAll

SEQUENCE = "seq:"
"""Begins a place that is a sequence of the stream."""
MOST_DIGITS = 18
"""Digits of a number that is read as a place: it fits 64 bits."""
HELD = 256
HELD_BYTES = 4 << 20
"""Events of a log, and their bytes, that are held while its causes are looked for."""
APART_SECONDS = 24 * 3600
"""An event whose id is so much older than that of another one was before it, whatever the clocks of processes say."""
_ANSWER, _FAILURE, _PAUSE, _REQUEST, _START = (
    type_of(kind.__name__) for kind in (ModelCompleted, ModelFailed, RunPaused, RunRequested, SubagentStarted)
)
_INPUTS = frozenset(type_of(kind.__name__) for kind in (ToolCompleted, MessageAdded))


class Link(NamedTuple):
    """A fact of a chain. `beside` are the other facts that it rests on, oldest first."""

    record: Record
    beside: tuple[Record, ...] = ()


class Logs(Protocol):
    """Logs that are read backwards. Bodies that lie outside of the log may be left out there."""

    def back(self, aggregate: Aggregate, *, before: int = 0) -> AsyncGenerator[Record]:
        """Yields the events before a sequence (0: from the end), newest first; none of a log that is unknown."""
        ...

    async def first(self, aggregate: Aggregate) -> Record | None:
        """Returns the first event with its body; None for a log that is unknown."""
        ...

    async def whole(self, record: Record) -> Record:
        """Returns an event with its body, also of its envelope alone."""
        ...


class InMemory:
    """Logs that can be read as a whole only."""

    def __init__(self, read: ReadAll) -> None:
        self._read = read
        self._logs: dict[Aggregate, Sequence[Record]] = {}

    async def back(self, aggregate: Aggregate, *, before: int = 0) -> AsyncGenerator[Record]:
        for record in reversed(await self._all(aggregate)):
            if not before or record.seq < before:
                yield record

    async def first(self, aggregate: Aggregate) -> Record | None:
        return next(iter(await self._all(aggregate)), None)

    async def whole(self, record: Record) -> Record:
        if not is_envelope(record):
            return record
        return next(other for other in await self._all(record.aggregate) if other.seq == record.seq)

    async def _all(self, aggregate: Aggregate) -> Sequence[Record]:
        if aggregate not in self._logs:
            self._logs[aggregate] = await self._read(aggregate)
        return self._logs[aggregate]


async def why(read: ReadAll, aggregate: Aggregate, place: str) -> list[Link]:
    """Returns the chain of causes of a fact, the first cause first.

    `place`: see `find`.
    Raises `NotFound` for a log that is empty, and for a place that is not in it.
    """
    return await chain(InMemory(read), find(await read(aggregate), place, aggregate))


async def chain(logs: Logs, fact: Record, most: int | None = None) -> list[Link]:
    """Returns the chain of causes of a fact, the first cause first. Of events beyond `most` bytes, counted from the
    fact, only the envelopes are returned.
    """
    links, visited, size = list[Link](), {fact.aggregate}, _Size(most)
    record: Record | None = await logs.whole(fact)
    while record is not None:
        async with aclosing(_Earlier(logs, record.aggregate)) as earlier:
            while record is not None:
                before, beside = await earlier.rests_on(record)
                links.append(Link(size.bounded(record), tuple(map(size.bounded, beside))))
                last, record = record, before and await size.whole(logs, before)
        record = await _elsewhere(logs, last, visited)
    return links[::-1]


async def cause_of(records: Sequence[Record], record: Record) -> Record | None:
    """Returns the cause of a record in its own log; None for the first cause, and for one that is in another log."""

    async def read(_: Aggregate) -> Sequence[Record]:
        return records

    async with aclosing(_Earlier(InMemory(read), record.aggregate)) as earlier:
        return (await earlier.rests_on(record))[0]


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
        text = absence(place, len(records), records[0].seq, records[-1].seq)
        raise NotFound(f"{aggregate.kind} {aggregate.id}: {text}")
    return hits[-1]


def absence(place: str, count: int, first: int, last: int) -> str:
    """Returns the words for a place that is not in a log of `count` events, from the sequence `first` to `last`."""
    extent = f"its events are 1 to {count} (`{SEQUENCE}{first}` to `{SEQUENCE}{last}`)"
    return f"no event and no call {place!r}; {extent}"


def origin_of(record: Record) -> RunOrigin | None:
    """Returns the event of another log, or of this one, for which a run was requested."""
    return record.event.wanted if isinstance(record.event, RunRequested) else None


def _aggregate(origin: RunOrigin) -> Aggregate:
    return Aggregate(origin.kind, origin.aggregate)


async def _elsewhere(logs: Logs, record: Record, visited: set[Aggregate]) -> Record | None:
    """Returns the cause of a fact in a log that was not visited yet: the start of its subagent, or what it is for."""
    if (caller := await _caller(logs, record.aggregate)) and caller not in visited:
        visited.add(caller)
        return await _started(logs, caller, record)
    if (origin := origin_of(record)) and (other := _aggregate(origin)) not in visited:
        visited.add(other)
        async with aclosing(_Earlier(logs, other)) as earlier:
            return await earlier.named(origin.event, record.seq)
    return None


async def _caller(logs: Logs, aggregate: Aggregate) -> Aggregate | None:
    """Returns the log that called a subagent; None for a thread."""
    first = await logs.first(aggregate) if aggregate.kind == SUBAGENT else None
    if first is None or not isinstance(first.event, ThreadCreated):
        return None
    about = first.event.metadata
    return Aggregate(SUBAGENT, str(about["caller"])) if about.get("caller") else thread(str(about.get("thread")))


async def _started(logs: Logs, caller: Aggregate, record: Record) -> Record | None:
    """Returns the start of the subagent of a record in the log of its caller, from its last one on backwards."""
    async with aclosing(logs.back(caller)) as records:
        async for other in records:
            if other.type == _START:
                started = (await logs.whole(other)).event
                if isinstance(started, SubagentStarted) and started.subagent == record.aggregate.id:
                    return other
    return None


class _Size:
    """Bytes of events up to a limit."""

    def __init__(self, most: int | None) -> None:
        self._left = most

    async def whole(self, logs: Logs, record: Record) -> Record:
        """Returns an event with its body; without that if it is beyond the limit, and no cause is named in it."""
        blob = record.head.blob
        beyond = blob is not None and self._left is not None and blob.size > self._left
        return record if beyond and record.type != _REQUEST else await logs.whole(record)

    def bounded(self, record: Record) -> Record:
        """Returns the record, or its envelope alone beyond the limit."""
        if self._left is None:
            return record
        self._left -= len(record.raw)
        return record if self._left >= 0 else Record(record.seq, msgspec.json.encode(record.head), record.head)


def is_envelope(record: Record) -> bool:
    """Tells whether of an event only the envelope is there."""
    return record.raw == msgspec.json.encode(record.head)


class _Earlier:
    """The events of a log, read backwards from a place; the `HELD` read last are held for the next look."""

    def __init__(self, logs: Logs, aggregate: Aggregate) -> None:
        self._logs, self._aggregate = logs, aggregate
        self._recent = deque[Record]()
        """Newest first, without gaps."""
        self._size = self._from = 0
        """The sequence before which the window begins."""
        self._reading: AsyncGenerator[Record] | None = None

    async def aclose(self) -> None:
        if self._reading is not None:
            await self._reading.aclose()

    async def rests_on(self, record: Record) -> tuple[Record | None, tuple[Record, ...]]:
        """Returns the cause of a record, if it is in this log, and the other facts that it rests on."""
        if record.type in (_ANSWER, _FAILURE):
            return await self._before_answer(record)
        match record.event:
            case RunRequested(wanted=RunOrigin() as origin) if _aggregate(origin) == record.aggregate:
                return await self.named(origin.event, record.seq), ()
            case RunRequested(input=None, wanted=None):
                return await self._pause_before(record), ()
        return await self._cause(record), ()

    async def named(self, name: str, before: int) -> Record | None:
        """Returns the last event with this id, message key or `run_id` before a sequence."""
        async for other in self._upto(name, before):
            whole = other if name.encode() in other.raw or other.head.blob is None else await self._logs.whole(other)
            if name in (other.id, getattr(whole.event, "key", ""), getattr(whole.event, "run_id", "")):
                return other
        return None

    async def _cause(self, record: Record) -> Record | None:
        if record.head.cause is None:
            return None
        earlier = self._upto(record.head.cause, record.seq)
        return await anext((other async for other in earlier if other.id == record.head.cause), None)

    async def _before_answer(self, answer: Record) -> tuple[Record | None, tuple[Record, ...]]:
        since = list[Record]()
        async for other in self._before(answer.seq):
            if other.run == answer.run and other.type in (_ANSWER, _REQUEST):
                break
            if other.run == answer.run and (other.type in _INPUTS or other.type == _FAILURE):
                since.append(other)
        inputs = [record for record in since if record.type != _FAILURE]
        main = inputs[0] if inputs else await self._cause(answer)
        while main is not None and main.type == _FAILURE:
            main = await self._cause(main)
        return main, tuple(record for record in reversed(since) if main is None or record.seq != main.seq)

    async def _pause_before(self, record: Record) -> Record | None:
        return await anext((other async for other in self._before(record.seq) if other.type == _PAUSE), None)

    async def _upto(self, name: str, before: int) -> AsyncIterator[Record]:
        """Yields the events before a sequence down to those that are older than the id `name`."""
        async for record in self._before(before):
            if _seconds(record.id, name) > APART_SECONDS:
                return
            yield record

    async def _before(self, seq: int) -> AsyncIterator[Record]:
        if self._reading is None or seq > self._from:
            await self.aclose()
            self._recent.clear()
            self._size, self._from, self._reading = 0, seq, self._logs.back(self._aggregate, before=seq)
        for recent in [record for record in self._recent if record.seq < seq]:
            yield recent
        reading = self._reading
        assert reading is not None
        while (record := await anext(reading, None)) is not None:
            self._hold(record)
            yield record

    def _hold(self, record: Record) -> None:
        self._recent.append(record)
        self._size += len(record.raw)
        while len(self._recent) > HELD or (self._size > HELD_BYTES and len(self._recent) > 1):
            self._from = self._recent[0].seq
            self._size -= len(self._recent.popleft().raw)


def _seconds(earlier: str, later: str) -> float:
    """Returns the time between two ids, as far as both say when they were made (`core.ids.uuid7`); else 0."""
    try:
        times = [uuid.UUID(one) for one in (earlier, later)]
    except ValueError:
        return 0.0
    return ((times[1].int >> 80) - (times[0].int >> 80)) / 1000 if {one.version for one in times} == {7} else 0.0
