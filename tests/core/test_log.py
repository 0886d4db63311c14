"""The append contract, on one server and on a cluster: guards, batches, lost acknowledgements, big bodies, purge."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from core.bus.connection import Bus
from core.bus.streams import erase_all
from core.cache import ByteCache
from core.errors import Conflict, Unavailable
from core.events import Aggregate, Event, Opaque, Record, StatePatched, ThreadAnnotated, ThreadCreated, ThreadErased
from core.log import reader as core_reader
from core.log import store as core_log
from core.log.store import EventLog
from core.thread.threads import Threads
from tests.support.nats import DEADLINE, Nats, Node, Proxy, append, bus_on, eventually, fresh, log_on, own, proxy, read

CREATED = ThreadCreated(user="ada")


def note(n: int) -> ThreadAnnotated:
    return ThreadAnnotated(metadata={"n": n})


def big(size: int) -> StatePatched:
    return StatePatched(values={"text": "€" * (size // 3)})


def impatient(monkeypatch: pytest.MonkeyPatch, bus: Bus) -> None:
    """The deadline of one request, shorter than the 5 s that an election may take."""
    monkeypatch.setattr(bus, "ask", functools.partial(bus.ask, timeout=0.7))


# ── guards ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_appended_is_read_back(any_log: EventLog) -> None:
    thread = fresh()
    [first] = await any_log.append(thread, [CREATED], expected=0, actor="http", run="r", cause="c")
    more = await append(any_log, thread, note(1), expected=first.seq)
    found = await read(any_log, thread)
    assert [(r.seq, r.raw, r.event) for r in found] == [(r.seq, r.raw, r.event) for r in (first, *more)]
    head = found[0].head
    assert (head.kind, head.aggregate_id, head.actor, head.run, head.cause) == ("thread", thread.id, "http", "r", "c")
    assert await any_log.tip(thread) == found[-1].seq
    assert await any_log.tip(fresh()) == 0
    assert await read(any_log, fresh()) == []
    assert [r.seq async for r in any_log.read(thread, upto=first.seq)] == [first.seq]


@pytest.mark.parametrize("count", [1, 3])
async def test_a_stale_guard_is_a_conflict_and_stores_nothing(any_log: EventLog, count: int) -> None:
    thread = fresh()
    records = await append(any_log, thread, CREATED)
    await append(any_log, thread, note(1), expected=records[-1].seq)
    before = [r.id for r in await read(any_log, thread)]
    for expected in (0, records[-1].seq):
        with pytest.raises(Conflict) as conflict:
            await append(any_log, thread, *[note(n) for n in range(count)], expected=expected)
        assert (conflict.value.aggregate, conflict.value.expected) == (str(thread), expected)
    assert [r.id for r in await read(any_log, thread)] == before


async def test_a_guard_from_the_future_is_a_conflict(any_log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restore of the log from a backup: the state that was kept in memory is newer than the log."""
    monkeypatch.setattr(core_log, "APPEND_SECONDS", 1.0)
    thread = fresh()
    [first] = await append(any_log, thread, CREATED)
    with pytest.raises(Conflict):
        await append(any_log, thread, note(1), expected=first.seq + 1000)


