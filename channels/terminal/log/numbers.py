"""Numbers of the events of a log, as every view shows them."""

from __future__ import annotations

from collections.abc import Iterable

from core.events import Record


class Numbers:
    """Numbers of the events of a log, from 1. An event that was not counted has its sequence as its number."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._numbers = {record.seq: number for number, record in enumerate(records, 1)}

    def of(self, record: Record) -> int:
        return self.at(record.seq)

    def at(self, seq: int) -> int:
        """Returns the number of the event with a sequence."""
        return self._numbers.get(seq, seq)

    def count(self, seq: int) -> None:
        """Counts the next event of the log."""
        self._numbers.setdefault(seq, len(self._numbers) + 1)
