"""Folded aggregates: what a look costs, that it misses nothing, and that decisions count on current states only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import pytest
from nats.aio.msg import Msg

from core.bus.connection import Bus
from core.errors import Conflict, Refused, Unavailable
from core.events import Event, Record, ThreadAnnotated
from core.log import reader as core_reader
from core.log import repository as core_repository
from core.log.repository import Repository
from core.log.store import EventLog
from tests.support.nats import Nats, append, bus_on, eventually, fresh, log_on, proxy

KIND = "thread"
NOTE = ThreadAnnotated(metadata={})


def count(records: Iterable[Record], state: int) -> int:
    return state + sum(1 for _ in records)


def counter(log: EventLog) -> Repository[int]:
    return Repository(log, KIND, count, 0)


@pytest.fixture
def counters(log: EventLog) -> Repository[int]:
    return counter(log)


@asynccontextmanager
async def neighbour(nats: Nats, prefix: str) -> AsyncIterator[EventLog]:
    """Another process."""
    async with bus_on(nats, prefix) as bus, log_on(bus) as log:
        yield log


@contextmanager
def requests(bus: Bus) -> Iterator[list[str]]:
    """The subjects that are asked while the block lasts."""
    subjects: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ask", "ask_many"):
            original = getattr(bus, name)

            def asking(subject: str, *rest: object, original: object = original, **more: object) -> object:
                subjects.append(subject)
                return original(subject, *rest, **more)  # type: ignore[operator]

            patch.setattr(bus, name, asking)
        yield subjects


async def heard(log: EventLog, seq: int) -> None:
    async def there() -> bool:
        return log.position >= seq

    await eventually(there)


# ── what a look costs ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_kept_and_unchanged_aggregate_costs_the_server_no_request(
    counters: Repository[int], log: EventLog, bus: Bus
) -> None:
    aggregate, other = fresh(), fresh()
    [record] = await append(log, aggregate, NOTE)
    assert await counters.load(aggregate.id) == 1
    [last] = await append(log, other, NOTE)
    await heard(log, last.seq)
    with requests(bus) as asked:
        assert [await counters.load(aggregate.id) for _ in range(20)] == [1] * 20
    assert asked == []
    await append(log, aggregate, NOTE, expected=record.seq)
    assert await counters.load(aggregate.id) == 2


async def test_nor_does_it_while_other_events_are_being_handled(
    counters: Repository[int], log: EventLog, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate, other, receive = fresh(), fresh(), log._receive
    await append(log, aggregate, NOTE)
    assert await counters.load(aggregate.id) == 1

    async def receiving(msg: Msg) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await receive(msg)

    monkeypatch.setattr(log, "_receive", receiving)
    expected = 0
    with requests(bus) as subjects:
        for _ in range(10):
            [record] = await append(log, other, NOTE, expected=expected)
            assert await counters.load(aggregate.id) == 1
            expected = record.seq
    assert {subject for subject in subjects if subject.startswith("$JS.API")} == set()


async def test_an_aggregate_without_events_costs_no_request_either(
    counters: Repository[int], log: EventLog, bus: Bus
) -> None:
    aggregate, kept = fresh(), fresh()
    await append(log, kept, NOTE)
    assert [await counters.load(aggregate.id), await counters.load(kept.id)] == [0, 1]
    with requests(bus) as asked:
        assert [await counters.load(aggregate.id) for _ in range(5)] == [0] * 5
    assert asked == []
    await append(log, aggregate, NOTE)
    assert await counters.load(aggregate.id) == 1
    for _ in range(2 * core_repository.CACHE_BYTES // core_repository.ABSENT_SHARE // core_repository.ABSENT_BYTES):
        counters._keep(fresh().id, counters._nothing)
    assert counters.cached(kept.id) == 1, "looking for aggregates that are not there evicts none"


async def test_what_was_heard_up_to_a_sequence_costs_not_even_an_echo(
    counters: Repository[int], log: EventLog, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate, absent, echoes = fresh(), fresh(), 0
    echo = bus.echo

    async def counted() -> None:
        nonlocal echoes
        echoes += 1
        await echo()

    [record] = await append(log, aggregate, NOTE)
    assert [await counters.load(aggregate.id), await counters.load(absent.id)] == [1, 0]
    [last] = await append(log, fresh(), NOTE)
    await heard(log, last.seq)
    monkeypatch.setattr(bus, "echo", counted)
    for identity, notes in ((aggregate.id, 1), (absent.id, 0)):
        assert [await counters.load(identity, at_least=last.seq) for _ in range(5)] == [notes] * 5
    assert echoes == 0
    assert await counters.load(aggregate.id, at_least=last.seq + 1) == 1
    assert echoes == 1, "beyond what was heard"
    [newer] = await append(log, aggregate, NOTE, expected=record.seq)
    await heard(log, newer.seq)
    assert await counters.load(aggregate.id, at_least=last.seq) == 2, "what was heard after it counts, too"


async def test_on_replicas_it_costs_one_question_to_the_leader(cluster: Nats, prefix: str) -> None:
    async with neighbour(cluster, prefix) as log:
        counters, aggregate = counter(log), fresh()
        await append(log, aggregate, NOTE)
        assert await counters.load(aggregate.id) == 1
        with requests(log.bus) as asked:
            assert await counters.load(aggregate.id) == 1
    assert asked == [f"$JS.API.STREAM.MSG.GET.{log.bus.names.stream('log')}"]


async def test_what_is_no_event_keeps_nobody_from_the_others(any_log: EventLog) -> None:
    """Somebody else's junk comes after what is kept: it is looked past, by readers and by writers."""
    counters, aggregate = counter(any_log), fresh()
    [first] = await append(any_log, aggregate, NOTE)
    assert await counters.load(aggregate.id) == 1
    await any_log.bus.ask(any_log.bus.names.log(aggregate), b"junk")
    with pytest.raises(Conflict):
        await append(any_log, aggregate, NOTE, expected=first.seq)
    assert await counters.load(aggregate.id) == 2
    state, _ = await counters.decide(aggregate.id, lambda _: [NOTE], actor="test")
    assert state == 3