@pytest.mark.parametrize("count", [1, 2])
async def test_of_twenty_racing_writers_one_wins(any_log: EventLog, count: int) -> None:
    thread = fresh()
    [first] = await append(any_log, thread, CREATED)
    attempts = [append(any_log, thread, *[note(n)] * count, expected=first.seq) for n in range(20)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    [won] = [o for o in outcomes if isinstance(o, list)]
    assert all(isinstance(o, Conflict) for o in outcomes if o is not won)
    assert [r.id for r in await read(any_log, thread)] == [first.id, *(r.id for r in won)]


async def test_a_batch_is_in_order_and_without_gaps(any_log: EventLog) -> None:
    thread = fresh()
    records = await append(any_log, thread, CREATED, *[note(n) for n in range(20)])
    assert [r.seq for r in records] == list(range(records[0].seq, records[0].seq + 21))
    found = await read(any_log, thread)
    assert [(r.seq, r.id) for r in found] == [(r.seq, r.id) for r in records]
    assert [r.event for r in found[1:]] == [note(n) for n in range(20)]
    [after] = await append(any_log, thread, note(99), expected=records[-1].seq)
    assert await any_log.tip(thread) == after.seq


async def test_pages(any_log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_reader, "PAGE", 7)
    thread, other = fresh(), fresh()
    written = await append(any_log, thread, *[note(n) for n in range(21)])
    await append(any_log, other, CREATED)
    written += await append(any_log, thread, *[note(n) for n in range(8)], expected=written[-1].seq)
    assert [r.seq for r in await read(any_log, thread)] == [r.seq for r in written]
    assert [r.seq for r in await read(any_log, thread, after=written[13].seq)] == [r.seq for r in written[14:]]
    last = await any_log.last()
    assert [r.seq async for r in any_log.between(0, last)] == list(range(1, last + 1))
    assert [r.seq async for r in any_log.between(5, 11)] == list(range(6, 12))


# ── lost words ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def node(nats: Nats) -> Node:
    return nats.nodes[0]


@pytest.fixture
async def line(node: Node) -> AsyncIterator[Proxy]:
    async with proxy(node) as line:
        yield line


@pytest.fixture
async def far(nats: Nats, prefix: str, line: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EventLog]:
    """A log behind the line."""
    async with bus_on(nats, prefix, line.url) as bus:
        impatient(monkeypatch, bus)
        yield EventLog(bus)


async def expect_once(log: EventLog, thread: Aggregate, written: list[str], before: list[str]) -> None:
    assert [r.id for r in await read(log, thread)] == [*before, *written]


@pytest.mark.parametrize("count", [1, 2])
async def test_an_acknowledgement_that_comes_too_late(
    any_log: EventLog, far: EventLog, line: Proxy, count: int
) -> None:
    """Stored, but the answer is held back until the writer asks what became of it."""
    thread = fresh()
    [first] = await append(any_log, thread, CREATED)
    await read(far, thread)
    if count == 1:
        line.deafen()
    writing = asyncio.ensure_future(append(far, thread, *[note(n) for n in range(count)], expected=first.seq))
    if count > 1:  # the opening of the batch must be answered, its commit must not
        await line.said(b"Nats-Batch-Commit")
        line.deafen()
    await line.said(b"STREAM.MSG.GET")
    line.restore()
    records = await writing
    assert records[0].seq > first.seq
    await expect_once(any_log, thread, [r.id for r in records], [first.id])


@pytest.mark.parametrize("count", [1, 2])
async def test_a_connection_that_breaks_before_the_acknowledgement(
    any_log: EventLog, far: EventLog, line: Proxy, count: int
) -> None:
    thread = fresh()
    [first] = await append(any_log, thread, CREATED)
    await read(far, thread)
    line.deafen()
    writing = asyncio.ensure_future(append(far, thread, *[note(n) for n in range(count)], expected=first.seq))
    if count == 1:

        async def stored() -> bool:
            return await any_log.tip(thread) > first.seq

        await eventually(stored)
    else:
        await line.said(b"Nats-Batch-Sequence")
    line.cut()
    await expect_once(any_log, thread, [r.id for r in await writing], [first.id])


@pytest.mark.parametrize("count", [1, 2])
async def test_a_request_that_gets_lost_is_sent_again(
    any_log: EventLog, far: EventLog, line: Proxy, count: int
) -> None:
    thread = fresh()
    line.silence()
    writing = asyncio.ensure_future(append(far, thread, *[note(n) for n in range(count)]))
    await line.said(b"Nats-Expected-Last-Subject-Sequence")
    line.cut()
    await expect_once(any_log, thread, [r.id for r in await writing], [])


async def test_lost_acknowledgement_and_then_somebody_else(any_log: EventLog, far: EventLog, line: Proxy) -> None:
    """Ours is there, although it is not the last any more: a success."""
    thread = fresh()
    [first] = await append(any_log, thread, CREATED)
    await read(far, thread)
    line.deafen()
    writing = asyncio.ensure_future(append(far, thread, note(1), expected=first.seq))

    async def tip() -> int:
        found = await any_log.tip(thread)
        return found if found > first.seq else 0

    [theirs] = await append(any_log, thread, note(2), expected=await eventually(tip))
    line.cut()
    [mine] = await writing
    await expect_once(any_log, thread, [mine.id, theirs.id], [first.id])


async def test_lost_request_and_somebody_else_is_first(any_log: EventLog, far: EventLog, line: Proxy) -> None:
    thread = fresh()
    line.silence()
    writing = asyncio.ensure_future(append(far, thread, note(1)))
    await line.said(b"Nats-Expected-Last-Subject-Sequence")
    [theirs] = await append(any_log, thread, note(2))
    line.cut()
    with pytest.raises(Conflict):
        await writing
    await expect_once(any_log, thread, [theirs.id], [])


async def test_a_log_that_never_answers(far: EventLog, line: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_log, "APPEND_SECONDS", 1.0)
    line.deafen()
    with pytest.raises(Unavailable, match="unknown whether it was stored"):
        await append(far, fresh(), CREATED)
    line.restore()


# ── big bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [core_log.INLINE_BYTES // 2, core_log.INLINE_BYTES + 1000, 3 << 20])
async def test_a_body_of_any_size_comes_back_as_it_was(any_log: EventLog, nats: Nats, prefix: str, size: int) -> None:
    """Read, heard live, and read by a process that did not write it."""
    thread, event = fresh(), big(size)
    follower = any_log.follow(thread)
    [written] = await append(any_log, thread, event)
    [live] = [await anext(follower)]
    await follower.aclose()  # type: ignore[attr-defined]
    async with bus_on(nats, prefix) as bus:
        found = await read(any_log, thread) + await read(EventLog(bus), thread)
    for record in (live, *found):
        assert (record.seq, record.raw, record.event) == (written.seq, written.raw, event)
    stored = await any_log.bus.api(f"STREAM.MSG.GET.{any_log.bus.names.stream('log')}", {"seq": written.seq})
    assert (len(stored["message"]["data"]) < 2000) == (size > core_log.INLINE_BYTES)


async def test_big_bodies_in_a_batch(any_log: EventLog) -> None:
    thread, events = fresh(), [CREATED, big(100_000), note(1), big(200_000)]
    await append(any_log, thread, *events)
    assert [r.event for r in await read(any_log, thread)] == events


async def blobs(log: EventLog) -> int:
    store = await log.bus.nc.jetstream().object_store(log.bus.names.blobs)
    return int((await store.status()).size)


async def test_erasing_keeps_the_tombstone_and_deletes_the_blobs(any_log: EventLog) -> None:
    thread, other = fresh(), fresh()
    await append(any_log, other, big(100_000))
    only_other = await blobs(any_log)
    records = await append(any_log, thread, CREATED, big(200_000), note(1))
    await any_log.erase(thread)
    assert [r.id for r in await read(any_log, thread)] == [records[-1].id]
    assert await any_log.tip(thread) == records[-1].seq
    assert await blobs(any_log) < only_other + 10_000
    assert [r.event for r in await read(any_log, other)] == [big(100_000)]
    with pytest.raises(Conflict):
        await append(any_log, thread, note(2), expected=records[0].seq)
    await append(any_log, thread, note(3), expected=records[-1].seq)


async def test_erasing_twice(any_log: EventLog) -> None:
    """An erasure that was interrupted is repeated."""
    thread = fresh()
    await append(any_log, thread, CREATED, big(200_000), note(1))
    await any_log.erase(thread)
    await any_log.erase(thread)


async def test_erasing_a_thread_without_blobs_or_events(any_log: EventLog) -> None:
    thread = fresh()
    await any_log.erase(thread)
    [first] = await append(any_log, thread, CREATED)
    await any_log.erase(thread)
    assert [r.id for r in await read(any_log, thread)] == [first.id]


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        ("2026-11-24T03:00:00", "2026-11-24T03:00:00.000000+00:00"),
        ("2026-11-24", "2026-11-24T00:00:00.000000+00:00"),
        ("2026-11-24T03:00:00Z", "2026-11-24T03:00:00Z"),
        ("now", ""),
    ],
)
async def test_an_odd_time_of_others_does_no_harm(log: EventLog, at: str, shown: str) -> None:
    """The event of an actor in another language counts, and is erased with its thread."""
    thread = fresh()
    [first] = await append(log, thread, CREATED)
    body = {"id": "x", "type": "thread.annotated", "kind": "thread", "aggregate": thread.id, "actor": "a", "at": at}
    await log.bus.ask(log.bus.names.log(thread), msgspec.json.encode(body | {"run": "r", "metadata": {"a": 1}}))
    state = await Threads(log).load(thread.id)
    assert (state.metadata, state.updated_at) == ({"a": 1}, shown or first.at)
    [last] = await append(log, thread, ThreadErased(by="ada"), expected=state.seq)
    await log.erase(thread)
    assert [r.id for r in await read(log, thread)] == [last.id]


