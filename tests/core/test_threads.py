"""Threads and the ways in: kept states, decisions under contention, runs asked for, cancelled, erased."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from core.bus.connection import Bus
from core.bus.queue import WorkQueue
from core.config.redaction import redactor
from core.errors import Invalid, NotFound, Refused, Unavailable
from core.events import (
    Event,
    RunCancelRequested,
    RunCompleted,
    RunRequested,
    RunStarted,
    StatePatched,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadPruned,
    thread,
)
from core.ids import uuid7
from core.log.store import EventLog
from core.nesting import FACT_LEVELS, MOST_LEVELS
from core.runs.intake import Intake
from core.thread import threads as core_threads
from core.thread.state import ThreadState
from core.thread.threads import Threads
from tests.support.nats import append, eventually, fresh, read
from tests.support.records import human

STARTED = RunStarted(attempt=1, worker="w", lease=1)


@pytest.fixture
def threads(log: EventLog) -> Threads:
    return Threads(log)


@pytest.fixture
def intake(threads: Threads, bus: Bus) -> Intake:
    return Intake(threads, WorkQueue(bus, 2))


@pytest.fixture
async def name(intake: Intake) -> str:
    name = fresh().id
    await intake.create_thread(name, user="ada")
    return name


CREATED, ERASED = ThreadCreated(user="ada"), ThreadErased(by="ada")
OWNERS: dict[str, tuple[list[Event], str | None]] = {
    "no events": ([], None),
    "a thread": ([CREATED, ThreadAnnotated(metadata={"n": 1})], "ada"),
    "deleted": ([CREATED, ThreadAnnotated(metadata={"n": 1}), ERASED], None),
    "deleted, and erased": ([ERASED], None),
    "its id used again": ([ERASED, CREATED], "ada"),
    "its beginning deleted": (
        [ThreadPruned(user="ada", metadata={}, created_at="2026-01-01T00:00:00+00:00", values={}), STARTED],
        "ada",
    ),
}


@pytest.mark.parametrize(("events", "owner"), OWNERS.values(), ids=OWNERS)
async def test_a_log_says_whose_it_is_without_a_fold(
    threads: Threads, log: EventLog, events: list[Event], owner: str | None
) -> None:
    name = fresh().id
    if events:
        await later(log, name, *events)
    assert await threads.owner(name) == owner == await threads.owner(name)
    assert threads.cached(name) is None
    state = await threads.load(name)
    assert owner == (state.user if state.exists else None)


async def later(log: EventLog, name: str, *events: Event, run: str | None = None) -> None:
    """Somebody else appends."""
    await log.append(thread(name), events, expected=await log.tip(thread(name)), actor="other", run=run)


async def types(log: EventLog, name: str) -> list[str]:
    return [r.type for r in await read(log, thread(name))]


async def wakeups(bus: Bus) -> int:
    return int((await bus.api(f"STREAM.INFO.{bus.names.stream('cmd')}"))["state"]["messages"])


async def woken(bus: Bus, count: int) -> None:
    """A wake-up is sent without waiting until it is stored."""

    async def there() -> bool:
        return await wakeups(bus) == count

    await eventually(there)


# ── kept states ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_kept_thread_is_as_new_as_asked_for(threads: Threads, log: EventLog) -> None:
    name = fresh().id
    assert (await threads.load(name)).seq == 0
    await append(log, thread(name), ThreadCreated(user="ada"))
    old = await threads.load(name)
    await later(log, name, ThreadAnnotated(metadata={"a": 1}))
    assert await threads.load(name, at_least=old.seq) is old
    new = await threads.load(name)
    assert (new.metadata, new.seq) == ({"a": 1}, await log.tip(thread(name)))
    assert await threads.load(name) is new
    assert old.metadata == {}


async def test_what_is_too_much_to_keep_is_read_again(
    threads: Threads, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [fresh().id for _ in range(8)]
    for name in names:
        await append(log, thread(name), *[StatePatched(values={"messages": [human(str(n))]}) for n in range(6)])
    size = (await threads.load(names[0])).size
    assert size == sum(len(record.raw) for record in await read(log, thread(names[0])))
    monkeypatch.setattr(core_threads, "KEPT_BYTES", int(size * 5.5))
    few = Threads(log)
    for name in names:
        await few.load(name)
    assert list(few._cached) == names[-5:]
    for name in names:
        assert len((await few.load(name)).messages) == 6


async def test_giants_evict_nobody_and_are_evicted_by_giants_only(
    threads: Threads, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, giants = [fresh().id for _ in range(3)], [fresh().id for _ in range(3)]
    for name in small:
        await append(log, thread(name), ThreadAnnotated(metadata={}))
    for name in giants:
        await append(log, thread(name), ThreadAnnotated(metadata={"a": "x" * 7_000}))
    monkeypatch.setattr(core_threads, "KEPT_BYTES", 8_000)
    few = Threads(log)
    for name in (*small, *giants[:2], *small):
        await few.load(name)
    assert set(few._cached) == {*small, *giants[:2]}
    await few.load(giants[2])
    assert set(few._cached) == {*small, *giants[1:]}


# ── what cannot be read ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_stored_event_that_does_not_decode_is_a_problem_of_its_thread_and_nothing_else(
    intake: Intake, log: EventLog, bus: Bus, name: str
) -> None:
    """As an older version of an extension left it there: the thread can be read, written to, run and erased."""
    tip = await log.tip(thread(name))
    head = {"id": uuid7(), "kind": "thread", "aggregate": name, "actor": "x", "at": "2026-11-22T00:00:00+00:00"}
    mistyped = msgspec.json.encode({**head, "type": "thread.annotated", "metadata": 17})
    headers = {"Nats-Expected-Last-Subject-Sequence": str(tip), "Sika-Type": "thread.annotated"}
    await bus.ask(bus.names.log(thread(name)), mistyped, headers)

    await intake.annotate(name, {"a": 1}, user="ada")
    state, _ = await intake.request_run(name, uuid7(), RunRequested())
    assert state.metadata["a"] == 1
    [problem] = (await Threads(log).load(name)).problems
    assert problem.seq == tip + 1
    assert "Expected `object`, got `int` - at `$.metadata`" in problem.text
    await intake.erase(name, by="ada")
    assert (await Threads(log).load(name)).erased


async def test_an_event_that_does_not_fit_its_own_schema_is_refused_before_it_is_stored(log: EventLog) -> None:
    aggregate = fresh()
    mistyped: Any = ThreadAnnotated(metadata=17)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match=r"ThreadAnnotated does not fit its own schema: .*got `int` - at `\$.metadata`"):
        await append(log, aggregate, mistyped)
    with pytest.raises(Invalid, match="ThreadAnnotated does not fit its own schema"):
        await append(log, aggregate, ThreadAnnotated(metadata={"a": object()}))
    assert await read(log, aggregate) == []


async def test_an_event_that_not_every_python_could_read_is_refused(log: EventLog) -> None:
    """The depth of bodies of clients is taken, also with a secret in it."""
    redactor.add("sk-deep-down-2718281828")
    aggregate, value = fresh(), cast(Any, "of sk-deep-down-2718281828")
    for _ in range(MOST_LEVELS):
        value = [value]
    await append(log, aggregate, ThreadAnnotated(metadata={"a": value}))
    [record] = await read(log, aggregate)
    assert b'["of ***"]' in record.raw
    for _ in range(FACT_LEVELS - MOST_LEVELS):
        value = [value]
    with pytest.raises(Invalid, match=f"more than {FACT_LEVELS} levels"):
        await append(log, aggregate, ThreadAnnotated(metadata={"a": value}))


# ── the log does not answer ─────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unavailable_log_is_not_waited_for_twice(
    threads: Threads, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    async def unavailable(*_: Any, **__: Any) -> Any:
        tries.append(1)
        raise Unavailable("the disk is full")

    monkeypatch.setattr(log, "_store", unavailable)
    with pytest.raises(Unavailable, match="the disk is full"):
        await threads.decide(fresh().id, lambda _: [ThreadCreated(user="ada")], actor="test")
    assert len(tries) == 1


async def test_existing(threads: Threads) -> None:
    with pytest.raises(NotFound):
        await threads.existing("nobody")


# ── deciding ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_writers_at_once_all_decide_on_what_is_there(log: EventLog) -> None:
    """A counter: every decision sees all before it. Each writer has a cache of its own, as each process has."""
    name = fresh().id
    await append(log, thread(name), ThreadCreated(user="ada", metadata={"n": 0}))

    def count(state: ThreadState) -> Sequence[Event]:
        return [ThreadAnnotated(metadata={"n": state.metadata["n"] + 1})]

    async def writer() -> None:
        threads = Threads(log)
        await threads.load(name)
        for _ in range(5):
            state, [record] = await threads.decide(name, count, actor="test")
            assert state.seq >= record.seq

    await asyncio.gather(*(writer() for _ in range(8)))
    assert (await Threads(log).load(name)).metadata == {"n": 40}


async def test_a_refusal_on_an_old_state_is_asked_again(threads: Threads, log: EventLog) -> None:
    name = fresh().id
    await append(log, thread(name), ThreadCreated(user="ada", metadata={"open": False}))
    await threads.load(name)
    await later(log, name, ThreadAnnotated(metadata={"open": True}))
    asked: list[bool] = []

    def decide(state: ThreadState) -> Sequence[Event]:
        asked.append(state.metadata["open"])
        if not asked[-1]:
            raise Refused("closed")
        return [ThreadAnnotated(metadata={"in": 1})]

    await threads.decide(name, decide, actor="test")
    assert asked == [False, True]
    await later(log, name, ThreadAnnotated(metadata={"open": False}))
    with pytest.raises(Refused):
        await threads.decide(name, decide, actor="test")


# ── the ways in ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_creating(intake: Intake, log: EventLog) -> None:
    name = fresh().id
    outcomes = await asyncio.gather(*(intake.create_thread(name, user="ada", metadata={"a": 1}) for _ in range(5)))
    assert sorted(new for _, new in outcomes) == [False] * 4 + [True]
    assert all(state.metadata == {"a": 1} for state, _ in outcomes)
    assert await types(log, name) == ["thread.created"]
    for bad in ("", "a.b", "a b", "*", "x" * 129, "ü"):
        with pytest.raises(Invalid, match="thread_id"):
            await intake.create_thread(bad, user="ada")


async def test_annotating(intake: Intake, name: str) -> None:
    assert (await intake.annotate(name, {"k": 1, "l": {"m": None}})).metadata == {"k": 1, "l": {"m": None}}
    assert (await intake.annotate(name, {"k": None, "unknown": None})).metadata == {"l": {"m": None}}


async def test_asking_for_a_run(intake: Intake, bus: Bus, name: str) -> None:
    state, record = await intake.request_run(name, "r1", RunRequested(), actor="slack")
    assert (state.runs["r1"].status, record.run, record.head.actor) == ("pending", "r1", "slack")
    await woken(bus, 1)
    with pytest.raises(Refused, match="already has an active run"):
        await intake.request_run(name, "r2", RunRequested())
    await intake.request_run(name, "r3", RunRequested(multitask="enqueue"))
    state, _ = await intake.request_run(name, "r4", RunRequested(multitask="interrupt"))
    assert [run.cancel for run in state.runs.values()] == ["interrupt", "interrupt", None]
    for thread_id, run, request, error in [
        ("nobody", "r5", RunRequested(), NotFound),
        (name, "r 5", RunRequested(), Invalid),
        (name, "r5", RunRequested(base=77_777, multitask="enqueue"), Invalid),
    ]:
        with pytest.raises(error):
            await intake.request_run(thread_id, run, request)


async def test_of_runs_asked_for_at_once_one_gets_in(intake: Intake, log: EventLog, bus: Bus, name: str) -> None:
    others = [Intake(Threads(log), WorkQueue(bus, 2)) for _ in range(6)]
    asked = [other.request_run(name, f"r{n}", RunRequested()) for n, other in enumerate(others)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Refused"] * 5 + ["tuple"]


async def test_a_run_id_is_used_once(intake: Intake, name: str) -> None:
    await intake.request_run(name, "r1", RunRequested(multitask="enqueue"))
    with pytest.raises((Refused, Invalid)):
        await intake.request_run(name, "r1", RunRequested(multitask="enqueue"))


async def test_cancelling(intake: Intake, log: EventLog, bus: Bus, name: str) -> None:
    await intake.request_run(name, "r1", RunRequested())
    assert (await intake.cancel(name, "r1")).runs["r1"].status == "interrupted"  # nobody had begun it
    await intake.cancel(name, "r1", "rollback")  # again: nothing new
    assert await types(log, name) == ["thread.created", "run.requested", "run.cancelled"]
    await later(log, name, RunRequested(), STARTED, RunCompleted(), run="r2")
    with pytest.raises(Refused, match=r"not cancellable \(status: success\)"):
        await intake.cancel(name, "r2")
    with pytest.raises(NotFound):
        await intake.cancel(name, "r9")
    with pytest.raises(Invalid):
        await intake.cancel(name, "r1", "explode")
    await later(log, name, RunRequested(), STARTED, run="r3")
    before = await wakeups(bus)
    await intake.cancel(name, "r3")
    assert await wakeups(bus) == before  # whoever works on it hears it from the log
    assert isinstance((await read(log, thread(name)))[-1].event, RunCancelRequested)


async def test_a_decision_holds_when_nobody_can_be_woken(intake: Intake, log: EventLog, bus: Bus, name: str) -> None:
    await bus.api(f"STREAM.DELETE.{bus.names.stream('cmd')}")
    await intake.request_run(name, "r1", RunRequested())
    assert await types(log, name) == ["thread.created", "run.requested"]


async def test_erasing(intake: Intake, log: EventLog, name: str) -> None:
    await later(log, name, StatePatched(values={"messages": [human("h1")]}))
    await intake.erase(name, by="ada")
    assert (await Threads(log).load(name)).erased, "for everybody at once"
    await intake.threads.erase(name)
    assert await types(log, name) == ["thread.erased"]
    await intake.erase(name, by="ada")
    await intake.erase("nobody", by="ada")
    assert await types(log, name) == ["thread.erased"]
    refused: list[tuple[Any, type[Exception]]] = [
        (intake.create_thread(name, user="ada"), Refused),
        (intake.annotate(name, {}), NotFound),
        (intake.request_run(name, "r1", RunRequested()), NotFound),
    ]
    for asked, error in refused:
        with pytest.raises(error):
            await asked
    assert (await Threads(log).load(name)).erased
