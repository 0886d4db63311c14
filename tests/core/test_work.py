"""The work queue: leases, room, dedupe, timers, dead letters; and its consumers through a restart."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from core.bus.connection import Bus
from core.bus.pull import Room
from core.bus.queue import Hint, Wakeup, WorkQueue
from core.errors import Invalid, Unavailable
from core.events import Aggregate
from core.ids import uuid7
from core.runtime.attempts import SUSPECT, Attempts, Mark
from tests.support.nats import DEADLINE, bus_on, eventually, fresh, own, running_tasks

ACTOR = "tester"
LEASE = 2.0


@pytest.fixture
async def queue(bus: Bus) -> WorkQueue:
    queue = WorkQueue(bus, LEASE)
    await queue.ensure(ACTOR)
    return queue


class Deliveries:
    """What was handed out; by default nothing is acked."""

    def __init__(self, queue: WorkQueue) -> None:
        self.queue = queue
        self.arrived: asyncio.Queue[Wakeup] = asyncio.Queue()

    async def __call__(self, wakeup: Wakeup) -> None:
        self.arrived.put_nowait(wakeup)

    async def next(self) -> Wakeup:
        with anyio.fail_after(DEADLINE):
            return await self.arrived.get()


Work = Callable[[Wakeup], Awaitable[None]]


@asynccontextmanager
async def serving(queue: WorkQueue, work: Work | None = None, slots: int = 10) -> AsyncIterator[Deliveries]:
    deliveries = Deliveries(queue)
    async with running_tasks(lambda: queue.serve(ACTOR, work or deliveries, Room(slots)), queue.hold):
        yield deliveries


async def wake(queue: WorkQueue, key: str = "k", aggregate: Aggregate | None = None, seq: int = 5) -> Aggregate:
    aggregate = aggregate or fresh()
    await queue.wake(ACTOR, aggregate, Hint(seq=seq, type="t", id="i"), key=key)
    return aggregate


async def waiting(bus: Bus) -> int:
    info = await bus.api(f"STREAM.INFO.{bus.names.stream('cmd')}")
    return int(info["state"]["messages"])


async def empty(bus: Bus) -> bool:
    return await waiting(bus) == 0


async def test_a_wakeup_says_where_to_look(queue: WorkQueue, bus: Bus) -> None:
    async with serving(queue) as deliveries:
        aggregate = await wake(queue)
        wakeup = await deliveries.next()
        found = (wakeup.actor, wakeup.aggregate, wakeup.hint, wakeup.delivery)
        assert found == (ACTOR, aggregate, Hint(seq=5, type="t", id="i"), 1)
        assert await queue.exists(wakeup.seq)
        await wakeup.done()

        async def gone() -> bool:
            return not await queue.exists(wakeup.seq)

        await eventually(gone)
        assert await waiting(bus) == 0


async def test_the_same_key_is_sent_once(queue: WorkQueue, bus: Bus) -> None:
    aggregate = await wake(queue, "same")
    await wake(queue, "same", aggregate)
    await wake(queue, "another", aggregate)
    assert await waiting(bus) == 2


async def test_no_stream_no_wakeup(queue: WorkQueue, bus: Bus) -> None:
    await bus.api(f"STREAM.DELETE.{bus.names.stream('cmd')}")
    with pytest.raises(Unavailable):
        await wake(queue)


async def test_who_does_not_ack_loses_it_after_the_lease(queue: WorkQueue) -> None:
    """Redelivery tells that it is one, and is the same wake-up."""
    async with serving(queue) as deliveries:
        await wake(queue)
        first, second = await deliveries.next(), await deliveries.next()
        assert (first.delivery, second.delivery) == (1, 2)
        assert first.seq == second.seq
        await second.done()


async def test_who_is_at_work_keeps_it(queue: WorkQueue) -> None:
    """Held over more than two leases; a second wake-up, let go of, measures them."""
    release = anyio.Event()
    seen: list[tuple[str, int]] = []
    clock = asyncio.Queue[int]()

    async def work(wakeup: Wakeup) -> None:
        seen.append((wakeup.aggregate.id, wakeup.delivery))
        if wakeup.aggregate.id == "held":
            await release.wait()
            await wakeup.done()
        else:
            clock.put_nowait(wakeup.delivery)

    async with serving(queue, work):
        await wake(queue, "held", Aggregate("thread", "held"))
        await wake(queue, "clock", Aggregate("thread", "clock"))
        with anyio.fail_after(DEADLINE):
            while await clock.get() < 4:
                pass
        assert [delivery for name, delivery in seen if name == "held"] == [1]
        release.set()


async def test_giving_back(queue: WorkQueue) -> None:
    async with serving(queue) as deliveries:
        await wake(queue)
        await (await deliveries.next()).again()
        await (await deliveries.next()).again(0.2)
        wakeup = await deliveries.next()
        assert wakeup.delivery == 3
        await wakeup.done()


async def test_no_more_at_a_time_than_there_is_room_for(queue: WorkQueue) -> None:
    at_once, most, done = 0, 0, asyncio.Queue[str]()
    gate = anyio.Event()

    async def work(wakeup: Wakeup) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 3:
            gate.set()
        await gate.wait()
        await asyncio.sleep(0)
        at_once -= 1
        await wakeup.done()
        done.put_nowait(wakeup.aggregate.id)

    async with serving(queue, work, slots=3):
        sent = {(await wake(queue, str(n))).id for n in range(20)}
        with anyio.fail_after(DEADLINE):
            assert {await done.get() for _ in range(20)} == sent
    assert most == 3


async def test_two_processes_share_the_work(queue: WorkQueue, bus: Bus) -> None:
    other = WorkQueue(bus, LEASE)
    seen: list[str] = []
    everything = anyio.Event()

    async def work(wakeup: Wakeup) -> None:
        seen.append(wakeup.aggregate.id)
        await wakeup.done()
        if len(seen) == 30:
            everything.set()

    async with serving(queue, work, 2), serving(other, work, 2):
        sent = [(await wake(queue, str(n))).id for n in range(30)]
        with anyio.fail_after(DEADLINE):
            await everything.wait()
    assert sorted(seen) == sorted(sent)


async def test_a_restart_alone_takes_up_at_once_what_was_not_acked(queue: WorkQueue, bus: Bus) -> None:
    async with serving(queue) as before:
        await wake(queue)
        await before.next()
    patient = WorkQueue(bus, 3600)
    await patient.ensure(ACTOR, anew=True)
    async with serving(patient) as after:
        await (await after.next()).done()


async def test_a_server_restart_between_wakeups(tmp_path: Path) -> None:
    async with own(tmp_path) as nats, bus_on(nats) as bus:
        queue = WorkQueue(bus, LEASE)
        await queue.ensure(ACTOR)
        async with serving(queue) as deliveries:
            known = set()
            for key in ("one", "two", "three"):
                aggregate = await wake(queue, key)
                known.add(aggregate)
                while (wakeup := await deliveries.next()).aggregate != aggregate:
                    assert wakeup.aggregate in known, "only what was acked just before the kill may come again"
                    await wakeup.done()
                await wakeup.done()
                await nats.kill()
                await nats.restart()
                await eventually(lambda: bus.api("INFO"))


# ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────────


async def letters(bus: Bus) -> list[dict[str, Any]]:
    stream = bus.names.stream("dlq")
    state = (await bus.api(f"STREAM.INFO.{stream}"))["state"]
    found = []
    for seq in range(max(1, state["first_seq"]), state["last_seq"] + 1):
        message = (await bus.api(f"STREAM.MSG.GET.{stream}", {"seq": seq}))["message"]
        found.append(msgspec.json.decode(msgspec.convert(message["data"], bytes, strict=False)))
    return found


async def test_a_buried_wakeup_is_a_letter_and_gone(queue: WorkQueue, bus: Bus) -> None:
    async with serving(queue) as deliveries:
        aggregate = await wake(queue)
        wakeup = await deliveries.next()
        await queue.bury(wakeup, "cannot")
        await queue.bury(wakeup, "cannot")  # repeated after a crash: still one letter

        await eventually(lambda: empty(bus))
    [letter] = await letters(bus)
    assert {k: v for k, v in letter.items() if k != "at"} == {
        "actor": ACTOR,
        "aggregate": str(aggregate),
        "reason": "cannot",
        "hint": {"seq": 5, "type": "t", "id": "i"},
    }


async def test_a_letter_that_cannot_be_stored_is_not_lost(queue: WorkQueue, bus: Bus) -> None:
    stream = bus.names.stream("dlq")
    config = (await bus.api(f"STREAM.INFO.{stream}"))["config"]
    await bus.api(f"STREAM.UPDATE.{stream}", {**config, "max_msg_size": 10})
    async with serving(queue) as deliveries:
        await wake(queue)
        wakeup = await deliveries.next()
        with pytest.raises(Invalid, match="size exceeds"):
            await queue.bury(wakeup, "cannot")


# ── timers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def timers(bus: Bus) -> dict[str, int]:
    info = await bus.api(f"STREAM.INFO.{bus.names.stream('timer')}", {"subjects_filter": ">"})
    found: dict[str, int] = info["state"].get("subjects") or {}
    return found


async def test_a_timer_is_kept_until_it_is_due_and_the_same_key_replaces(queue: WorkQueue, bus: Bus) -> None:
    far = datetime.now(UTC) + timedelta(hours=1)
    aggregate = fresh()
    await queue.wake_at(far, ACTOR, aggregate, key="a")
    await queue.wake_at(far, ACTOR, aggregate, key="b")
    await queue.wake_at(far + timedelta(hours=1), ACTOR, aggregate, key="a")
    names = bus.names
    assert await timers(bus) == {names.timer(ACTOR, aggregate, "a"): 1, names.timer(ACTOR, aggregate, "b"): 1}


async def test_a_timer_that_is_due_becomes_a_wake(queue: WorkQueue, bus: Bus) -> None:
    aggregate = fresh()
    await queue.wake_at(datetime.now(UTC), ACTOR, aggregate, key="a")

    async def fired() -> bool:
        return await timers(bus) == {bus.names.wake(ACTOR, aggregate): 1}

    await eventually(fired)


async def test_a_timer_does_not_fire_early(queue: WorkQueue, bus: Bus) -> None:
    now = datetime.now(UTC)
    when = now.replace(microsecond=999_000) + timedelta(hours=1)
    await queue.wake_at(when, ACTOR, aggregate := fresh(), key="a")
    subject = bus.names.timer(ACTOR, aggregate, "a")
    stored = await bus.nc.jetstream().get_last_msg(bus.names.stream("timer"), subject)
    assert stored.headers
    assert datetime.fromisoformat(stored.headers["Nats-Schedule"].removeprefix("@at ")) >= when


# ── blast radius ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("body", [b"not json", b'{"seq":"x"}', b"\xff" * 10_000])
async def test_an_unreadable_wakeup_is_a_dead_letter_and_disturbs_nobody(
    queue: WorkQueue, bus: Bus, body: bytes
) -> None:
    disturbed: list[str] = []
    go = anyio.Event()

    async def work(wakeup: Wakeup) -> None:
        try:
            await go.wait()
        except asyncio.CancelledError:
            disturbed.append(wakeup.aggregate.id)
            raise
        await wakeup.done()

    async with serving(queue, work):
        await wake(queue)
        await bus.publish(bus.names.cmd(ACTOR, fresh()), body)
        await bus.publish(f"{bus.names.prefix}.cmd.{ACTOR}.short", body)

        async def buried() -> bool:
            return len(await letters(bus)) == 2

        await eventually(buried)
        await wake(queue, "k2")
        go.set()

        await eventually(lambda: empty(bus))
        assert disturbed == []
    first, second = await letters(bus)
    assert "not a wake-up" in first["reason"]
    assert base64.b64decode(first["body"]) == body[:4096]
    assert "five parts" in second["reason"]


async def test_work_that_raises_ends_alone(queue: WorkQueue) -> None:
    done = asyncio.Queue[int]()

    async def work(wakeup: Wakeup) -> None:
        if wakeup.hint.seq == 13:
            raise RuntimeError("unlucky")
        await asyncio.sleep(0)
        done.put_nowait(wakeup.hint.seq)
        await wakeup.done()

    async with serving(queue, work, slots=2):
        for n in (1, 13, 13, 2, 13, 3):
            await wake(queue, f"k{n}-{uuid7()}", seq=n)
        with anyio.fail_after(DEADLINE):
            assert {await done.get() for _ in range(3)} == {1, 2, 3}


async def test_what_is_delivered_again_while_it_is_worked_on_is_not_handed_out_again(
    queue: WorkQueue, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As to a process that was frozen for longer than its lease."""
    extended = anyio.Event()

    async def keep(self: Wakeup) -> None:
        await extended.wait()

    monkeypatch.setattr(Wakeup, "keep", keep)
    go, handed = anyio.Event(), []

    async def work(wakeup: Wakeup) -> None:
        handed.append(wakeup.delivery)
        await go.wait()
        await wakeup.done()

    async with serving(queue, work):
        await wake(queue)

        async def delivered_again() -> bool:
            info = await bus.api(f"CONSUMER.INFO.{bus.names.stream('cmd')}.{ACTOR}")
            return bool(info["num_redelivered"])

        await eventually(delivered_again)
        await wake(queue, "k2")  # one after it has been handed out, so it has been looked at, too

        async def next_one() -> bool:
            return len(handed) > 1

        await eventually(next_one)
        assert handed == [1, 1]
        go.set()
        extended.set()

        await eventually(lambda: empty(bus))


