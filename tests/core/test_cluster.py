"""A cluster that loses its leader under load: nothing that was acknowledged is lost, doubled or out of order."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from core.errors import Conflict, Unavailable
from core.events import Aggregate, ThreadAnnotated
from core.log.store import EventLog
from tests.support.nats import append, bus_on, eventually, fresh, log_on, own, read, take

pytestmark = pytest.mark.long(keep=2)

WRITERS = 8
EVENTS = 40
"""Per writer and phase."""


class Writer:
    """Appends by guard to a thread of its own and to one that all share, and remembers what was acknowledged."""

    def __init__(self, log: EventLog, shared: Aggregate) -> None:
        self.log = log
        self.own, self.shared = fresh(), shared
        self.acknowledged: dict[Aggregate, list[str]] = {self.own: [], shared: []}
        self.last = 0

    async def write(self, count: int) -> None:
        for n in range(count):
            event = ThreadAnnotated(metadata={"n": n})
            size = 2 if n % 8 == 7 else 1
            records = await append(self.log, self.own, *[event] * size, expected=self.last)
            self.last = records[-1].seq
            self.acknowledged[self.own] += [r.id for r in records]
            if n % 4 == 3:
                await self._share(event)

    async def _share(self, event: ThreadAnnotated) -> None:
        """Decide again until it is in."""
        while True:
            try:
                records = await append(self.log, self.shared, event, expected=await self.log.tip(self.shared))
            except (Conflict, Unavailable):
                continue
            self.acknowledged[self.shared] += [r.id for r in records]
            return


async def test_the_leader_dies_under_load(tmp_path: Path) -> None:
    async with own(tmp_path, nodes=3) as nats, bus_on(nats) as bus, log_on(bus) as log:
        shared = fresh()
        writers = [Writer(log, shared) for _ in range(WRITERS)]
        following = asyncio.ensure_future(take(log.follow(writers[0].own), 2 * (EVENTS + EVENTS // 8)))

        async def all_write() -> None:
            async with asyncio.TaskGroup() as tasks:
                for writer in writers:
                    tasks.create_task(writer.write(EVENTS))

        async def some_written() -> bool:
            return sum(len(w.acknowledged[w.own]) for w in writers) > WRITERS * EVENTS // 4

        load = asyncio.ensure_future(all_write())
        await eventually(some_written)
        dead = await nats.leader(bus)
        await nats.kill(dead)
        await load
        load = asyncio.ensure_future(all_write())
        await nats.restart(dead)
        await load

        for writer in writers:
            found = await read(log, writer.own)
            assert [r.id for r in found] == writer.acknowledged[writer.own]
            assert all(a.seq < b.seq for a, b in pairwise(found))
        stored = [r.id for r in await read(log, shared)]
        assert len(stored) == len(set(stored))
        assert set(stored) == {identity for w in writers for identity in w.acknowledged[shared]}
        for writer in writers:
            mine = set(writer.acknowledged[shared])
            assert [identity for identity in stored if identity in mine] == writer.acknowledged[shared]
        assert [r.id for r in await following] == writers[0].acknowledged[writers[0].own]


async def test_without_a_majority_nothing_is_acknowledged(tmp_path: Path) -> None:
    """Two of three are gone: an append waits, and is done when one of them is back."""
    async with own(tmp_path, nodes=3) as nats, bus_on(nats) as bus, log_on(bus) as log:
        thread = fresh()
        [first] = await append(log, thread, ThreadAnnotated(metadata={}))
        await nats.kill(1)
        await nats.kill(2)
        waiting = asyncio.ensure_future(append(log, thread, ThreadAnnotated(metadata={}), expected=first.seq))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done
        await nats.restart(1)
        [second] = await waiting
        assert [r.id for r in await read(log, thread)] == [first.id, second.id]
