"""The past of a thread for questions of any kind: states and events from places in its log, which nobody holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing

from core.events import Aggregate, Record
from core.log.reader import Read
from core.replay.find import is_bad_end
from core.replay.moments.places import record_at
from core.replay.named import LAST_FAILED, run_named
from core.thread.fold import Folding
from core.thread.state import Run, ThreadState


class Past:
    """The past of a thread or a subagent. `at`: its state after the last event up to a sequence; None: as it stands."""

    def __init__(self, read: Read, aggregate: Aggregate, at: Callable[[int | None], Awaitable[ThreadState]]) -> None:
        self.aggregate = aggregate
        self.at = at
        self._read = read

    @classmethod
    def folded(cls, read: Read, aggregate: Aggregate) -> Past:
        """Returns the past of a thread whose states are folded from its first event on."""

        async def at(seq: int | None) -> ThreadState:
            folding = Folding()
            async with aclosing(read(aggregate, upto=seq)) as records:
                async for record in records:
                    folding.apply(record)
            return folding.state

        return cls(read, aggregate, at)

    def events(self, after: int, upto: int | None) -> AsyncGenerator[Record]:
        """Yields the events after a sequence, up to another one."""
        return self._read(self.aggregate, after=after, upto=upto)

    def of_run(self, run: Run, upto: int | None = None) -> AsyncGenerator[Record]:
        """Yields the events from the request of a run to its end, also those of others among them."""
        ends = [seq for seq in (run.ended_seq, upto) if seq is not None]
        return self.events(run.requested_seq - 1, min(ends) if ends else None)

    async def sequence_of(self, place: str) -> int:
        """Returns the sequence of the event at a place (`core.replay.causes.find`). Raises `NotFound`."""
        return (await record_at(self._read, self.aggregate, place)).seq

    async def run_named(self, name: str) -> Run:
        """Returns a run by its name (`core.replay.named.run_named`). Raises `NotFound` and `Invalid`."""
        runs = (await self.at(None)).runs
        failed = await self._last_failed(runs.newest_first()) if name == LAST_FAILED else None
        return runs[run_named(name, list(runs), failed.id if failed else None)]

    async def _last_failed(self, newest_first: Iterable[Run]) -> Run | None:
        """Returns the newest run that failed or that a policy stopped, which only its answer says."""
        for run in newest_first:
            async with aclosing(self.of_run(run)) as records:
                async for record in records:
                    if record.run == run.id and is_bad_end(record.event):
                        return run
        return None
