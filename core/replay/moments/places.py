"""Places in a log that is too long to be held: what `core.replay.causes.find` does for one in memory, in one pass."""

from __future__ import annotations

from contextlib import aclosing

from core.errors import NotFound
from core.events import Aggregate, Record, ToolCompleted, catalogue, type_of
from core.log.reader import Read
from core.replay.causes import MOST_DIGITS, SEQUENCE, absence

_OUTCOME = type_of(ToolCompleted.__name__)


async def record_at(read: Read, aggregate: Aggregate, place: str) -> Record:
    """Returns the record at a place (`causes.find`). A sequence is looked up; for others the log is read up to it, or
    to its end, and none of it kept. Raises `NotFound` and `Unavailable`.
    """
    sequence = place.removeprefix(SEQUENCE)
    if sequence != place and sequence.isdecimal() and len(sequence) <= MOST_DIGITS:
        seq: int | None = int(sequence)
    elif place.isdecimal() and len(place) <= MOST_DIGITS:
        seq = await _nth(read, aggregate, int(place))
    else:
        seq = await _named(read, aggregate, place)
    record = None if seq is None else await _at(read, aggregate, seq)
    if record is None:
        raise NotFound(f"{aggregate.kind} {aggregate.id}: {await _absence(read, aggregate, place)}")
    return record


async def _absence(read: Read, aggregate: Aggregate, place: str) -> str:
    count = first = last = 0
    async with aclosing(read(aggregate, bodies=False)) as records:
        async for record in records:
            count, first, last = count + 1, first or record.seq, record.seq
    return absence(place, count, first, last) if count else "nothing in the log"


async def _at(read: Read, aggregate: Aggregate, seq: int) -> Record | None:
    async with aclosing(read(aggregate, after=seq - 1, upto=seq)) as records:
        return await anext(records, None)


async def _nth(read: Read, aggregate: Aggregate, number: int) -> int | None:
    async with aclosing(read(aggregate, bodies=False)) as records:
        count = 0
        async for record in records:
            count += 1
            if count == number:
                return record.seq
    return None


async def _named(read: Read, aggregate: Aggregate, name: str) -> int | None:
    """Returns the sequence of the outcome of a call, else of its request, else of the last event whose id begins so.
    Of the bodies outside of the log those are read that may be of a call.
    """
    outcome = request = begun = None
    raw = name.encode()
    async with aclosing(read(aggregate, bodies=False)) as records:
        async for record in records:
            if record.id.startswith(name):
                begun = record.seq
            body: Record | None = record
            if record.head.blob is not None and _may_have_call(record):
                body = await _at(read, aggregate, record.seq)
            if body and raw in body.raw and getattr(body.event, "call_id", None) == name:
                outcome, request = (record.seq, request) if record.type == _OUTCOME else (outcome, record.seq)
    return outcome or request or begun


def _may_have_call(record: Record) -> bool:
    return "call_id" in getattr(catalogue().get(record.type), "__struct_fields__", ())
