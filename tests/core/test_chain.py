"""The chain of hashes that every append continues."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from functools import reduce

import msgspec
import pytest

from core.events import Aggregate, StatePatched, ThreadCreated, ThreadErased, thread
from core.ids import uuid7
from core.log.chain import CHAIN, START, link
from core.log.store import EventLog
from core.replay.soundness import verify
from tests.support.nats import Nats, bus_on, log_on

CREATED = ThreadCreated(user="ada")


def note(text: str) -> StatePatched:
    return StatePatched(values={"note": text})


@pytest.fixture
async def logs(single: Nats) -> AsyncIterator[tuple[EventLog, EventLog]]:
    """Two processes on one log."""
    prefix = f"t{uuid.uuid4().hex[:10]}"
    async with (
        bus_on(single, prefix) as one,
        bus_on(single, prefix) as two,
        log_on(one) as first,
        log_on(two) as second,
    ):
        yield first, second


async def hashes(log: EventLog, aggregate: Aggregate) -> list[str | None]:
    return [record.chain async for record in log.read(aggregate)]


async def computed(log: EventLog, aggregate: Aggregate) -> list[str]:
    chain, result = START, []
    async for record in log.read(aggregate, bodies=False):
        chain = link(chain, record.raw)
        result.append(chain)
    return result


async def test_every_append_continues_it_whoever_appends(logs: tuple[EventLog, EventLog]) -> None:
    one, two = logs
    t = thread("t")
    [record] = await one.append(t, [CREATED], expected=0, actor="test")
    batch = await two.append(t, [note("a"), note("b")], expected=record.seq, actor="test")
    big = await one.append(t, [note("x" * 100_000)], expected=batch[-1].seq, actor="test")
    await two.append(t, [note("c")], expected=big[0].seq, actor="test")
    assert await hashes(one, t) == await computed(one, t)
    assert (await verify(one, "t")).problems == []


async def forged(log: EventLog, expected: int, chain: str | None) -> None:
    """Appends an event past the log's own care."""
    head = {"id": uuid7(), "type": "state.patched", "kind": "thread", "aggregate": "t", "actor": "x", "at": "2026"}
    headers = {"Nats-Msg-Id": head["id"], "Sika-Type": "state.patched"}
    headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
    if chain is not None:
        headers[CHAIN] = chain
    await log.bus.store(log.bus.names.log(thread("t")), msgspec.json.encode({**head, "values": {}}), headers)


async def test_a_changed_event_is_named(logs: tuple[EventLog, EventLog]) -> None:
    """The hash of another body: as if the stored one had been changed in place."""
    one, _ = logs
    [record] = await one.append(thread("t"), [CREATED], expected=0, actor="test")
    await forged(one, record.seq, link(START, b"another body"))
    verdict = await verify(one, "t")
    assert [problem for problem in verdict.problems if problem.startswith(f"{record.seq + 1}: does not fit the chain")]


async def test_a_hash_that_was_removed_breaks_the_chain_behind_it(logs: tuple[EventLog, EventLog]) -> None:
    one, _ = logs
    [record] = await one.append(thread("t"), [CREATED], expected=0, actor="test")
    await forged(one, record.seq, None)
    [before] = [r for r in [r async for r in one.read(thread("t"))] if r.seq == record.seq]
    assert (await verify(one, "t")).problems == []  # an older version may have appended it
    await forged(one, record.seq + 1, link(before.chain or "", b"what was there before"))
    problems = (await verify(one, "t")).problems
    assert [problem for problem in problems if problem.startswith(f"{record.seq + 2}: does not fit the chain")]


async def test_a_log_of_an_older_version_is_sound_and_gets_a_chain(logs: tuple[EventLog, EventLog]) -> None:
    one, two = logs
    await forged(one, 0, None)
    await two.append(thread("t"), [note("new")], expected=await two.tip(thread("t")), actor="test")
    [old, new] = await hashes(one, thread("t"))
    assert old is None
    assert new
    assert (await verify(one, "t")).problems == []


async def test_what_is_left_of_an_erased_log_is_sound(logs: tuple[EventLog, EventLog]) -> None:
    one, _ = logs
    t = thread("t")
    records = await one.append(t, [CREATED, note("a"), ThreadErased(by="ada")], expected=0, actor="test")
    assert await one.erase(t)
    [left] = [record async for record in one.read(t)]
    assert left.chain == reduce(link, [record.raw for record in records], START)
    await one.append(t, [note("b")], expected=left.seq, actor="test")
    assert (await verify(one, "t")).problems == []
