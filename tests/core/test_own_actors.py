"""What the runtime does for actors of others: their own state, the order of their events, their limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.actor import Actor, Context, Retries
from core.bus.queue import Hint
from core.errors import Invalid
from core.events import Aggregate, Event, ThreadAnnotated, ThreadCreated, ThreadErased, thread
from core.runtime import letters as dlq
from core.runtime.ordering import QUEUES, Cursor, queue_of
from core.runtime.own_state import own_state
from core.runtime.vitals import Backlog, overview
from core.testing import Stage, acting
from tests.support.nats import eventually, read


class AnnotationCounted(Event, frozen=True):
    """The annotations of a thread so far."""

    total: int


class Total(msgspec.Struct, frozen=True):
    total: int = 0


class Counts(Actor[ThreadAnnotated]):
    """Counts annotations, and reports each count on the thread."""

    name = "counts"
    initial = Total()

    @staticmethod
    def apply(state: Total, event: Event) -> Total:
        return Total(event.total) if isinstance(event, AnnotationCounted) else state

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        await ctx.update(lambda state: [AnnotationCounted(state.total + 1)])


class Ordered(Actor[ThreadAnnotated]):
    """Notes what it handles; fails as told by the event."""

    name = "ordered"
    ordered = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.busy: set[str] = set()

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        name = ctx.record.aggregate.id
        assert name not in self.busy, "one after another"
        self.busy.add(name)
        try:
            await asyncio.sleep(0)
            self.seen.append((name, event.metadata["n"]))
            if self.seen.count((name, event.metadata["n"])) <= event.metadata.get("fails", 0):
                raise Invalid("as told")
        finally:
            self.busy.discard(name)


def notes(*numbers: int, fails: int = 0) -> list[ThreadAnnotated]:
    return [ThreadAnnotated(metadata={"n": number, "fails": fails}) for number in numbers]


# ── state ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_state_of_its_own_for_each_thread(tmp_path: Path) -> None:
    async with acting(Counts(), home=tmp_path) as stage:
        await stage.given(*notes(1, 2, 3))
        await stage.given(ThreadCreated(user="ada"), *notes(1), aggregate=thread("t2"))
        assert await stage.state() == Total(3)
        assert await stage.state(aggregate=thread("t2")) == Total(1)
        assert await stage.appended(own_state("counts", stage.thread)) == [AnnotationCounted(n) for n in (1, 2, 3)]
        assert (await stage.settled())[-1].head.actor == "test", "nothing of it is on the thread"


async def test_an_event_that_comes_again_counts_once(tmp_path: Path) -> None:
    async with acting(Counts(), home=tmp_path) as stage:
        records = await stage.given(*notes(1, 2, 3))
        assert await stage.state() == Total(3)
        handled = handlings(stage, "counts")
        for record in records:
            hint = Hint(seq=record.seq, type=record.type, id=record.id)
            await stage.system.queue.wake("counts", record.aggregate, hint, key=f"again-{record.id}")
        await eventually(lambda: reached(stage, "counts", handled + 3))
        assert await stage.state() == Total(3)


def handlings(stage: Stage, actor: str) -> int:
    return next(work.handled for work in stage.system.vitals.report().actors if work.name == actor)


async def reached(stage: Stage, actor: str, count: int) -> bool:
    return handlings(stage, actor) >= count


async def test_the_state_goes_with_its_thread(tmp_path: Path) -> None:
    async with acting(Counts(), home=tmp_path) as stage:
        await stage.given(*notes(1, 2))
        assert await stage.state() == Total(2)
        await stage.given(ThreadErased(by="ada"))
        own = own_state("counts", stage.thread)

        async def gone() -> bool:
            return not await read(stage.system.log, own)

        await eventually(gone)
        assert await stage.state() == Total(0)


class Late(Counts, Actor[ThreadAnnotated]):
    """Decides when it is told to."""

    name = "late"

    def __init__(self) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        if event.metadata["n"] == 2:
            self.begun.set()
            await self.gate.wait()
        await super().handle(event, ctx)


async def test_a_handler_that_ends_after_its_thread_was_erased_leaves_no_state(tmp_path: Path) -> None:
    late = Late()
    async with acting(late, home=tmp_path) as stage:
        await stage.given(*notes(1))
        assert await stage.state() == Total(1)
        await stage.given(*notes(2))
        await late.begun.wait()
        await stage.given(ThreadErased(by="ada"))
        own = own_state("late", stage.thread)

        async def gone() -> bool:
            return not await read(stage.system.log, own)

        await eventually(gone)
        late.gate.set()
        assert await stage.state() == Total(0)
        assert await gone()


class Broken(Counts, Actor[ThreadAnnotated]):
    name = "broken"

    @staticmethod
    def apply(state: Total, event: Event) -> Total:
        raise ZeroDivisionError("no")


async def test_a_fold_that_fails_says_where(tmp_path: Path) -> None:
    async with acting(Broken(), home=tmp_path) as stage:
        await stage.given(*notes(1))
        with pytest.raises(
            Invalid, match=r"actor broken: apply fails on annotation.counted at 3: ZeroDivisionError: no"
        ):
            await stage.settled()


def test_a_state_needs_a_fold() -> None:
    with pytest.raises(Invalid, match="has a state; write `apply`"):

        class Foldless(Actor[ThreadAnnotated]):
            initial = Total()


# ── order ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_of_a_thread_are_handled_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those after an event that fails at first; threads do not wait for each other's order."""
    monkeypatch.setattr(Ordered, "retries", Retries(pauses=(0.05,)))
    actor = Ordered()
    async with acting(actor, home=tmp_path) as stage:
        names = [f"t{number}" for number in range(40)]
        for name in names:
            await stage.given(ThreadCreated(user="ada"), *notes(1, 2, 3), aggregate=thread(name))
        await stage.given(*notes(4, fails=2), aggregate=thread("t7"))
        await stage.given(*notes(5, 6), aggregate=thread("t7"))

        async def done() -> bool:
            return len(actor.seen) == 40 * 3 + 5

        await eventually(done)
    for name in names:
        expected = [1, 2, 3, 4, 4, 4, 5, 6] if name == "t7" else [1, 2, 3]
        assert [number for seen, number in actor.seen if seen == name] == expected


