"""The past of a thread for questions of any kind: states and events from places in its log, which nobody holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import islice

from core.errors import Invalid, NotFound
from core.events import Record, thread
from core.ids import ordinal
from core.log.reader import Read
from core.replay.find import is_bad_end
from core.replay.moments.places import record_at
from core.replay.named import LAST, LAST_FAILED, MOST_NAMED
from core.thread.state import Run, ThreadState


class Past:
    """The past of a thread. `now`: the thread as it stands; `at`: after the last event up to a sequence
    (`core.replay.moments.marks`).
    """

    def __init__(
        self, read: Read, thread_id: str, now: ThreadState, at: Callable[[int], Awaitable[ThreadState]]
    ) -> None:
        self.thread = thread(thread_id)
        self.now = now
        self.at = at
        self._read = read

    def events(self, after: int, upto: int | None) -> AsyncGenerator[Record]:
        """Yields the events after a sequence, up to another one."""
        return self._read(self.thread, after=after, upto=upto)

    def of_run(self, run: Run, upto: int | None = None) -> AsyncGenerator[Record]:
        """Yields the events from the request of a run to its end, also those of others among them."""
        ends = [seq for seq in (run.ended_seq, upto) if seq is not None]
        return self.events(run.requested_seq - 1, min(ends) if ends else None)

    async def sequence_of(self, place: str) -> int:
        """Returns the sequence of the event at a place (`core.replay.causes.find`). Raises `NotFound`."""
        return (await record_at(self._read, self.thread, place)).seq

    async def run_named(self, name: str) -> Run:
        """Returns a run as `core.replay.queries.run_of` does. Raises `NotFound` and `Invalid`."""
        runs = self.now.runs
        if number := ordinal(name, len(runs)):
            return runs[next(islice(runs, number - 1, None))]
        if name == LAST_FAILED:
            hits = [run.id for run in [await self._last_failed()] if run]
        elif name == LAST:
            hits = [run.id for run in islice(runs.newest_first(), 1)]
        else:
            hits = [run for run in runs if run.startswith(name)]
        if len(hits) > 1:
            raise Invalid(f"run {name}: {len(hits)} ids begin so: {', '.join(hits[:MOST_NAMED])}")
        if not hits:
            raise NotFound(f"there is no run {name}; the thread has {len(runs)}")
        return runs[hits[0]]

    async def _last_failed(self) -> Run | None:
        """Returns the newest run that failed or that a policy stopped, which only its answer says."""
        for run in self.now.runs.newest_first():
            async with aclosing(self.of_run(run)) as records:
                async for record in records:
                    if record.run == run.id and is_bad_end(record.event):
                        return run
        return None