async def test_deliveries_are_ordered_also_over_a_consumer_made_anew(queue: WorkQueue) -> None:
    await wake(queue)
    async with serving(queue) as before:
        first = await before.next()
        second = await before.next()
    await queue.ensure(ACTOR, anew=True)
    async with serving(queue) as after:
        third = await after.next()
    assert third.delivery <= second.delivery
    assert first.order < second.order < third.order
    assert first.seq == second.seq == third.seq


async def test_work_that_ended_fewer_processes_comes_first(queue: WorkQueue, bus: Bus) -> None:
    more, fewer = [await wake(queue, key) for key in ("more", "fewer")]
    attempts, order, both = Attempts(bus), [], asyncio.Event()
    attempts.alone = True  # so these deliveries may follow those of a process that died

    async def work(wakeup: Wakeup) -> None:
        mark = Mark(wakeup.hint.id, SUSPECT + (wakeup.aggregate == more))
        await bus.store(bus.names.place(f"{wakeup.actor}@{wakeup.seq}"), msgspec.json.encode(mark))
        if wakeup.aggregate == fewer:
            both.set()
        await both.wait()
        async with attempts.begun(wakeup):
            order.append(wakeup.aggregate)
            await wakeup.done()

    async with serving(queue, work):
        await eventually(lambda: empty(bus))
    assert order == [fewer, more]


async def test_a_process_that_was_held_up_longer_than_a_lease_knows_it(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr("core.bus.queue.time.monotonic", lambda: clock)
    queue = WorkQueue(bus, LEASE)
    clock += LEASE / 2
    assert queue.lapses == 0
    clock += LEASE
    assert [queue.lapses, queue.lapses] == [1, 1]
    clock += 10 * LEASE
    assert queue.lapses == 2


async def test_so_does_one_that_was_without_nats(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = WorkQueue(bus, 0.1)
    monkeypatch.setattr(bus.nc, "_status", bus.nc.RECONNECTING)
    with anyio.move_on_after(0.5):
        await queue.hold()
    assert queue.lapses >= 1
