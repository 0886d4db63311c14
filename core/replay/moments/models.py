"""The models of a thread's runs, for events in any order: without the log from its beginning, where runs name them."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import aclosing
from typing import TYPE_CHECKING

from core.events import Record, RunStarted
from core.replay.money import Meter
from core.thread.state import Run, ThreadState

if TYPE_CHECKING:
    from core.log.reader import Read


class RunModels(Meter):
    """Tells the model of an event's run by the state of its thread: `prepare` each event, in any order."""

    def __init__(self, state: ThreadState, read: Read) -> None:
        super().__init__()
        self._state = state
        self._read = read
        self._starts: dict[str, list[tuple[int, str]]] = {}
        """The starts of runs that began more than once."""

    def learn(self, record: Record) -> None:
        """Does nothing: the state knows."""

    async def prepare(self, record: Record) -> None:
        """Reads the starts of a run that began more than once, each of which may name another model."""
        run = self._state.runs.get(record.run or "")
        if run is None or run.started_seq is None or run.attempt < 2 or run.id in self._starts:
            return
        starts = self._starts[run.id] = list[tuple[int, str]]()
        upto = run.ended_seq or self._state.seq
        async with aclosing(self._read(record.aggregate, after=run.started_seq - 1, upto=upto)) as records:
            async for other in records:
                if other.run == run.id and isinstance(other.event, RunStarted) and other.event.model:
                    starts.append((other.seq, other.event.model))

    def _of_run(self, record: Record) -> str:
        run = self._state.runs.get(record.run or "")
        if run is None or not _at_work(run, record.seq):
            return ""
        if run.id not in self._starts:
            return run.model or ""
        place = bisect_right(self._starts[run.id], record.seq, key=lambda start: start[0])
        return self._starts[run.id][place - 1][1] if place else ""


def _at_work(run: Run, seq: int) -> bool:
    return run.started_seq is not None and run.started_seq <= seq and (run.ended_seq is None or seq <= run.ended_seq)
