"""Actors at work in a real process: woken by the log, by timers, after crashes; failing, retried, buried."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Never, assert_type

import anyio
import msgspec
import pytest

from core.actor import Actor, Context, Progress, Retries
from core.bus import rpc as calls
from core.bus.connection import Bus
from core.bus.endpoint import Endpoint
from core.bus.errors import BusUnavailable
from core.bus.pull import Room
from core.bus.queue import Hint, Wakeup, WorkQueue
from core.errors import Invalid, OwnershipLost, SikaError, Unavailable
from core.events import (
    Aggregate,
    Event,
    ModelCompleted,
    ModelFailed,
    RunRequested,
    RunStarted,
    RunSuspended,
    SubagentStarted,
    ThreadCreated,
    ToolCompleted,
    encode,
    thread,
    written,
)
from core.ids import now, uuid7
from core.lifecycle import RunEnded
from core.log.reader import _labels
from core.log.store import EventLog
from core.runs import run as run_module
from core.runs.owned import OwnedRun
from core.runs.run import Prepared, RunActor
from core.runtime import dispatch, system
from core.runtime.dispatch import Dispatcher
from core.runtime.ordering import queue_of
from core.runtime.system import System
from core.runtime.vitals import overview
from core.thread.state import ThreadState
from tests.support.nats import Nats, append, eventually, fresh, own, read, running_tasks
from tests.support.records import ai, call, human


class PebbleThrown(Event, frozen=True):
    """A test's own event."""

    n: int = 0


class StoneThrown(Event, frozen=True):
    """A test's own event."""


class WaterRippled(Event, frozen=True):
    """The answer to both."""

    n: int = 0


class Pond(Actor[PebbleThrown | StoneThrown]):
    """Answers once; what it does before and after can be set."""

    name = "pond"

    def __init__(self) -> None:
        self.handled: list[Event] = []
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.some = asyncio.Queue[Event]()

    async def handle(self, event: PebbleThrown | StoneThrown, ctx: Context) -> None:
        self.handled.append(event)
        self.some.put_nowait(event)
        self.before()
        match event:
            case PebbleThrown(n=n):
                await ctx.append(WaterRippled(n=n))
            case StoneThrown():
                assert_type(event, StoneThrown)
                await ctx.append(WaterRippled(), WaterRippled())
        self.after()


class Worker(RunActor):
    """Does runs that do nothing, unless told otherwise."""

    name = "lead"

    def __init__(self) -> None:
        self.performed: list[str] = []
        self.fault: Exception | None = None
        self.started = anyio.Event()
        self.gate: anyio.Event | None = None

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        self.performed.append(run.id)
        self.started.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault


@asynccontextmanager
async def process(endpoint: Endpoint, home: Path, *actors: Actor[Any], alone: bool = True) -> AsyncIterator[System]:
    """A process as the composition root makes it, without channels."""
    async with (
        system.start(endpoint, home / "views.db", lease_seconds=2, slots=4) as running,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(lambda task_status: running.serve(actors, alone=alone, task_status=task_status))
        yield running
        tasks.cancel_scope.cancel()


@pytest.fixture
def endpoint(single: Nats, prefix: str) -> Endpoint:
    return single.endpoint(prefix)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "PAUSES", (0.02, 0.02, 0.02, 0.02))
    monkeypatch.setattr(Actor, "retries", Retries(pauses=(0.02,)))
    monkeypatch.setattr(dispatch, "GATHER_SECONDS", 0.05)


async def answers(running: System, aggregate: Aggregate, count: int) -> list[WaterRippled]:
    async def enough() -> list[WaterRippled]:
        found = [r.event for r in await read(running.log, aggregate) if isinstance(r.event, WaterRippled)]
        return found if len(found) >= count else []

    return await eventually(enough)


async def queue_is_empty(running: System) -> None:
    async def empty() -> bool:
        info = await running.bus.api(f"STREAM.INFO.{running.bus.names.stream('cmd')}")
        return int(info["state"]["messages"]) == 0

    await eventually(empty)


async def everything_dispatched(dispatcher: Dispatcher, log: EventLog) -> None:
    """Every event of the log has been looked at."""

    async def settled() -> bool:
        return dispatcher.position == await log.last()

    await eventually(settled)


async def letters(running: System) -> list[Any]:
    found = await running.bus.nc.jetstream().stream_info(running.bus.names.stream("dlq"))
    stream = running.bus.names.stream("dlq")
    js = running.bus.nc.jetstream()
    return [msgspec.json.decode((await js.get_msg(stream, n)).data or b"") for n in range(1, found.state.messages + 1)]


# ── subscriptions ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_type_argument_is_the_subscription() -> None:
    class One(Actor[PebbleThrown]):
        pass

    class Below(One):
        pass

    class Bare(Actor[Any]):
        name = "other"

    assert (One.subscription, One.name) == ((PebbleThrown,), "test_dispatch")
    assert Below.subscription == (PebbleThrown,)
    assert (Bare.subscription, Bare.name) == ((), "other")
    assert Pond.subscription == (PebbleThrown, StoneThrown)
    assert (Worker.subscription, Worker.name) == ((RunRequested,), "lead")


def test_a_subscription_to_nothing_is_refused() -> None:
    async def handle(self: object, event: object, ctx: object) -> None: ...

    for base in (Actor[int], Actor[PebbleThrown | int]):
        with pytest.raises(Invalid, match=r"^actor Deaf: subscribes to .*int.*, which is not an event type"):
            types.new_class("Deaf", (base,))
    for bare in (Actor, Actor[Never]):
        with pytest.raises(Invalid, match=r"^actor Deaf: handles events but subscribes to none"):
            types.new_class("Deaf", (bare,), exec_body=lambda body: body.update(handle=handle))


def test_types_of_actors() -> None:
    """Checked by mypy: who handles more can stand in for who handles less, not the other way round."""

    class One(Actor[PebbleThrown]):
        pass

    less: Actor[PebbleThrown] = Pond()
    more: Actor[PebbleThrown | StoneThrown] = One()  # type: ignore[assignment]
    assert (less.name, more.name) == ("pond", "test_dispatch")


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_event_without_a_wakeup_wakes_its_readers(endpoint: Endpoint, tmp_path: Path) -> None:
    pond = Pond()
    async with process(endpoint, tmp_path, pond) as running:
        aggregate = fresh("pond")
        [pebble] = await append(running.log, aggregate, PebbleThrown(n=7))
        assert await answers(running, aggregate, 1) == [WaterRippled(n=7)]
        [_, answer] = await read(running.log, aggregate)
        assert (answer.head.actor, answer.head.cause) == ("pond", pebble.id)
        await append(running.log, aggregate, StoneThrown(), expected=answer.seq)
        await answers(running, aggregate, 3)
        await queue_is_empty(running)
    assert pond.handled == [PebbleThrown(n=7), StoneThrown()]


