"""The events of a log as the screen needs them: by number, by time, filtered, and folded up to any of them.

No I/O. Methods that say so take time that grows with the log: they are called in a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime

from core.errors import Invalid
from core.events import ModelCompleted, Record, ToolRequested
from core.replay import causes
from core.replay.find import Query, Search, is_failure
from core.thread.fold import fold
from core.thread.state import ThreadState

KEPT_STATES = 64
"""Limit of folded states that are kept, so that each moment is near one."""
KEPT_EVERY = 1000
"""Events between them, in logs that are not longer than both allow."""
CONDITIONS = ("type", "tool", "run", "model")


class Recording:
    """Events of one log, oldest first. `visible` are the places (from 0) of those that meet the filter."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records: list[Record] = []
        self.runs: list[tuple[str, int]] = []
        """Runs with the places of their first events."""
        self.visible: Sequence[int] = range(0)
        self._times = array("d")
        self._search: Search | None = None
        self._hits: list[int] = []
        """The visible events while there is a filter."""
        self._states: dict[int, ThreadState] = {}
        """Folded states by the number of events they hold."""
        self.add(records)

    def __len__(self) -> int:
        return len(self.records)

    def add(self, records: Iterable[Record]) -> None:
        """Appends events, and those that meet the filter to the visible ones."""
        begin, seen = len(self.records), {run for run, _ in self.runs}
        for place, record in enumerate(records, begin):
            self.records.append(record)
            self._times.append(self._time(record.at))
            if record.run and record.run not in seen:
                seen.add(record.run)
                self.runs.append((record.run, place))
        if self._search is None:
            self.visible = range(len(self.records))
        else:
            matches = self._search.matches
            more = [place for place in range(begin, len(self.records)) if matches(self.records[place])]
            self._hits.extend(more)
            self.visible = self._hits

    def _time(self, at: str) -> float:
        """Returns a time in seconds, never before that of an earlier event: clocks of two workers may differ."""
        before = self._times[-1] if self._times else 0.0
        try:
            return max(before, datetime.fromisoformat(at).timestamp())
        except ValueError:
            return before

    # ── filter ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def query(self, text: str) -> Query | None:
        """Returns the filter of `type:tool.* tool:bash run:1 model:main errors` and texts; None for all events.

        Raises `Invalid`.
        """
        conditions: dict[str, str] = {}
        types: list[str] = []
        words: list[str] = []
        errors = False
        for part in text.split():
            name, colon, value = part.partition(":")
            if part == "errors":
                errors = True
            elif colon and name in CONDITIONS and value:
                types += [value] if name == "type" else []
                conditions |= {name: self._run(value) if name == "run" else value} if name != "type" else {}
            else:
                words.append(part)
        if not (words or types or conditions or errors):
            return None
        return Query.of(re.escape(" ".join(words)), types=tuple(types), errors=errors, **conditions)

    def _run(self, name: str) -> str:
        if not name.isdecimal() or not int(name) or len(name) > 9:
            return name
        if int(name) > len(self.runs):
            raise Invalid(f"there is no run {name}; the thread has {len(self.runs)}")
        return self.runs[int(name) - 1][0]

    def matching(self, query: Query | None) -> tuple[Search | None, Sequence[int]]:
        """Returns a search and the places of the events that meet it. Takes time."""
        if query is None:
            return None, range(len(self.records))
        search = Search(query)
        return search, [place for place, record in enumerate(list(self.records)) if search.matches(record)]

    def show(self, search: Search | None, places: Sequence[int]) -> None:
        """Makes the result of `matching` the visible events, all of them without a search."""
        self._search, self._hits = search, [] if search is None else list(places)
        self.visible = self._hits if search else range(len(self.records))

    # ── places ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def row(self, place: int) -> int:
        """Returns the row of the visible event at a place, or of the last one before it."""
        return max(0, bisect_right(self.visible, place) - 1)

    def place_at(self, share: float) -> int:
        """Returns the place of the last event in a share (0 to 1) of the time of the log."""
        if not self.records:
            return 0
        begin, end = self._times[0], self._times[-1]
        return max(0, bisect_right(self._times, begin + (end - begin) * min(1.0, max(0.0, share))) - 1)

    def share(self, place: int) -> float:
        """Returns the share of the time of the log that had passed at an event."""
        begin, end = self._times[0], self._times[-1]
        return (self._times[place] - begin) / (end - begin) if end > begin else 1.0

    def failure(self, place: int, step: int) -> int | None:
        """Returns the place of the next failure (`step` 1), or the one before (-1). Takes time."""
        end = len(self.records) if step > 0 else -1
        return next((other for other in range(place + step, end, step) if is_failure(self.records[other].event)), None)

    def run_from(self, place: int, step: int) -> int | None:
        """Returns the place at which the next run begins (`step` 1), or the one before (-1)."""
        begins = [begin for _, begin in self.runs if (begin > place if step > 0 else begin < place)]
        return None if not begins else begins[0] if step > 0 else begins[-1]

    def cause(self, place: int) -> int | None:
        """Returns the place of the cause of an event, if it is in this log. Takes time."""
        before = asyncio.run(causes.cause_of(self.records, self.records[place]))
        return None if before is None else self.records.index(before)

    def call_of(self, place: int) -> Record | None:
        """Returns the answer of the model that asked for the call of an event, which has its arguments."""
        record = self.records[place]
        if not isinstance(record.event, ToolRequested):
            return None
        for other in reversed(self.records[max(0, place - 200) : place]):
            if other.run == record.run and isinstance(other.event, ModelCompleted):
                return other
        return None

    # ── states ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def state(self, count: int) -> ThreadState:
        """Returns the state after the first `count` events. Takes time, the first time for a moment."""
        every = max(KEPT_EVERY, -(-len(self.records) // KEPT_STATES))
        known = max((number for number in self._states if number <= count), default=0)
        state = self._states.get(known, ThreadState())
        while known + every <= count:
            following = (known // every + 1) * every
            state = fold(self.records[known:following], state)
            known = following
            self._states[known] = state
        while len(self._states) > 2 * KEPT_STATES:
            del self._states[next(iter(self._states))]
        return fold(self.records[known:count], state)
