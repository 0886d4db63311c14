"""Places in a log that is too long to be held: what `core.replay.causes.find` does for one in memory, in one pass."""

from __future__ import annotations

from contextlib import aclosing

from core.errors import NotFound
from core.events import Aggregate, Record, ToolCompleted
from core.log.reader import Read
from core.replay.causes import MOST_DIGITS, SEQUENCE


async def record_at(read: Read, aggregate: Aggregate, place: str) -> Record:
    """Returns the record at a place (`causes.find`). A sequence is looked up; for others the log is read up to it, or
    to its end, and none of it kept. Raises `NotFound` and `Unavailable`.
    """
    sequence = place.removeprefix(SEQUENCE)
    if sequence != place and sequence.isdecimal() and len(sequence) <= MOST_DIGITS:
        async with aclosing(read(aggregate, after=int(sequence) - 1, upto=int(sequence))) as records:
            record = await anext(records, None)
    elif place.isdecimal() and len(place) <= MOST_DIGITS:
        record = await _nth(read, aggregate, int(place))
    else:
        record = await _named(read, aggregate, place)
    if record is None:
        raise NotFound(f"{aggregate.kind} {aggregate.id}: no event and no call {place!r}")
    return record


async def _nth(read: Read, aggregate: Aggregate, number: int) -> Record | None:
    async with aclosing(read(aggregate, bodies=False)) as records:
        count = 0
        async for record in records:
            count += 1
            if count == number:
                return record
    return None


async def _named(read: Read, aggregate: Aggregate, name: str) -> Record | None:
    """Returns the outcome of a call, else its request, else the last event whose id begins so."""
    outcome = request = begun = None
    raw = name.encode()
    async with aclosing(read(aggregate)) as records:
        async for record in records:
            if record.id.startswith(name):
                begun = record
            if raw in record.raw and getattr(record.event, "call_id", None) == name:
                outcome, request = (record, request) if isinstance(record.event, ToolCompleted) else (outcome, record)
    return outcome or request or begun