async def test_a_new_actor_begins_with_what_is_new_and_misses_nothing_from_then_on(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    old, missed, new = fresh("pond"), fresh("pond"), fresh("pond")
    async with process(endpoint, tmp_path) as running:
        await append(running.log, old, PebbleThrown(n=1))
    async with process(endpoint, tmp_path, Pond()):
        pass
    async with process(endpoint, tmp_path) as running:  # nobody of that name is there
        await append(running.log, missed, PebbleThrown(n=2))
    async with process(endpoint, tmp_path, Pond()) as running:
        await append(running.log, new, PebbleThrown(n=3))
        assert await answers(running, missed, 1) == [WaterRippled(n=2)]
        assert await answers(running, new, 1) == [WaterRippled(n=3)]
        assert len(await read(running.log, old)) == 1


async def test_nobody_is_woken_for_what_is_ignored_at_present(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pond = Pond()
    monkeypatch.setattr(pond, "ignored", lambda: (PebbleThrown,))
    async with process(endpoint, tmp_path, pond) as running:
        await append(running.log, fresh("pond"), PebbleThrown(n=1))
        await append(running.log, fresh("pond"), StoneThrown())
        assert await pond.some.get() == StoneThrown()
        monkeypatch.undo()
        await append(running.log, fresh("pond"), PebbleThrown(n=2))
        assert await pond.some.get() == PebbleThrown(n=2)
        await queue_is_empty(running)
    assert pond.handled == [StoneThrown(), PebbleThrown(n=2)]


async def test_runs_from_before_the_first_worker_are_done(endpoint: Endpoint, tmp_path: Path) -> None:
    """Also if whoever asked for them died before sending the wake-up."""
    name, run = fresh().id, fresh().id
    async with process(endpoint, tmp_path) as running:
        await running.intake.create_thread(name, user="ada")
        await running.threads.decide(name, lambda _: [RunRequested()], actor="http", run=run)
    worker = Worker()
    async with process(endpoint, tmp_path, worker) as running:
        await ended(running, name, run)
    assert worker.performed == [run]


async def test_many_events_on_many_aggregates(endpoint: Endpoint, tmp_path: Path) -> None:
    pond = Pond()
    async with process(endpoint, tmp_path, pond) as running:
        aggregates = [fresh("pond") for _ in range(30)]
        for aggregate in aggregates:
            await append(running.log, aggregate, PebbleThrown(n=1), PebbleThrown(n=2))
        for aggregate in aggregates:
            found = await answers(running, aggregate, 2)
            assert sorted(a.n for a in found) == [1, 2]
        await queue_is_empty(running)
    assert len(pond.handled) == 60


async def test_two_actors_on_one_event_both_answer(endpoint: Endpoint, tmp_path: Path) -> None:
    """They race for the aggregate; the guard makes one of them read again, and neither answer is lost or doubled."""

    class Echo(Pond):
        name = "echo"

    async with process(endpoint, tmp_path, Pond(), Echo()) as running:
        for _ in range(5):
            aggregate = fresh("pond")
            await append(running.log, aggregate, PebbleThrown(n=1))
            await answers(running, aggregate, 2)
            await queue_is_empty(running)
            records = await read(running.log, aggregate)
            assert sorted(r.head.actor for r in records) == ["echo", "pond", "test"]


async def test_processes_with_different_actors(endpoint: Endpoint, bus: Bus, log: EventLog) -> None:
    """`sika serve --actors a` here, `--actors b` there: every event must wake the readers of both."""

    class Shore(Actor[PebbleThrown]):
        name = "shore"

    queue = WorkQueue(bus, 2)
    apart: list[list[Actor[Any]]] = [[Pond()], [Shore()], [Pond(), Shore()]]
    dispatchers = [Dispatcher(log, queue, actors) for actors in apart]
    for dispatcher in dispatchers:
        await dispatcher.ensure()
    async with running_tasks(*(dispatcher.run for dispatcher in dispatchers)):
        for n in range(10):
            await append(log, fresh("pond"), PebbleThrown(n=n))
        for dispatcher in dispatchers:
            await everything_dispatched(dispatcher, log)
    info = await bus.api(f"STREAM.INFO.{bus.names.stream('cmd')}")
    assert info["state"]["messages"] == 20


async def test_a_wakeup_is_not_sent_if_the_proof_is_there(bus: Bus, log: EventLog) -> None:
    """A run that was already started needs no wake-up; one that was not does."""
    queue, worker = WorkQueue(bus, 2), Worker()
    started, waiting = fresh(), fresh()
    for aggregate in (started, waiting):
        [first] = await append(log, aggregate, ThreadCreated(user="ada"))
        await log.append(aggregate, [RunRequested()], expected=first.seq, actor="http", run="r")
    [last] = [r async for r in log.read(started, after=await log.tip(started) - 1)]
    event = msgspec.json.decode(b'{"type":"run.started","attempt":1,"worker":"w","lease":1}', type=worker.proof)
    await log.append(started, [event], expected=last.seq, actor="lead", run="r")
    dispatcher = Dispatcher(log, queue, [worker])
    await dispatcher.ensure()
    async with running_tasks(dispatcher.run):
        await everything_dispatched(dispatcher, log)
    info = await bus.api(f"STREAM.INFO.{bus.names.stream('cmd')}", {"subjects_filter": ">"})
    assert list(info["state"]["subjects"]) == [bus.names.cmd("lead", waiting)]


class Picky(Pond):
    """Selects pebbles by two labels, and all stones."""

    name = "pond"
    only = ("flat", "webhook", StoneThrown)


async def labelled(log: EventLog, n: int, *labels: str) -> None:
    await log.append(fresh("pond"), [PebbleThrown(n=n)], expected=0, actor="test", labels=labels)


async def test_an_actor_selects_events_by_labels_and_types(endpoint: Endpoint, tmp_path: Path) -> None:
    """It also hears of those that came while nobody was there."""
    picky = Picky()
    async with process(endpoint, tmp_path, picky) as running:
        await labelled(running.log, 0)
        await labelled(running.log, 1, "flatter", "pond")
        await labelled(running.log, 2, "wet", "flat")
        await append(running.log, fresh("pond"), StoneThrown())
        assert {await picky.some.get(), await picky.some.get()} == {PebbleThrown(n=2), StoneThrown()}
        await queue_is_empty(running)
    async with process(endpoint, tmp_path) as running:
        await labelled(running.log, 9, "flat")
    async with process(endpoint, tmp_path, picky) as running:
        while (await picky.some.get()) != PebbleThrown(n=9):
            pass
    assert {PebbleThrown(), PebbleThrown(n=1)}.isdisjoint(picky.handled)


async def test_events_of_older_logs_name_actors_instead_of_labels(endpoint: Endpoint, tmp_path: Path) -> None:
    picky = Picky()
    async with process(endpoint, tmp_path, picky) as running:
        for n, audience in enumerate(("janitor", "workspace,webhooks", "pond")):
            target, event = fresh("pond"), PebbleThrown(n=n)
            head = written(event, id=uuid7(), kind="pond", aggregate_id=target.id, actor="lead", at=now())
            headers = {"Nats-Msg-Id": head.id, "Sika-Type": "pebble.thrown", "Sika-Audience": audience}
            await running.bus.ask(running.bus.names.log(target), encode(event, head), headers)
            [record] = await read(running.log, target)
            stored = await running.log._from_leader({"seq": record.seq})
            assert stored is not None
            expected = [{"temporary"}, {"used_tools", "webhook"}, frozenset()][n]
            assert record.labels == _labels(stored.header) == expected
        await append(running.log, fresh("pond"), StoneThrown())
        assert {await picky.some.get(), await picky.some.get()} == {PebbleThrown(n=1), StoneThrown()}
        await queue_is_empty(running)
    assert len(picky.handled) == 2


class Artifacts(Actor[RunEnded]):
    """A plug-in: hears of runs that called tools, or have a webhook."""

    only: ClassVar = {"used_tools", "webhook"}

    def __init__(self) -> None:
        self.runs: set[str | None] = set()

    async def handle(self, event: RunEnded, ctx: Context) -> None:
        self.runs.add(ctx.record.run)


class ToolUser(Worker):
    """Calls a tool in the runs that say so."""

    name = "lead"

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        if "tool" in run.request.metadata:
            await run.tool_requested("c", "bash", "pure", {})


async def test_a_plugin_selects_ends_by_what_is_true_of_the_run(endpoint: Endpoint, tmp_path: Path) -> None:
    """Also of a run that was cancelled before it started."""
    artifacts, name = Artifacts(), fresh().id
    async with process(endpoint, tmp_path, artifacts, ToolUser()) as running:
        await running.intake.create_thread(name, user="ada")
        later = RunRequested(webhook="https://example.org", not_before="2999-01-01T00:00:00+00:00", multitask="enqueue")
        await running.intake.request_run(name, "cancelled", later)
        await running.intake.cancel(name, "cancelled")
        for run, metadata in (("plain", {}), ("tools", {"tool": True})):
            await running.intake.request_run(name, run, RunRequested(metadata=metadata, multitask="enqueue"))
            await ended(running, name, run)

        async def heard() -> bool:
            return len(artifacts.runs) == 2

        await eventually(heard)
        await queue_is_empty(running)
    assert artifacts.runs == {"cancelled", "tools"}


@pytest.mark.parametrize("only", ["webhook", (StoneThrown, ThreadCreated)], ids=["a text", "another event"])
def test_what_an_actor_cannot_select(only: Any) -> None:
    with pytest.raises(Invalid, match="Odd: "):
        types.new_class("Odd", (Pond,), exec_body=lambda body: body.update(only=only))


# ── crashes and failures ────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_answered_before_a_crash_is_not_handled_again(endpoint: Endpoint, tmp_path: Path) -> None:
    class Crash(Exception):
        pass

    def crash() -> None:
        raise Crash

    pond = Pond()
    pond.after = crash
    async with process(endpoint, tmp_path, pond) as running:
        aggregate = fresh("pond")
        await append(running.log, aggregate, PebbleThrown())
        await answers(running, aggregate, 1)
        await queue_is_empty(running)
        assert len(await read(running.log, aggregate)) == 2
        assert await letters(running) == []
    assert len(pond.handled) == 1


async def test_a_handler_cut_off_by_the_end_of_its_process_is_run_by_the_next(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    class Stuck(Pond):
        name = "pond"

        async def handle(self, event: PebbleThrown | StoneThrown, ctx: Context) -> None:
            self.some.put_nowait(event)
            await anyio.sleep_forever()

    stuck, pond, aggregate = Stuck(), Pond(), fresh("pond")
    async with process(endpoint, tmp_path, stuck) as running:
        await append(running.log, aggregate, PebbleThrown())
        await stuck.some.get()
    async with process(endpoint, tmp_path, pond, alone=False) as running:
        await answers(running, aggregate, 1)
        await queue_is_empty(running)
    assert len(pond.handled) == 1


async def test_a_handler_that_fails_once_is_run_again(endpoint: Endpoint, tmp_path: Path) -> None:
    pond = Pond()

    def once() -> None:
        pond.before = lambda: None
        raise Invalid("not yet")

    pond.before = once
    async with process(endpoint, tmp_path, pond) as running:
        aggregate = fresh("pond")
        await append(running.log, aggregate, PebbleThrown())
        await answers(running, aggregate, 1)
        assert len(pond.handled) == 2
        assert await letters(running) == []


async def test_a_handler_that_always_fails_ends_in_the_dead_letters(endpoint: Endpoint, tmp_path: Path) -> None:
    pond = Pond()

    def never() -> None:
        raise ValueError("no way")

    pond.before = never
    async with process(endpoint, tmp_path, pond) as running:
        aggregate = fresh("pond")
        [pebble] = await append(running.log, aggregate, PebbleThrown())

        async def buried() -> list[Any]:
            return await letters(running)

        [letter] = await eventually(buried)
        await queue_is_empty(running)
        assert (letter["actor"], letter["aggregate"], letter["reason"]) == (
            "pond",
            str(aggregate),
            "ValueError: no way",
        )
        assert letter["hint"] == {"seq": pebble.seq, "type": "pebble.thrown", "id": pebble.id}
    assert (
        len(pond.handled) >= Retries().attempts
    )  # a slow machine may deliver a wake-up once more before it is given back


@pytest.mark.parametrize(
    ("retries", "error", "attempts"),
    [
        (Retries(attempts=2, pauses=(0.02,)), KeyError("way"), 2),
        (Retries(attempts=7, pauses=(0.02, 0.0)), KeyError("way"), 7),
        (Retries(pauses=(0.02,), final=(LookupError,)), KeyError("way"), 1),
        (Retries(pauses=(0.02,), final=(LookupError,)), ExceptionGroup("both", [KeyError("way"), IndexError()]), 1),
        (Retries(attempts=2, pauses=(0.02,), final=(LookupError,)), ValueError("way"), 2),
        (Retries(attempts=3, pauses=(0.02,), final=(KeyError,)), ExceptionGroup("", [KeyError(), ValueError()]), 3),
    ],
    ids=["few", "many", "final", "all of a group", "another error", "not all of a group"],
)
async def test_a_handler_states_its_retries(
    endpoint: Endpoint, tmp_path: Path, retries: Retries, error: Exception, attempts: int
) -> None:
    class Stubborn(Pond):
        name = "pond"

    Stubborn.retries = retries
    pond = Stubborn()

    def fail() -> None:
        raise error

    pond.before = fail
    async with process(endpoint, tmp_path, pond) as running:
        await append(running.log, fresh("pond"), PebbleThrown())
        [letter] = await eventually(lambda: letters(running))
        await queue_is_empty(running)
    assert letter["actor"] == "pond"
    assert attempts <= len(pond.handled) <= attempts + 1  # as above: a slow machine may deliver it once more


def test_pauses_grow_up_to_the_last_one() -> None:
    assert [Retries(pauses=(1, 5, 60)).pause(failures) for failures in range(1, 6)] == [1, 5, 60, 60, 60]


@pytest.mark.parametrize(
    ("retries", "problem"),
    [
        (Retries(attempts=0), "retries: attempts: at least 1"),
        (Retries(pauses=()), "retries: pauses: seconds"),
        (Retries(pauses=(1.0, -1.0)), "retries: pauses: seconds"),
        (Retries(final=(SikaError,)), "retries: final: Unavailable is no failure"),
    ],
)
def test_what_is_no_rule_is_refused_where_it_is_declared(retries: Retries, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        type("Odd", (Pond,), {"retries": retries})


@pytest.mark.parametrize("text", ["x" * 2_000_000, "\udcff.txt: no such file"], ids=["huge", "no text"])
async def test_so_does_one_whose_reason_fits_no_message(endpoint: Endpoint, tmp_path: Path, text: str) -> None:
    pond = Pond()

    def never() -> None:
        raise ValueError(text)

    pond.before = never
    async with process(endpoint, tmp_path, pond) as running:
        await append(running.log, fresh("pond"), PebbleThrown())
        [letter] = await eventually(lambda: letters(running))
        assert letter["reason"].startswith("ValueError: ")
        await queue_is_empty(running)
        [shown] = (await overview(running.bus, 0)).processes
        assert shown.actors[0].last_error is not None


async def test_deliveries_are_not_failures(endpoint: Endpoint, tmp_path: Path) -> None:
    """A wake-up that was delivered often, over restarts and drains, has all its tries when it first fails."""
    pond, aggregate, gate = Pond(), fresh("pond"), anyio.Event()

    class Draining(Pond):
        name = "pond"

        async def handle(self, event: PebbleThrown | StoneThrown, ctx: Context) -> None:
            self.some.put_nowait(event)
            await gate.wait()

    for number in range(Retries().attempts):
        draining = Draining()
        async with process(endpoint, tmp_path, draining, alone=False) as running:
            if number == 0:
                await append(running.log, aggregate, PebbleThrown())
            await draining.some.get()

    def once() -> None:
        pond.before = lambda: None
        raise ValueError("the first real error")

    pond.before = once
    async with process(endpoint, tmp_path, pond, alone=False) as running:
        await answers(running, aggregate, 1)
        assert await letters(running) == []
    assert len(pond.handled) == 2


async def test_a_handler_that_hangs_has_failed(endpoint: Endpoint, tmp_path: Path) -> None:
    class Stuck(Pond):
        name = "pond"
        deadline_seconds = 0.05

        async def handle(self, event: PebbleThrown | StoneThrown, ctx: Context) -> None:
            self.handled.append(event)
            await anyio.sleep_forever()

    stuck = Stuck()
    async with process(endpoint, tmp_path, stuck) as running:
        await append(running.log, fresh("pond"), PebbleThrown())

        async def buried() -> list[Any]:
            return await letters(running)

        [letter] = await eventually(buried)
    assert letter["reason"] == "not done within 0.05 s"


async def test_what_a_handler_waits_for_is_no_failure_of_its(endpoint: Endpoint, tmp_path: Path) -> None:
    pond, left = Pond(), Retries().attempts + 2

    def unavailable() -> None:
        nonlocal left
        left -= 1
        if left:
            raise Unavailable("views are being made")

    pond.before = unavailable
    async with process(endpoint, tmp_path, pond) as running:
        aggregate = fresh("pond")
        await append(running.log, aggregate, PebbleThrown())
        await answers(running, aggregate, 1)
        assert await letters(running) == []


async def test_an_answer_costs_what_came_after_its_cause(endpoint: Endpoint, tmp_path: Path) -> None:
    """Not what the aggregate holds: an answer on a long thread is as cheap as on a new one."""

    class Counted(Pond):
        name = "pond"
        reads = 0

        async def handle(self, event: PebbleThrown | StoneThrown, ctx: Context) -> None:
            log: EventLog = ctx._system.log  # type: ignore[attr-defined]
            page, handler = log._page, asyncio.current_task()

            async def counting(subject: str, start: int, limit: int | None = None) -> Any:
                records, more = await page(subject, start, limit)
                if asyncio.current_task() is handler:
                    self.reads += len(records)
                return records, more

            log._page = counting  # type: ignore[method-assign]
            try:
                await ctx.append(WaterRippled())
            finally:
                log._page = page  # type: ignore[method-assign]

    pond = Counted()
    async with process(endpoint, tmp_path, pond) as running:
        aggregate = fresh("pond")
        past = await append(running.log, aggregate, *[WaterRippled(n=n) for n in range(50)])
        await append(running.log, aggregate, PebbleThrown(), expected=past[-1].seq)
        await answers(running, aggregate, 51)
    assert pond.reads == 0


async def test_junk_in_the_places_and_the_timers_stops_nobody(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        names = running.bus.names
        await running.bus.ask(names.place("pond"), b"\xff not a number")
        await running.bus.ask(f"{names.prefix}.wake.pond", b"junk")
        await running.bus.ask(f"{names.prefix}.wake.pond.x", b"junk")
    pond = Pond()
    async with process(endpoint, tmp_path, pond) as running:
        await append(running.log, aggregate := fresh("pond"), PebbleThrown())
        await answers(running, aggregate, 1)

        async def buried() -> list[Any]:
            found = await letters(running)
            return found if len(found) == 2 else []

        assert all("not a timer" in letter["reason"] for letter in await eventually(buried))

        async def timers_empty() -> bool:
            info = await running.bus.api(f"STREAM.INFO.{names.stream('timer')}")
            return int(info["state"]["messages"]) == 0

        await eventually(timers_empty)


# ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Oracle(Actor[Never]):
    """Is frozen before its first answers: it takes the question, and nothing is heard of it. With `error`, it answers
    those by an error.
    """

    name = "oracle"

    def __init__(self, silent: int, error: SikaError | None = None) -> None:
        self.silent, self.error = silent, error
        self.asked = 0

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Any:
        self.asked += 1
        if self.asked > self.silent:
            return "at last"
        if self.error is not None:
            raise self.error
        await anyio.sleep_forever()


async def test_a_question_is_asked_again_after_silence_whatever_its_age(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silence is longer than the lease: counted from the question's beginning, there would be no second try."""
    monkeypatch.setattr(calls, "HEARTBEAT_SECONDS", 3600)
    monkeypatch.setattr(calls, "SILENCE_SECONDS", 5.0)
    oracle = Oracle(silent=1)
    async with process(endpoint, tmp_path, oracle) as running:
        assert await running.call("oracle", {}) == "at last"
    assert oracle.asked == 2


async def test_a_question_is_asked_again_when_its_answerer_did_not_reach_the_log(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """A nats-server that died while a tool was at work is no outcome of the tool."""
    oracle = Oracle(2, BusUnavailable("the log does not answer"))
    async with process(endpoint, tmp_path, oracle) as running:
        assert await running.call("oracle", {}) == "at last"
    assert oracle.asked == 3


@pytest.mark.parametrize("error", [None, BusUnavailable("the log does not answer")])
async def test_a_question_of_which_nothing_may_be_done_twice_is_asked_once(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: SikaError | None
) -> None:
    monkeypatch.setattr(calls, "HEARTBEAT_SECONDS", 3600)
    monkeypatch.setattr(calls, "SILENCE_SECONDS", 0.5)
    oracle = Oracle(1, error)
    async with process(endpoint, tmp_path, oracle) as running:
        with pytest.raises(calls.Silent):
            await running.call("oracle", {"once": True})
    assert oracle.asked == 1


async def test_an_answerer_that_never_reaches_the_log_is_given_up(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "PATIENCE_SECONDS", 0.1)
    async with process(endpoint, tmp_path, Oracle(100, BusUnavailable("no leader"))) as running:
        with pytest.raises(calls.Disrupted, match="no leader"):
            await running.call("oracle", {})


async def test_a_question_that_somebody_took_and_nobody_answers_is_told_from_one_nobody_took(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "HEARTBEAT_SECONDS", 3600)
    monkeypatch.setattr(calls, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(system, "PATIENCE_SECONDS", 0.1)
    async with process(endpoint, tmp_path, Oracle(silent=100)) as running:
        with pytest.raises(calls.Silent):
            await running.call("oracle", {})
        monkeypatch.setattr(running.queue, "lease_seconds", 0.1)
        with pytest.raises(Unavailable, match="no sphinx actor is running") as nobody:
            await running.call("sphinx", {})
    assert not isinstance(nobody.value, calls.Silent)


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def asked(running: System, name: str, run: str = "r") -> None:
    await running.intake.create_thread(name, user="ada")
    await running.intake.request_run(name, run, RunRequested())


async def test_a_run_that_cannot_be_prepared_fails(endpoint: Endpoint, tmp_path: Path) -> None:
    class Unprepared(Worker):
        name = "lead"

        async def prepare(self, run: OwnedRun) -> Prepared[Any]:
            raise TypeError("'NoneType' object is not iterable")

    class Misfit(Worker):
        name = "lead"

        async def prepare(self, run: OwnedRun) -> Prepared[Any]:
            return Prepared(None, {"model": 17})

    for worker, text in ((Unprepared(), "'NoneType' object is not iterable"), (Misfit(), "got `int` - at `$.model`")):
        name = fresh().id
        async with process(endpoint, tmp_path, worker) as running:
            await asked(running, name)
            run = (await ended(running, name, "r")).runs["r"]
            await queue_is_empty(running)
            assert await letters(running) == []
        assert (run.status, run.attempt, worker.performed) == ("error", 1, [])
        assert run.error is not None
        assert text in run.error.text


@pytest.mark.parametrize(("fault", "attempts"), [(Unavailable("no log"), 2), (TypeError("a mistake"), 1)])
async def test_a_run_that_cannot_be_counted(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, attempts: int
) -> None:
    """It waits where it must; it does not wait for a mistake of ours."""
    monkeypatch.setattr("core.runs.run.SUSPENDED_SECONDS", (0.01,))
    faults = [fault]

    class Counting(Worker):
        name = "lead"

        async def before_end(self, run: OwnedRun) -> None:
            assert run.run.open
            if faults:
                raise faults.pop()

    name = fresh().id
    async with process(endpoint, tmp_path, Counting()) as running:
        await asked(running, name)
        run = (await ended(running, name, "r")).runs["r"]
        await queue_is_empty(running)
    assert (run.status, run.attempt) == ("success", attempts)


async def test_what_a_run_waits_for_is_no_attempt_of_its(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.runs.run.SUSPENDED_SECONDS", (0.01,))
    worker, name = Worker(), fresh().id
    worker.fault = Unavailable("the views are being made")
    async with process(endpoint, tmp_path, worker) as running:
        await asked(running, name)

        async def often() -> bool:
            return len(worker.performed) > 2 * run_module.STALLED_ATTEMPTS

        await eventually(often)
        worker.fault = None
        state = await ended(running, name, "r")
        suspended = [r.event for r in await read(running.log, thread(name)) if isinstance(r.event, RunSuspended)]
    assert state.runs["r"].status == "success"
    assert suspended[0] == RunSuspended(reason="the views are being made")


@asynccontextmanager
async def full(log: EventLog) -> AsyncIterator[None]:
    """The log stores nothing more for as long as the block lasts."""
    stream = log.bus.names.stream("log")
    config = (await log.bus.api(f"STREAM.INFO.{stream}"))["config"]
    await log.bus.api(f"STREAM.UPDATE.{stream}", {**config, "max_bytes": 1, "discard": "new"})
    try:
        yield
    finally:
        await log.bus.api(f"STREAM.UPDATE.{stream}", config)


async def test_a_run_whose_fact_was_not_stored_is_taken_up_again(endpoint: Endpoint, tmp_path: Path) -> None:
    """It was not stopped by anybody, so it is not cancelled; as nothing can be stored, it is not suspended either."""

    class Recording(Worker):
        name = "lead"

        async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
            await super().perform(run, prepared)
            async with full(running.log) if len(self.performed) == 1 else nullcontext():
                await run.append(ModelCompleted(message=ai("done", "a")))

    worker, name = Recording(), fresh().id
    async with process(endpoint, tmp_path, worker) as running:
        await asked(running, name)
        state = await ended(running, name, "r")
        types = [record.type for record in await read(running.log, thread(name))]
    assert (state.runs["r"].status, len(worker.performed)) == ("success", 2)
    assert types[2:] == ["run.started", "run.started", "model.completed", "run.completed"]


@pytest.mark.parametrize(
    ("starts", "waits", "status"),
    [(2, False, "success"), (5, False, "success"), (6, False, "error"), (7, True, "success")],
)
async def test_a_run_whose_workers_die_is_left_alone_and_then_failed(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: int, waits: bool, status: str
) -> None:
    monkeypatch.setattr(run_module, "STALLED_SECONDS", (0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    worker, name = Worker(), fresh().id
    async with system.start(endpoint, tmp_path / "dead.db", lease_seconds=2, slots=1) as dead:
        await asked(dead, name)
        for number in range(starts):
            events: list[Event] = [RunStarted(attempt=number + 1, worker="dead", lease=10**9)]
            events += [SubagentStarted(call_id="c", subagent="s", name="bash")] if waits and not number else []
            tip = await dead.log.tip(thread(name))
            *_, last = await dead.log.append(thread(name), events, expected=tip, actor="lead", run="r")
    async with process(endpoint, tmp_path, worker) as running:
        state = await ended(running, name, "r")
        begun = [r for r in await read(running.log, thread(name)) if isinstance(r.event, RunStarted)][starts:]
    run = state.runs["r"]
    assert (run.status, run.error and run.error.error) == (status, "Stalled" if status == "error" else None)
    assert len(begun) == len(worker.performed) == (status == "success")
    pauses = [(datetime.fromisoformat(r.head.at) - datetime.fromisoformat(last.head.at)).total_seconds() for r in begun]
    assert starts != 5 or pauses[0] >= 1.0


async def test_a_run_that_hangs_has_a_deadline(endpoint: Endpoint, tmp_path: Path) -> None:
    class Hanging(Worker):
        name = "lead"
        run_seconds = 0.1

    worker, name = Hanging(), fresh().id
    worker.gate = anyio.Event()
    async with process(endpoint, tmp_path, worker) as running:
        await asked(running, name)
        state = await ended(running, name, "r")
    run = state.runs["r"]
    assert run.error is not None
    assert (run.status, run.error.error) == ("error", "TooLong")
    assert state.messages[-1]["content"] == "Stopped: the run had not ended after 0.1 s."


async def test_a_delivery_that_was_superseded_takes_no_run_over(endpoint: Endpoint, tmp_path: Path) -> None:
    """As of a process that was frozen with a delivery in its socket: others have had later ones since."""
    worker, name = Worker(), fresh().id
    async with process(endpoint, tmp_path) as running:
        await running.queue.ensure("lead")
        await asked(running, name)
        state = await running.threads.load(name)
        deliveries = asyncio.Queue[Wakeup]()

        async def take(wakeup: Wakeup) -> None:
            deliveries.put_nowait(wakeup)

        async with running_tasks(lambda: running.queue.serve("lead", take, Room(4))):
            first, second = await deliveries.get(), await deliveries.get()
        begun = RunStarted(attempt=1, worker="other", lease=second.seq, delivery=second.order)
        await running.log.append(thread(name), [begun], expected=state.seq, actor="lead", run="r")
        for stale in (first, second):
            with pytest.raises(OwnershipLost, match="a later delivery has it"):
                await worker.work(stale, running.worker)
        assert worker.performed == []
    async with process(endpoint, tmp_path, worker) as running:  # the worker died: the next delivery is a later one
        await ended(running, name, "r")
    assert worker.performed == ["r"]


async def test_nobody_takes_a_run_over_from_himself(endpoint: Endpoint, tmp_path: Path) -> None:
    worker, name = Worker(), fresh().id
    worker.gate = anyio.Event()
    async with process(endpoint, tmp_path, worker) as running:
        await asked(running, name)
        await worker.started.wait()
        lease = (await running.threads.load(name)).runs["r"].lease
        await running.bus.api(f"STREAM.MSG.DELETE.{running.bus.names.stream('cmd')}", {"seq": lease, "no_erase": True})
        await running.queue.wake("lead", thread(name), Hint(), key="again")
        await queue_is_empty(running)
        worker.gate.set()
        state = await ended(running, name, "r")
    assert (state.runs["r"].attempt, worker.performed) == (1, ["r"])


async def test_open_runs_without_a_wakeup_are_woken(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work queue was purged, or the log alone restored: those that were started as those that were not."""
    started, waiting = fresh().id, fresh().id
    async with process(endpoint, tmp_path) as running:
        await running.queue.ensure("lead")
        for name in (started, waiting):
            await asked(running, name, name)
        state = await running.threads.load(started)
        begun = RunStarted(attempt=1, worker="dead", lease=1)
        await running.log.append(thread(started), [begun], expected=state.seq, actor="lead", run=started)
        await running.bus.api(f"STREAM.PURGE.{running.bus.names.stream('cmd')}")
        await running.bus.ask(running.bus.names.place("lead"), b"%d" % await running.log.last())
    monkeypatch.setattr(system, "RECONCILE_SECONDS", 0.1)
    worker = Worker()
    async with process(endpoint, tmp_path, worker) as running:
        for name in (started, waiting):
            assert (await ended(running, name, name)).runs[name].status == "success"


async def test_runs_for_later_are_not_woken_until_then(endpoint: Endpoint, tmp_path: Path) -> None:
    """However many wait for next week, looking for lost wake-ups sends none for them."""
    worker = Worker()
    async with process(endpoint, tmp_path, worker) as running:
        name, _ = await requested(running, RunRequested(not_before=soon(3600)))
        await queue_is_empty(running)
        stream = running.bus.names.stream("cmd")
        before = (await running.bus.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
        await running._reconcile_thread(worker, name)
        assert (await running.bus.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"] == before


async def test_nothing_is_appended_after_the_end(endpoint: Endpoint, tmp_path: Path) -> None:
    class Stray(Worker):
        name = "lead"
        left: OwnedRun | None = None

        async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
            self.left = run

    worker, name = Stray(), fresh().id
    async with process(endpoint, tmp_path, worker) as running:
        await asked(running, name)
        await ended(running, name, "r")
        assert worker.left is not None
        with pytest.raises(OwnershipLost, match="has ended"):
            await worker.left.model_failed(ModelFailed(error="Late", text="late", attempt=1, max_attempts=1))
        assert [r.type for r in await read(running.log, thread(name))][-1] == "run.completed"


async def test_who_was_held_up_looks_before_it_asks(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, name = Worker(), fresh().id
    worker.gate = anyio.Event()
    owned: list[OwnedRun] = []

    async def perform(run: OwnedRun, prepared: Prepared[Any]) -> None:
        owned.append(run)
        worker.started.set()
        await worker.gate.wait() if worker.gate else None

    monkeypatch.setattr(worker, "perform", perform)
    async with process(endpoint, tmp_path, worker) as running:
        await asked(running, name)
        await worker.started.wait()
        [run] = owned
        await run.confirm()
        monkeypatch.setattr(run, "watch", None)
        state = await running.threads.load(name)
        taken = RunStarted(attempt=2, worker="other", lease=state.runs["r"].lease, delivery=1 << 60)
        monkeypatch.setattr(running.log, "_listeners", {})  # it has not heard of it yet
        await running.log.append(thread(name), [taken], expected=state.seq, actor="lead", run="r")
        await run.confirm()  # nothing tells it to look
        running.queue._extended -= 3 * running.queue.lease_seconds
        with pytest.raises(OwnershipLost, match="taken over by other"):
            await run.confirm()


async def test_one_that_fails_does_not_stop_the_others(endpoint: Endpoint, tmp_path: Path) -> None:
    pond = Pond()

    def odd() -> None:
        if pond.handled[-1] == PebbleThrown(n=13):
            raise ValueError("unlucky")

    pond.before = odd
    async with process(endpoint, tmp_path, pond) as running:
        for n in (13, 1, 2):
            aggregate = fresh("pond")
            await append(running.log, aggregate, PebbleThrown(n=n))
            if n != 13:
                await answers(running, aggregate, 1)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_consumer_that_was_deleted_is_created_anew(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    pond = Pond()
    monkeypatch.setattr(Pond, "ordered", ordered)
    async with process(endpoint, tmp_path, pond) as running:
        bus, aggregate = running.bus, fresh("pond")
        await append(running.log, aggregate, PebbleThrown())
        await answers(running, aggregate, 1)
        name = queue_of(pond, aggregate)
        before = (await bus.api(f"CONSUMER.INFO.{bus.names.stream('cmd')}.{name}"))["config"]
        await bus.api(f"CONSUMER.DELETE.{bus.names.stream('cmd')}.{name}")
        await append(running.log, aggregate, PebbleThrown(), expected=await running.log.tip(aggregate))
        await answers(running, aggregate, 2)
        assert (await bus.api(f"CONSUMER.INFO.{bus.names.stream('cmd')}.{name}"))["config"] == before


async def test_so_is_that_of_the_timers(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path, Worker()) as running:
        for _ in range(2):
            name, run = await requested(running, RunRequested(not_before=soon(0.5)))
            assert (await ended(running, name, run)).runs[run].status == "success"
            await running.bus.api(f"CONSUMER.DELETE.{running.bus.names.stream('timer')}.timers")


async def test_dispatch_goes_on_after_a_server_restart(tmp_path: Path) -> None:
    async with own(tmp_path / "nats") as nats, process(nats.endpoint(), tmp_path, Pond()) as running:
        for n in range(3):
            aggregate = fresh("pond")
            await append(running.log, aggregate, PebbleThrown(n=n))
            await answers(running, aggregate, 1)
            await nats.kill()
            await nats.restart()
        await eventually(running.log.last)


# ── runs and timers ─────────────────────────────────────────────────────────────────────────────────────────────────


async def ended(running: System, name: str, run: str) -> ThreadState:
    async def over() -> ThreadState | None:
        state = await running.threads.load(name)
        return state if run in state.runs and not state.runs[run].open else None

    found = await eventually(over)
    assert found is not None
    return found


async def requested(running: System, request: RunRequested | None = None) -> tuple[str, str]:
    name, run = fresh().id, fresh().id
    await running.intake.create_thread(name, user="ada")
    await running.intake.request_run(name, run, request or RunRequested())
    return name, run


async def test_a_run(endpoint: Endpoint, tmp_path: Path) -> None:
    worker = Worker()
    async with process(endpoint, tmp_path, worker) as running:
        name, run = await requested(running)
        state = await ended(running, name, run)
        assert state.runs[run].status == "success"
        types = [r.type for r in await read(running.log, thread(name))]
        assert types == ["thread.created", "run.requested", "run.started", "run.completed"]
        await queue_is_empty(running)
    assert worker.performed == [run]


async def test_a_run_that_raises_failed(endpoint: Endpoint, tmp_path: Path) -> None:
    worker = Worker()
    worker.fault = ValueError("what?")
    async with process(endpoint, tmp_path, worker) as running:
        name, run = await requested(running)
        error = (await ended(running, name, run)).runs[run].error
        assert error
        assert (error.error, error.text) == ("ValueError", "An unexpected error ended the run: what?")
    assert worker.performed == [run]


@pytest.mark.parametrize(("action", "status"), [("interrupt", "interrupted"), ("rollback", "rolled_back")])
async def test_a_run_that_is_cancelled_at_work(endpoint: Endpoint, tmp_path: Path, action: str, status: str) -> None:
    worker = Worker()
    worker.gate = anyio.Event()
    async with process(endpoint, tmp_path, worker) as running:
        name, run = await requested(running, RunRequested(input={"messages": [{"type": "human", "id": "h"}]}))
        await worker.started.wait()
        await running.intake.cancel(name, run, action)
        state = await ended(running, name, run)
        assert state.runs[run].status == status
        assert bool(state.messages) == (action == "interrupt")


class Busy(Worker):
    """Appends when it is cancelled, and is cut off before the answer of the server."""

    name = "lead"

    def __init__(self, event: ModelCompleted | ToolCompleted) -> None:
        super().__init__()
        self.event = event

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        if isinstance(self.event, ToolCompleted):
            await run.append(CALLING)
        self.started.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                stats = run._threads.log.bus.nc.stats
                sent, appending = stats["out_msgs"], asyncio.create_task(run.append(self.event))
                for _ in range(100):
                    if stats["out_msgs"] > sent:
                        break
                    await asyncio.sleep(0)
                appending.cancel()
                await asyncio.wait([appending])


CALLING = ModelCompleted(message=ai("a", "", calls=[call("c")]))
DONE = ToolCompleted(call_id="c", message={"type": "tool", "id": "t", "tool_call_id": "c", "content": "sent"})


@pytest.mark.parametrize(
    ("event", "outcome"), [(CALLING, "Error: cancelled by the user before it finished."), (DONE, "sent")]
)
async def test_what_was_appended_when_a_run_was_cancelled_counts(
    endpoint: Endpoint, tmp_path: Path, event: ModelCompleted | ToolCompleted, outcome: str
) -> None:
    """A call that was answered stays answered, and a call that was made is not left without an answer."""
    worker = Busy(event)
    async with process(endpoint, tmp_path, worker) as running:
        name, run = await requested(running, RunRequested(input={"messages": [human("h")]}))
        await worker.started.wait()
        await running.intake.cancel(name, run)
        state = await ended(running, name, run)
        assert [message["type"] for message in state.messages] == ["human", "ai", "tool"]
        assert state.messages[-1]["content"] == outcome


async def test_runs_of_a_thread_go_one_by_one_in_order(endpoint: Endpoint, tmp_path: Path) -> None:
    worker = Worker()
    worker.gate = anyio.Event()
    async with process(endpoint, tmp_path, worker) as running:
        name, first = await requested(running)
        more = [fresh().id for _ in range(3)]
        for run in more:
            await running.intake.request_run(name, run, RunRequested(multitask="enqueue"))
        worker.gate.set()
        await ended(running, name, more[-1])
    assert worker.performed == [first, *more]


async def test_a_worker_that_ends_hands_its_run_on(endpoint: Endpoint, tmp_path: Path) -> None:
    stuck, worker = Worker(), Worker()
    stuck.gate = anyio.Event()
    async with process(endpoint, tmp_path, stuck) as running:
        name, run = await requested(running)
        await stuck.started.wait()
    async with process(endpoint, tmp_path, worker, alone=False) as running:
        state = await ended(running, name, run)
        assert (state.runs[run].status, state.runs[run].attempt) == ("success", 2)


def soon(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def test_a_run_for_later_is_started_by_its_timer(endpoint: Endpoint, tmp_path: Path) -> None:
    when = soon(1.2)
    async with process(endpoint, tmp_path, Worker()) as running:
        name, run = await requested(running, RunRequested(not_before=when))
        await ended(running, name, run)
        started = next(r for r in await read(running.log, thread(name)) if r.type == "run.started")
        assert started.at >= when
        await queue_is_empty(running)


async def test_a_timer_that_fires_while_nobody_is_there(endpoint: Endpoint, tmp_path: Path, bus: Bus) -> None:
    async with process(endpoint, tmp_path, Worker()) as running:
        name, run = await requested(running, RunRequested(not_before=soon(1.5)))

        async def there(subject: str) -> bool:
            info = await bus.api(f"STREAM.INFO.{bus.names.stream('timer')}", {"subjects_filter": ">"})
            return subject in (info["state"].get("subjects") or {})

        await eventually(lambda: there(bus.names.timer("lead", thread(name), run)))
        await queue_is_empty(running)  # the worker has set the timer and let go

    await eventually(lambda: there(bus.names.wake("lead", thread(name))))
    async with process(endpoint, tmp_path, Worker()) as running:
        assert (await ended(running, name, run)).runs[run].status == "success"


async def test_a_timer_that_fired_waits_for_as_long_as_it_takes(bus: Bus) -> None:
    aggregate = fresh()
    await WorkQueue(bus, 2).wake_at(datetime.now(UTC), "lead", aggregate, key="a")
    stream, js = bus.names.stream("timer"), bus.nc.jetstream()

    async def fired() -> bool:
        info = await bus.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
        return bus.names.wake("lead", aggregate) in (info["state"].get("subjects") or {})

    await eventually(fired)
    message = await js.get_last_msg(stream, bus.names.wake("lead", aggregate))
    assert "Nats-TTL" not in (message.headers or {})


class Doorman(Actor[PebbleThrown]):
    """An actor on which a person waits."""

    name = "doorman"
    prompt = True

    def __init__(self) -> None:
        self.seen = anyio.Event()

    async def handle(self, event: PebbleThrown, ctx: Context) -> None:
        self.seen.set()


async def test_a_prompt_actor_does_not_wait_for_events_to_be_gathered(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pond, doorman = Pond(), Doorman()
    async with process(endpoint, tmp_path, pond, doorman) as running:
        await append(running.log, thread("before"), PebbleThrown())
        await answers(running, thread("before"), 1)
        monkeypatch.setattr(dispatch, "GATHER_SECONDS", 3600.0)
        doorman.seen = anyio.Event()
        await append(running.log, thread("t"), PebbleThrown(n=1))
        with anyio.fail_after(20):
            await doorman.seen.wait()
        assert pond.handled == [PebbleThrown()], "others wait: most of their events are answered meanwhile"