async def test_a_changed_aggregate_is_read_from_the_last_look_on(
    counters: Repository[int], log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate, other = fresh(), fresh()
    [first] = await append(log, aggregate, NOTE)
    await counters.load(aggregate.id)
    [between] = await append(log, other, NOTE)
    await heard(log, between.seq)
    await counters.load(aggregate.id)
    await append(log, aggregate, NOTE, expected=first.seq)
    starts, read = [], log.read

    def reading(*rest: object, after: int = 0, **more: object) -> AsyncIterator[Record]:
        starts.append(after)
        return read(*rest, after=after, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(log, "read", reading)
    assert await counters.load(aggregate.id) == 2
    assert starts == [between.seq]


async def test_ten_who_wait_share_one_load(
    counters: Repository[int], log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate = fresh()
    await append(log, aggregate, *[NOTE for _ in range(300)])
    reads, read = 0, log.read

    def reading(*rest: object, **more: object) -> AsyncIterator[Record]:
        nonlocal reads
        reads += 1
        return read(*rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(log, "read", reading)
    states = await asyncio.gather(*(counters.load(aggregate.id) for _ in range(10)))
    assert (states, reads) == ([300] * 10, 1)


async def test_a_load_that_fails_fails_for_all_who_wait_and_for_nobody_after(
    counters: Repository[int], log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate, reads = fresh(), 0
    await append(log, aggregate, NOTE)

    async def unavailable(*_: object, **__: object) -> AsyncIterator[Record]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        if reads:
            raise Unavailable("the log does not answer")
        yield Record(0, b"")

    with monkeypatch.context() as patch:
        patch.setattr(log, "read", unavailable)
        outcomes = await asyncio.gather(*(counters.load(aggregate.id) for _ in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 5
    assert reads == 1
    assert await counters.load(aggregate.id) == 1


async def test_who_waits_goes_on_when_the_load_is_cancelled(
    counters: Repository[int], log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate, begun, read = fresh(), asyncio.Event(), log.read
    await append(log, aggregate, NOTE)

    async def hanging(*_: object, **__: object) -> AsyncIterator[Record]:
        begun.set()
        await asyncio.Event().wait()
        yield Record(0, b"")

    monkeypatch.setattr(log, "read", hanging)
    first = asyncio.ensure_future(counters.load(aggregate.id))
    await begun.wait()
    others = [asyncio.ensure_future(counters.load(aggregate.id)) for _ in range(3)]
    monkeypatch.setattr(log, "read", read)
    first.cancel()
    assert await asyncio.gather(*others) == [1, 1, 1]
    assert first.cancelled()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Unavailable("the log does not answer")])
async def test_a_load_goes_on_from_where_another_was_broken_off(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(core_repository, "SLICE_RECORDS", 16)
    counters, aggregate, offsets, read = counter(log), fresh(), list[int](), log.read
    records = await append(log, aggregate, *[NOTE for _ in range(100)])

    async def broken(*rest: object, after: int = 0, **more: object) -> AsyncIterator[Record]:
        offsets.append(after)
        async for record in read(*rest, after=after, **more):  # type: ignore[arg-type]
            if len(offsets) == 1 and record.seq > records[40].seq:
                raise error
            yield record

    monkeypatch.setattr(log, "read", broken)
    with pytest.raises(type(error)):
        await counters.load(aggregate.id)
    assert counters.cached(aggregate.id) == 32
    assert await counters.load(aggregate.id) == 100
    assert offsets == [0, records[31].seq]


async def test_a_long_log_is_folded_in_slices(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_repository, "SLICE_RECORDS", 16)
    aggregate, slices = fresh(), list[int]()
    await append(log, aggregate, *[NOTE for _ in range(200)])
    turns = 0

    def fold(records: Iterable[Record], state: int) -> int:
        folded = list(records)
        slices.append(len(folded))
        return state + len(folded)

    async def others() -> None:
        nonlocal turns
        while True:
            before = len(slices)
            await asyncio.sleep(0)
            assert len(slices) - before <= 1
            turns += 1

    ticking = asyncio.ensure_future(others())
    assert await Repository(log, KIND, fold, 0).load(aggregate.id) == 200
    assert not ticking.done()
    ticking.cancel()
    assert slices == [16] * 12 + [8]
    assert turns >= len(slices)


async def test_big_events_make_small_slices(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_repository, "SLICE_BYTES", 1000)
    aggregate, slices = fresh(), list[int]()
    await append(log, aggregate, *[ThreadAnnotated(metadata={"a": "x" * 600}) for _ in range(6)])

    def fold(records: Iterable[Record], state: int) -> int:
        slices.append(len(list(records)))
        return state + slices[-1]

    assert await Repository(log, KIND, fold, 0).load(aggregate.id) == 6
    assert slices == [2, 2, 2]


# ── nothing is missed ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_one_process_was_acknowledged_all_others_see(any_log: EventLog, nats: Nats, prefix: str) -> None:
    """With others writing to other aggregates meanwhile."""
    aggregate, other, seq, done = fresh(), fresh(), 0, asyncio.Event()
    async with neighbour(nats, prefix) as writer:
        counters = counter(any_log)

        async def noise() -> None:
            last = 0
            while not done.is_set():
                last = (await append(writer, other, NOTE, expected=last))[0].seq

        noisy = asyncio.ensure_future(noise())
        for number in range(1, 101):
            [record] = await append(writer, aggregate, NOTE, expected=seq)
            assert await counters.load(aggregate.id) == number
            seq = record.seq
        done.set()
        await noisy


async def test_what_is_still_on_its_way_is_waited_for(single: Nats, bus: Bus, prefix: str) -> None:
    aggregate, writer = fresh(), EventLog(bus)
    async with proxy(single.nodes[0]) as line, bus_on(single, prefix, line.url) as far, log_on(far) as log:
        counters = counter(log)
        [record] = await append(writer, aggregate, NOTE)
        assert await counters.load(aggregate.id) == 1
        line.deafen()
        await append(writer, aggregate, NOTE, expected=record.seq)
        loading = asyncio.ensure_future(counters.load(aggregate.id))
        await line.said(b"PUB")
        line.restore()
        assert await loading == 2


async def test_after_a_lost_connection_nothing_is_taken_for_unchanged(
    single: Nats, bus: Bus, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate, writer = fresh(), EventLog(bus)
    async with proxy(single.nodes[0]) as line, bus_on(single, prefix, line.url) as far, log_on(far) as log:
        counters = counter(log)
        [record] = await append(writer, aggregate, NOTE)
        assert await counters.load(aggregate.id) == 1

        async def unhealed() -> None:
            raise Unavailable("not yet")

        monkeypatch.setattr(log, "_heal_all", unhealed)
        line.cut()
        await append(writer, aggregate, NOTE, expected=record.seq)

        async def reconnected() -> bool:
            return far.nc.is_connected and far.reconnects > 0

        await eventually(reconnected)
        assert await counters.load(aggregate.id) == 2


async def test_what_a_full_buffer_dropped_is_read(log: EventLog, bus: Bus, single: Nats, prefix: str) -> None:
    counters, aggregate = counter(log), fresh()
    async with neighbour(single, prefix) as writer:
        [first] = await append(writer, aggregate, NOTE)
        assert await counters.load(aggregate.id) == 1
        assert log._live is not None
        log._live._pending_bytes_limit = 1
        await append(writer, aggregate, NOTE, expected=first.seq)
        assert await counters.load(aggregate.id) == 2
    await log._heal_all()
    with requests(bus) as asked:
        assert await counters.load(aggregate.id) == 2
    assert asked == []


async def test_a_log_that_does_not_listen_is_read(bus: Bus) -> None:
    log, aggregate = EventLog(bus), fresh()
    counters = counter(log)
    [record] = await append(EventLog(bus), aggregate, NOTE)
    assert await counters.load(aggregate.id) == 1
    await append(EventLog(bus), aggregate, NOTE, expected=record.seq)
    assert await counters.load(aggregate.id) == 2


async def test_of_forgotten_aggregates_nothing_is_taken_for_known(
    log: EventLog, single: Nats, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_reader, "HEARD", 3)
    counters, aggregate = counter(log), fresh()
    async with neighbour(single, prefix) as writer:
        [first] = await append(writer, aggregate, NOTE)
        assert await counters.load(aggregate.id) == 1
        await append(writer, aggregate, NOTE, expected=first.seq)
        for _ in range(5):
            [last] = await append(writer, fresh(), NOTE)
        await heard(log, last.seq)
        assert len(log._last) == 3
        assert [record.seq async for record in log.read(aggregate, upto=first.seq)] == [first.seq]
        assert await counters.load(aggregate.id) == 2


# ── decisions ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_to_do_nothing_and_to_refuse_only_count_on_a_current_state(
    log: EventLog, single: Nats, prefix: str
) -> None:
    aggregate = fresh()
    async with neighbour(single, prefix) as writer:
        counters = counter(log)
        [record] = await append(writer, aggregate, NOTE)
        assert await counters.load(aggregate.id) == 1
        await append(writer, aggregate, NOTE, expected=record.seq)

        def decide(state: int) -> Sequence[Event]:
            return [NOTE] if state == 2 else []

        def refuse(state: int) -> Sequence[Event]:
            if state < 4:
                raise Refused("too early")
            return []

        state, appended = await counters.decide(aggregate.id, decide, actor="test")
        assert (state, len(appended)) == (3, 1)
        await append(writer, aggregate, NOTE, expected=appended[0].seq)
        assert await counters.decide(aggregate.id, refuse, actor="test") == (4, [])
        with pytest.raises(Refused):
            await counter(log).decide(fresh().id, refuse, actor="test")


async def test_deciders_at_once_all_come_first_once(log: EventLog) -> None:
    aggregate, counters = fresh(), counter(log)
    states = await asyncio.gather(
        *(counters.decide(aggregate.id, lambda _: [NOTE], actor="test") for _ in range(10)),
    )
    assert sorted(state for state, _ in states) == list(range(1, 11))


async def test_who_never_comes_first_gives_up(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_repository, "DECIDE_TRIES", 3)
    aggregate, counters = fresh(), counter(log)
    [record] = await append(log, aggregate, NOTE)
    seq = record.seq

    async def quicker(*rest: object, **more: object) -> list[Record]:
        nonlocal seq
        seq = (await append(log, aggregate, NOTE, expected=seq))[0].seq
        return await original(*rest, **more)  # type: ignore[arg-type]

    original = EventLog(log.bus).append
    monkeypatch.setattr(counters, "log", Quicker(log, quicker))
    with pytest.raises(Unavailable, match="too many writers"):
        await counters.decide(aggregate.id, lambda _: [NOTE], actor="test")


class Quicker:
    """A log to which somebody else always appends first."""

    def __init__(self, log: EventLog, quicker: object) -> None:
        self._log = log
        self.append = quicker

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)
