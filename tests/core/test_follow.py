"""Follow: every event, in order, once; whatever gets lost on the way, however slow the reader."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from nats.aio.msg import Msg

from core.bus.connection import Bus
from core.events import Aggregate, StatePatched, ThreadAnnotated
from core.log import feed as core_feed
from core.log.store import EventLog
from tests.support.nats import Nats, append, bus_on, eventually, fresh, log_on, own, read, running_tasks, take


async def write(log: EventLog, thread: Aggregate, count: int, expected: int = 0) -> int:
    """`count` events, now and then two at once; the last sequence."""
    written = 0
    while written < count:
        size = 2 if written % 7 == 6 and written + 2 <= count else 1
        events = [ThreadAnnotated(metadata={"n": written + k}) for k in range(size)]
        expected = (await append(log, thread, *events, expected=expected))[-1].seq
        written += size
    return expected


async def drained(log: EventLog, thread: Aggregate, count: int, after: int = 0) -> None:
    """Follow `count` events and compare with what is stored."""
    seen = await take(log.follow(thread, after=after), count)
    assert [(r.seq, r.raw) for r in seen] == [(r.seq, r.raw) for r in (await read(log, thread, after))[:count]]


class Lossy(EventLog):
    """Does not hear some of the live messages. What it does about that is the log's own business."""

    def __init__(self, bus: Bus, seed: int, share: float) -> None:
        super().__init__(bus)
        self._chance = random.Random(seed)
        self._share = share
        self.dropped = 0
        self.deaf = False

    async def _on_live(self, msg: Msg) -> None:
        if self.deaf or self._chance.random() < self._share:
            self.dropped += 1
            return
        await super()._on_live(msg)


@pytest.fixture
async def lossy(any_bus: Bus, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lossy]:
    monkeypatch.setattr(core_feed, "IDLE_SECONDS", 0.2)
    log = Lossy(any_bus, seed=7, share=0.2)
    await log.start()
    async with running_tasks(log.watch):
        yield log


async def test_it_follows_while_others_write(any_log: EventLog) -> None:
    threads = [fresh() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for thread in threads:
            tasks.create_task(drained(any_log, thread, 40))
            tasks.create_task(drained(any_log, thread, 40))
            tasks.create_task(write(any_log, thread, 40))


async def test_lost_messages_are_read_from_the_log(lossy: Lossy) -> None:
    threads = [fresh() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for thread in threads:
            tasks.create_task(drained(lossy, thread, 60))
            tasks.create_task(write(lossy, thread, 60))
    assert lossy.dropped > 10


async def test_a_lost_last_message_is_found_without_another(lossy: Lossy) -> None:
    thread = fresh()
    follower = lossy.follow(thread)
    last = await write(lossy, thread, 3)
    assert [r.seq for r in await take(follower, 3)][-1] == last
    lossy.deaf = True
    [silent] = await append(lossy, thread, ThreadAnnotated(metadata={}), expected=last)
    assert [r.id for r in await take(follower, 1)] == [silent.id]
    await follower.aclose()  # type: ignore[attr-defined]


async def test_a_lost_big_body_is_found_too(lossy: Lossy) -> None:
    thread, event = fresh(), StatePatched(values={"text": "x" * 100_000})
    with lossy.listen(thread) as listener:
        lossy.deaf = True
        [written] = await append(lossy, thread, event)
        with anyio.fail_after(60):
            records, lost = await listener.take()
    assert ([(r.id, r.event) for r in records], lost) == ([(written.id, event)], False)


async def test_a_slow_follower_loses_its_buffer_and_not_its_place(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_feed, "BUFFERED", 5)
    thread = fresh()
    follower = log.follow(thread)
    last = await write(log, thread, 3)
    seen = [await anext(follower)]
    for _ in range(3):  # far more than the buffer holds while nobody takes
        last = await write(log, thread, 20, last)
        await caught_up(log, last)
        seen += await take(follower, 7)
    seen += await take(follower, 63 - len(seen))
    assert [(r.seq, r.raw) for r in seen] == [(r.seq, r.raw) for r in await read(log, thread)]
    [next_one] = await append(log, thread, ThreadAnnotated(metadata={}), expected=last)
    assert (await anext(follower)).id == next_one.id
    await follower.aclose()  # type: ignore[attr-defined]


async def caught_up(log: EventLog, seq: int) -> None:
    async def reached() -> bool:
        return log.position >= seq

    await eventually(reached)


@pytest.mark.parametrize(("limit", "value"), [("BUFFERED", 5), ("BUFFERED_BYTES", 500)])
async def test_a_listener_is_told_that_it_lost_something(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(core_feed, limit, value)
    thread = fresh()
    with log.listen(None) as listener:
        last = await write(log, thread, 6)
        await caught_up(log, last)
        assert await listener.take() == ([], True)
        [record] = await append(log, thread, ThreadAnnotated(metadata={}), expected=last)
        records, lost = await listener.take()
    assert ([r.id for r in records], lost) == ([record.id], False)
    assert not log._listeners


async def test_from_the_middle_and_from_the_end(any_log: EventLog) -> None:
    thread = fresh()
    middle = await write(any_log, thread, 10)
    last = await write(any_log, thread, 10, middle)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(drained(any_log, thread, 15, after=middle))
        tasks.create_task(drained(any_log, thread, 5, after=last))
        tasks.create_task(write(any_log, thread, 5, last))


async def test_a_process_that_starts_while_others_write(any_log: EventLog, nats: Nats, prefix: str) -> None:
    thread = fresh()
    writing = asyncio.ensure_future(write(any_log, thread, 100))
    async with bus_on(nats, prefix) as bus, log_on(bus) as late:
        await drained(late, thread, 100)
    await writing


async def test_a_purge_while_following(log: EventLog) -> None:
    thread = fresh()
    follower = log.follow(thread)
    last = await write(log, thread, 5)
    await take(follower, 5)
    await log.erase(thread)
    [record] = await append(log, thread, ThreadAnnotated(metadata={}), expected=last)
    assert (await anext(follower)).id == record.id
    await follower.aclose()  # type: ignore[attr-defined]


async def test_following_through_a_restart(tmp_path: Path) -> None:
    async with own(tmp_path) as nats, bus_on(nats) as bus, log_on(bus) as log:
        thread = fresh()
        following = asyncio.ensure_future(drained(log, thread, 30))
        last = await write(log, thread, 10)
        await nats.kill()
        await nats.restart()
        last = await write(log, thread, 10, last)
        await nats.kill()
        writing = asyncio.ensure_future(write(log, thread, 10, last))
        await nats.restart()
        await writing
        await following