async def test_long_logs_are_read_at_once(log: EventLog) -> None:
    """The server cuts off a connection for which it holds more than 64 MiB."""
    thread, text, seq = fresh(), "x" * 60_000, 0
    for _ in range(256):
        [last] = await append(log, thread, StatePatched(values={"text": text}), expected=seq)
        seq = last.seq
    for records in await asyncio.gather(*(read(log, thread) for _ in range(12))):
        assert len(records) == 256
    assert log.bus.reconnects == 0


async def test_a_body_that_is_not_an_event_type_of_ours(any_log: EventLog) -> None:
    """Another build's event, straight onto the bus: it is read, opaque."""
    thread = fresh()
    body = {"id": "x", "type": "rocket.launched", "kind": "thread", "aggregate": thread.id, "actor": "a", "at": "now"}
    await any_log.bus.ask(any_log.bus.names.log(thread), msgspec.json.encode(body), {"Nats-Msg-Id": thread.id})
    [record] = await read(any_log, thread)
    assert (record.type, msgspec.json.decode(record.raw)) == ("rocket.launched", body)


@pytest.mark.parametrize("event", [note(1), big(100_000)], ids=["small", "big"])
async def test_appending_while_the_server_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: Event
) -> None:
    async with own(tmp_path) as nats, bus_on(nats) as bus, log_on(bus) as log:
        thread, other = fresh(), fresh()
        [first] = await append(log, thread, CREATED)
        await append(log, fresh(), big(100_000))  # the object store is there and known
        await nats.kill()
        asked = asyncio.Event()
        ask = bus.ask

        async def heard(*arguments: Any, **options: Any) -> Any:
            asked.set()
            return await ask(*arguments, **options)

        monkeypatch.setattr(bus, "ask", heard)
        one = asyncio.ensure_future(append(log, thread, event, expected=first.seq))
        batch = asyncio.ensure_future(append(log, other, CREATED, note(2)))
        await asked.wait()
        await nats.restart()
        [second] = await one
        assert [r.id for r in await read(log, thread)] == [first.id, second.id]
        both = await batch
        assert [r.id for r in await read(log, other)] == [r.id for r in both]


