"""Numbers of the events of a log, as every view shows them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING

from core.events import Aggregate, Record

if TYPE_CHECKING:
    from core.log.reader import Read


class Numbers:
    """Numbers of the events of a log, from 1. An event that was not counted has its sequence as its number."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._numbers = {record.seq: number for number, record in enumerate(records, 1)}

    @classmethod
    async def of_log(cls, read: Read, aggregate: Aggregate, sequences: Container[int]) -> Numbers:
        """Counts the events of a log that nobody holds. Those with these sequences have their numbers afterwards."""
        numbers, count = cls(), 0
        async with aclosing(read(aggregate, bodies=False)) as records:
            async for record in records:
                count += 1
                if record.seq in sequences:
                    numbers._numbers[record.seq] = count
        return numbers

    def of(self, record: Record) -> int:
        return self.at(record.seq)

    def at(self, seq: int) -> int:
        """Returns the number of the event with a sequence."""
        return self._numbers.get(seq, seq)

    def count(self, seq: int) -> None:
        """Counts the next event of the log."""
        self._numbers.setdefault(seq, len(self._numbers) + 1)
