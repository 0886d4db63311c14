"""A thread followed live: facts in order and once, previews of its runs, beats, and the end of the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import pytest

import core.log.feed
from core.bus.connection import Bus
from core.events import Aggregate, Record, RunRequested, ThreadAnnotated
from core.lifecycle import Status
from core.log.store import EventLog
from core.pace import pace
from core.runs.follow import BEAT, Batch, Follower, Followers, Item, Stopping
from core.runs.previews import Preview, Progress, Pump, RunPreview
from core.thread.state import Run
from tests.support.nats import append, eventually, fresh

pytestmark = pytest.mark.anyio


@pytest.fixture
def thread() -> Aggregate:
    return fresh()


@pytest.fixture
def followers(log: EventLog) -> Followers:
    return Followers(log)


@pytest.fixture
async def follower(followers: Followers, thread: Aggregate) -> AsyncIterator[Follower]:
    async with followers.follow(thread.id) as follower:
        yield follower


def run(status: Status) -> Run:
    return Run(id="r", request=RunRequested(), requested_seq=1, created_at="", updated_at="", status=status)


def facts(*numbers: int) -> list[ThreadAnnotated]:
    return [ThreadAnnotated(metadata={"n": number}) for number in numbers]


async def some(batches: AsyncIterator[Batch], count: int) -> list[Item]:
    """The next items, as many at least."""
    items: list[Item] = []
    with anyio.fail_after(120):
        while len(items) < count:
            items += await anext(batches)
    return items


def numbers(items: list[Item]) -> list[int]:
    return [item.event.metadata["n"] for item in items if isinstance(item, Record)]  # type: ignore[union-attr]


def piece(offset: int, text: str) -> Preview:
    return Preview(message="m", after=1, offset=offset, text=text)


async def test_the_past_and_then_what_comes(log: EventLog, thread: Aggregate, follower: Follower) -> None:
    past = await append(log, thread, *facts(1, 2, 3))
    async with aclosing(follower.since(past[0].seq)) as batches:
        assert numbers(await some(batches, 2)) == [2, 3]
        await append(log, thread, *facts(4), expected=past[-1].seq)
        assert numbers(await some(batches, 1)) == [4]


async def test_what_was_heard_is_not_read(
    log: EventLog, thread: Aggregate, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first, *_] = await append(log, thread, *facts(1, 2))
    monkeypatch.setattr(log, "read", None)
    async with aclosing(follower.since(first.seq, heard=True)) as batches:
        assert numbers(await some(batches, 1)) == [2]


async def test_a_slow_reader_loses_no_fact(
    log: EventLog, thread: Aggregate, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core.log.feed, "BUFFERED", 3)
    await append(log, thread, *facts(*range(10)))
    async with aclosing(follower.since(0, heard=True)) as batches:
        assert numbers(await some(batches, 10)) == list(range(10))


async def stored(log: EventLog, count: int) -> None:
    """Wait until so many previews are kept."""

    async def probe() -> bool:
        info = await log.bus.api(f"STREAM.INFO.{log.bus.names.stream('tok')}")
        return int(info["state"]["messages"]) >= count

    assert await eventually(probe)


async def test_previews_from_before_come_first(bus: Bus, log: EventLog, follower: Follower) -> None:
    pump = Pump(bus)
    await pump.publish("r", piece(0, "He"))
    await stored(log, 1)
    async with aclosing(follower.since(0, lambda: [run("running")], heard=True)) as batches:
        assert await some(batches, 1) == [RunPreview("r", piece(0, "He"), stored=True)]
        waiting = asyncio.ensure_future(some(batches, 1))
        await bus.nc.flush()
        await pump.progress("r", Progress(call_id="c", name="bash", text="half"))
        assert await waiting == [RunPreview("r", Progress(call_id="c", name="bash", text="half"))]
        follower.recall("r")
        again = await some(batches, 2)
    assert [item.stored for item in again if isinstance(item, RunPreview)] == [True, True]


async def test_a_run_may_begin_before_its_previews_are_followed(
    bus: Bus, log: EventLog, thread: Aggregate, follower: Follower
) -> None:
    """It was asked for, then began and said something; the follower has only just learned of the first."""
    audible = [run("pending")]
    await Pump(bus).publish("r", piece(0, "He"))
    await stored(log, 1)
    await append(log, thread, *facts(1))
    async with aclosing(follower.since(0, lambda: audible, heard=True)) as batches:
        assert numbers(await some(batches, 1)) == [1]
        audible[:] = [run("running")]
        assert await some(batches, 1) == [RunPreview("r", piece(0, "He"), stored=True)]
        follower.put(BEAT)
        assert await some(batches, 1) == [BEAT], "once"


async def test_of_a_run_that_begins_nothing_is_fetched(bus: Bus, log: EventLog, follower: Follower) -> None:
    pump = Pump(bus)
    await follower.hear("r")
    await pump.publish("r", piece(0, "He"))
    await stored(log, 1)
    async with aclosing(follower.since(0, lambda: [run("running")], heard=True)) as batches:
        assert await some(batches, 1) == [RunPreview("r", piece(0, "He"))]


async def test_previews_of_other_runs_are_not_followed(
    bus: Bus, log: EventLog, thread: Aggregate, follower: Follower
) -> None:
    audible = [run("pending")]
    async with aclosing(follower.since(0, lambda: audible, heard=True)) as batches:
        waiting = asyncio.ensure_future(some(batches, 1))
        follower.wake()
        audible.clear()
        await append(log, thread, *facts(1))
        assert numbers(await waiting) == [1]
        waiting = asyncio.ensure_future(some(batches, 1))
        await bus.nc.flush()
        await Pump(bus).publish("r", piece(0, "He"))
        await stored(log, 1)
        follower.put(BEAT)
        assert await waiting == [BEAT]


async def test_beats(followers: Followers, follower: Follower) -> None:
    beating = asyncio.ensure_future(followers.beat(lambda: 0.01))
    async with aclosing(follower.since(0)) as batches:
        assert await some(batches, 2) == [BEAT, BEAT]
    beating.cancel()


@pytest.mark.parametrize("already", [False, True])
async def test_the_end_of_the_process(followers: Followers, thread: Aggregate, already: bool) -> None:
    async with followers.follow(thread.id) as follower, aclosing(follower.since(0)) as batches:
        if already:
            followers.stop()
        waiting = asyncio.ensure_future(some(batches, 1))
        await asyncio.sleep(0)
        followers.stop()
        with pytest.raises(Stopping):
            await waiting
    assert not len(followers)


async def test_a_run_is_received_once_for_all_that_follow_it(bus: Bus, log: EventLog, followers: Followers) -> None:
    pump, thread, before = Pump(bus), fresh(), bus.nc._subs.copy()
    async with followers.follow(thread.id) as one, followers.follow(thread.id) as stays:
        await asyncio.gather(one.hear("r"), stays.hear("r"))
        assert len(bus.nc._subs) == len(before) + 1
        await bus.nc.flush()
        async with (
            aclosing(one.since(0, lambda: [run("pending")], heard=True)) as batches,
            aclosing(stays.since(0, lambda: [run("pending")], heard=True)) as others,
        ):
            await pump.publish("r", piece(0, "He"))
            [item], [same] = await some(batches, 1), await some(others, 1)
            assert item is same
            await one.close()
            await pump.publish("r", piece(2, "llo"))
            assert await some(others, 1) == [RunPreview("r", piece(2, "llo"))]
    assert bus.nc._subs.keys() == before.keys()


# ── runs at work in this process ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def pump(bus: Bus) -> Pump:
    return Pump(bus)


@pytest.fixture
async def beside(log: EventLog, pump: Pump, thread: Aggregate) -> AsyncIterator[Follower]:
    """A follower in the process of the run."""
    async with Followers(log, pump=pump).follow(thread.id) as follower:
        yield follower


async def arrived(bus: Bus) -> int:
    """Returns the number of messages that NATS has sent to this process."""
    await bus.echo()
    return int(bus.nc.stats["in_msgs"])


async def test_previews_of_a_run_at_work_here_are_handed_over(
    bus: Bus, log: EventLog, pump: Pump, beside: Follower
) -> None:
    """Once each, not by NATS, which keeps them for others."""
    await beside.hear("r")
    pump.begin("r")
    await pump.publish("r", piece(0, "early"))  # its subscription is still there
    await bus.echo()
    await anyio.wait_all_tasks_blocked()
    async with aclosing(beside.since(0, lambda: [run("running")], heard=True)) as batches:
        assert await some(batches, 1) == [RunPreview("r", piece(0, "early"))]
        beside.put(BEAT)
        assert await some(batches, 1) == [BEAT]
        before = await arrived(bus)
        await pump.publish("r", piece(5, "late"))
        assert await some(batches, 1) == [RunPreview("r", piece(5, "late"))]
        await stored(log, 2)
        asked = 4  # looks at the stream, each with its answer, and the echo
        assert await arrived(bus) - before <= asked


@pytest.mark.parametrize("begun", [False, True], ids=["before it began", "while it is at work"])
async def test_a_run_that_goes_on_elsewhere_is_followed_there(
    bus: Bus, log: EventLog, pump: Pump, beside: Follower, begun: bool
) -> None:
    """This process was frozen: another one has taken the run over, and said something that nobody here heard."""
    if begun:
        pump.begin("r")
    await beside.hear("r")
    pump.begin("r")
    elsewhere = Pump(bus)
    async with aclosing(beside.since(0, lambda: [run("running")], heard=True)) as batches:
        await pump.publish("r", piece(0, "here "))
        items = await some(batches, 1)
        await elsewhere.publish("r", piece(5, "unheard "))
        await stored(log, 2)
        pump.end("r", over=False)
        while piece(5, "unheard ") not in [item.preview for item in items if isinstance(item, RunPreview)]:
            items += await some(batches, 1)
        await elsewhere.publish("r", piece(13, "there"))
        while piece(13, "there") not in [item.preview for item in items if isinstance(item, RunPreview)]:
            items += await some(batches, 1)


async def test_a_run_that_is_over_is_not_followed_by_nats(bus: Bus, pump: Pump, beside: Follower) -> None:
    """Its last event is on its way: a subscription would be for nothing."""
    await beside.hear("r")
    pump.begin("r")
    async with aclosing(beside.since(0, lambda: [run("running")], heard=True)) as batches:
        pump.end("r", over=True)
        beside.put(BEAT)
        assert await some(batches, 1) == [BEAT]
        beside.put(BEAT)
        assert await some(batches, 1) == [BEAT]
        before = await arrived(bus)
        await Pump(bus).publish("r", piece(0, "of nobody"))
        assert await arrived(bus) - before == 1, "the echo"


async def test_a_busy_process_sends_previews_in_bundles(
    bus: Bus, log: EventLog, pump: Pump, beside: Follower, thread: Aggregate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that comes in between gets all of them, in order, and one elsewhere, too. The first is not held up."""
    texts = [f"{number:3}" for number in range(50)]
    pump.begin("r")
    async with anyio.create_task_group() as tasks, Followers(log).follow(thread.id) as elsewhere:
        await elsewhere.hear("r")
        tasks.start_soon(pump.run)
        await anyio.wait_all_tasks_blocked()
        for number, text in enumerate(texts):
            monkeypatch.setattr(pace, "seconds", 0.5 if number < 40 else 0.0)
            before = 0 if number else await arrived(bus)
            await pump.publish("r", piece(3 * number, text))
            assert number or await arrived(bus) == before + 2, "the echo, and the piece"
        async with aclosing(beside.since(0, lambda: [run("running")], heard=True)) as batches:
            kept = await some(batches, len(texts))
        async with aclosing(elsewhere.since(0, lambda: [run("running")], heard=True)) as batches:
            heard = await some(batches, len(texts))
        tasks.cancel_scope.cancel()
    assert kept == [RunPreview("r", piece(3 * number, text), stored=True) for number, text in enumerate(texts)]
    assert heard == [RunPreview("r", piece(3 * number, text)) for number, text in enumerate(texts)]