async def test_a_big_body_waits_for_the_server_as_long_as_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with own(tmp_path) as nats, bus_on(nats) as bus:
        monkeypatch.setattr(bus.nc, "jetstream", functools.partial(bus.nc.jetstream, timeout=0.3))
        log, thread = EventLog(bus), fresh()
        await append(log, fresh(), big(100_000))
        await nats.kill()
        waiting = asyncio.ensure_future(append(log, thread, big(100_000)))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done, "not refused at the first try of several"
        await nats.restart()
        [record] = await waiting
        assert [r.id for r in await eventually(lambda: read(log, thread))] == [record.id]


async def test_appending_a_big_body_to_a_server_that_stays_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_log, "APPEND_SECONDS", 1.0)
    async with own(tmp_path) as nats, bus_on(nats) as bus:
        log = EventLog(bus)
        await append(log, fresh(), big(100_000))
        await nats.kill()
        [outcome] = await asyncio.gather(append(log, fresh(), big(100_000)), return_exceptions=True)
        await nats.restart()
        await eventually(log.last)
        assert isinstance(outcome, Unavailable), repr(outcome)


async def test_a_restart_between_the_opening_and_the_commit_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has forgotten the opening; nothing was stored."""
    async with own(tmp_path) as nats, bus_on(nats) as bus:
        log, thread, ask, commits = EventLog(bus), fresh(), bus.ask, 0

        async def interrupted(subject: str, body: bytes, headers: dict[str, str] | None = None, **rest: Any) -> Any:
            nonlocal commits
            if headers and "Nats-Batch-Commit" in headers:
                commits += 1
                if commits == 1:
                    await nats.kill()
                    await nats.restart()
            return await ask(subject, body, headers, **rest)

        monkeypatch.setattr(bus, "ask", interrupted)
        records = await append(log, thread, CREATED, note(1), note(2))
        assert commits == 2
        assert [(r.seq, r.id) for r in await read(log, thread)] == [(r.seq, r.id) for r in records]


# ── what others have there ──────────────────────────────────────────────────────────────────────────────────────────


async def test_erasing_costs_what_the_aggregate_holds(log: EventLog) -> None:
    """The bodies of others are not looked at, however many they are."""

    async def cost() -> int:
        mine = fresh()
        await append(log, mine, big(70_000), ThreadErased(by="ada"))
        before = messages()
        await log.erase(mine)
        assert len(await read(log, mine)) == 1
        return messages() - before

    def messages() -> int:
        return int(log.bus.nc.stats["out_msgs"])

    alone = await cost()
    for _ in range(20):
        await append(log, fresh(), big(70_000))
    assert await cost() == alone


async def test_an_erasure_that_was_cut_short_is_completed(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    aggregate = fresh()
    await append(log, aggregate, big(70_000), ThreadErased(by="ada"))
    api = log.bus.api

    async def cut(call: str, request: Any = None) -> Any:
        if call == f"STREAM.MSG.DELETE.{log.bus.names.stream('log')}":
            raise Unavailable("the power is off")
        return await api(call, request)

    monkeypatch.setattr(log.bus, "api", cut)
    with pytest.raises(Unavailable):
        await log.erase(aggregate)
    [lost, _] = await read(log, aggregate)
    assert isinstance(lost.event, Opaque)
    assert lost.event.problem
    monkeypatch.setattr(log.bus, "api", api)
    await log.erase(aggregate)
    assert [record.type for record in await read(log, aggregate)] == ["thread.erased"]


async def test_a_body_whose_chunks_are_being_erased_holds_nobody_up(any_log: EventLog) -> None:
    """Its description goes last."""
    aggregate = fresh()
    await append(any_log, aggregate, big(300_000))
    await erase_all(any_log.bus, "blobs", any_log.bus.names.chunks(f"{aggregate.kind}.{aggregate.id}.>"))
    [record] = await read(any_log, aggregate)
    assert isinstance(record.event, Opaque)
    assert record.event.problem


async def test_the_body_of_an_append_that_was_refused_does_not_stay(log: EventLog) -> None:
    aggregate = fresh()
    await append(log, aggregate, big(10))
    with pytest.raises(Conflict):
        await append(log, aggregate, big(70_000), expected=0)
    assert await blobs(log) < 10_000


async def test_a_big_body_is_fetched_by_who_takes_it(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small events of others do not wait for it."""
    fetching, go = anyio.Event(), anyio.Event()
    get = log._blobs.get

    async def slow(record: Record) -> bytes:
        fetching.set()
        await go.wait()
        return await get(record)

    monkeypatch.setattr(log._blobs, "get", slow)
    loud, quiet = fresh(), fresh()
    with log.listen(loud) as loud_ear, log.listen(quiet) as quiet_ear, log.listen(loud, bodies=False) as heads:
        taking = asyncio.ensure_future(loud_ear.take())
        await append(log, loud, big(70_000))
        await append(log, quiet, big(10))
        await fetching.wait()
        with anyio.fail_after(DEADLINE):
            assert [r.type for r in (await quiet_ear.take())[0]] == ["state.patched"]
            assert [r.type for r in (await heads.take())[0]] == ["state.patched"]
        go.set()
        [record] = (await taking)[0]
        assert record.event == big(70_000)