async def test_what_was_handled_is_not_handled_again_after_later_events(tmp_path: Path) -> None:
    """A wake-up that was sent twice, as after a restart of all processes; a dead letter that is redriven is handled."""
    actor = Ordered()
    async with acting(actor, home=tmp_path) as stage:
        first, second = (await stage.given(*notes(1, 2)))[-2:]
        await stage.settled()
        queue = queue_of(actor, stage.thread)
        hint = Hint(seq=first.seq, type=first.type, id=first.id)
        await stage.system.queue.wake(queue, stage.thread, hint, key="again")
        [third] = await stage.given(*notes(3))
        await stage.settled()
        assert [number for _, number in actor.seen] == [1, 2, 3]
        assert await Cursor(stage.system.bus, queue).read() == third.seq
        letter = {"actor": queue, "reason": "?", "at": "", "hint": {"seq": second.seq, "id": second.id}}
        await stage.system.bus.store(stage.system.bus.names.dlq(queue, stage.thread), msgspec.json.encode(letter))
        assert len(await dlq.redrive(stage.system.log, stage.system.queue, by="ada", actor="cli")) == 1

        async def again() -> bool:
            return [number for _, number in actor.seen] == [1, 2, 3, 2]

        await eventually(again)


async def test_a_process_that_was_frozen_does_not_move_the_cursor_back(tmp_path: Path) -> None:
    async with acting(Ordered(), home=tmp_path) as stage:
        frozen, awake = Cursor(stage.system.bus, "ordered~1"), Cursor(stage.system.bus, "ordered~1")
        assert (await frozen.read(), await awake.read()) == (0, 0)
        await awake.move(7)
        await frozen.move(5)
        assert await awake.read() == 7


def test_every_aggregate_has_one_of_the_queues() -> None:
    actor = Ordered()
    queues = {queue_of(actor, Aggregate("thread", str(number))) for number in range(1000)}
    assert queues == {f"ordered~{number}" for number in range(QUEUES)}


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Slow(Actor[ThreadAnnotated]):
    name = "slow"
    concurrency = 2

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.done = 0

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        await self.gate.wait()
        self.done += 1


async def test_no_more_at_once_than_its_limit(tmp_path: Path) -> None:
    actor = Slow()
    async with acting(actor, home=tmp_path) as stage:
        await stage.given(*notes(*range(50)))

        async def backlog() -> Backlog:
            [backlog] = (await overview(stage.system.bus, 0)).backlogs
            return backlog

        async def full() -> bool:
            return ((one := await backlog()).waiting, one.delivered) == (48, 2)

        await eventually(full)
        lag = (await backlog()).lag_seconds or 0.0

        async def later() -> bool:
            return ((await backlog()).lag_seconds or 0.0) > lag > 0

        await eventually(later)
        [report] = stage.system.vitals.report().actors
        assert (report.in_flight, report.limit) == (2, 2)
        actor.gate.set()
        await stage.settled()
        assert await backlog() == Backlog("slow", 0, 0)
    assert actor.done == 50


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="concurrency: at least 1, got 0"):

        class Idle(Actor[ThreadAnnotated]):
            concurrency = 0