async def test_bodies_are_kept_up_to_a_bound_in_bytes(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log._blobs, "_recent", ByteCache(1_000_000))
    for _ in range(12):
        await append(log, aggregate := fresh(), big(150_000))
        await read(log, aggregate)
    assert 0 < log._blobs._recent.size <= 1_000_000


async def test_a_start_beside_a_busy_writer_reads_nothing_of_the_past(
    log: EventLog, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes between the subscription and the position is put in its place when that is known."""
    await append(log, fresh(), *[big(1)] * 3)
    second = EventLog(bus)
    last, healed = second.last, []

    async def slow() -> int:
        position = await last()
        await append(log, fresh(), big(2))  # heard before the position is known
        await bus.nc.flush()
        return position

    async def heal(upto: int) -> None:
        healed.append(upto)

    monkeypatch.setattr(second, "last", slow)
    monkeypatch.setattr(second, "_heal", heal)
    with second.listen(None) as listener:
        await second.start()
        with anyio.fail_after(DEADLINE):
            records, _ = await listener.take()
    assert (len(records), healed) == (1, [])


async def test_a_read_up_to_a_sequence_is_complete_or_refused(
    log: EventLog, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is behind its leader has not got everything yet."""
    aggregate = fresh()
    records = await append(log, aggregate, *[big(n) for n in range(4)])
    page, behind = log._page, 2

    async def lagging(subject: str, start: int, most: int | None = None) -> Any:
        nonlocal behind
        behind -= 1
        stored, more = await page(subject, start, most)
        return (stored if behind < 0 else [r for r in stored if r.seq <= records[1].seq]), more

    monkeypatch.setattr(log, "_page", lagging)
    monkeypatch.setattr(bus, "replicas", 3)
    upto = records[2].seq
    assert [r.seq async for r in log.read(aggregate, upto=upto)] == [r.seq for r in records[:3]]
    behind = 1_000_000
    monkeypatch.setattr(core_reader, "READ_SECONDS", 0.1)
    with pytest.raises(Unavailable, match="behind its leader"):
        [_ async for _ in log.read(aggregate, upto=upto)]
