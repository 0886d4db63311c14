"""Schedules become runs: once for every moment, whoever dies, and however many schedulers there are."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from actors.scheduler import Scheduler
from core.bus.endpoint import Endpoint
from core.errors import NotFound, Refused
from core.events import (
    Aggregate,
    Event,
    Record,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunStarted,
    ThreadCreated,
    ThreadErased,
    thread,
)
from core.ids import stamp, uuid7
from core.runtime import system
from core.runtime.context import HandlerContext
from core.runtime.system import System
from core.user import assistants
from core.user import launch as launching
from core.user.assistants import AssistantCreated, Settings
from core.user.launch import BUSY, Launch
from core.user.schedules import (
    KIND,
    Job,
    Plan,
    Schedule,
    ScheduleCreated,
    ScheduleFailed,
    ScheduleFired,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleRevised,
    SchedulesFired,
    SchedulesKept,
    ScheduleSkipped,
    Timing,
)
from tests.support.nats import Nats, eventually
from tests.support.workers import Power

pytestmark = pytest.mark.anyio

USER = "ada"
INPUT = {"messages": [{"type": "human", "content": "hi"}]}


@pytest.fixture
def endpoint(nats: Nats) -> Endpoint:
    return nats.endpoint(f"t{uuid.uuid4().hex[:10]}")


@asynccontextmanager
async def process(endpoint: Endpoint, home: Path, power: Power | None = None) -> AsyncIterator[System]:
    """A process with a scheduler."""
    views = home / f"views-{uuid.uuid4().hex}.db"
    async with system.start(endpoint, views, lease_seconds=2, slots=4) as running:
        if power is not None:
            power.wire(running)
        async with anyio.create_task_group() as tasks:
            actor = Scheduler(running.log, running.threads, running.intake)
            await tasks.start(partial(running.serve, [actor], alone=True))
            yield running
            tasks.cancel_scope.cancel()


class Person:
    """What a person does about schedules, and what is to be seen of them."""

    def __init__(self, running: System, user: str = USER) -> None:
        self.system = running
        self.user = user
        self.launch = Launch(running.log, running.threads, running.intake)

    async def say(self, *events: Event) -> None:
        for event in events:
            await self.launch.schedules.decide(self.user, lambda _, event=event: [event], actor="http")  # type: ignore[misc]

    async def create(self, due: float | str = 0.3, *, identity: str = "s", enabled: bool = True, **more: Any) -> None:
        """A schedule that is due once, so many seconds from now, or by a cron expression."""
        more = {"job": Job(input=INPUT), **more}
        timing = Timing(cron=due) if isinstance(due, str) else Timing(at=ahead(due))
        await self.say(ScheduleCreated(schedule=identity, plan=Plan(timing=timing, **more), enabled=enabled))

    async def schedule(self, identity: str = "s") -> Schedule | None:
        return (await self.launch.schedules.load(self.user)).get(identity)

    async def facts(self, kind: type[Event]) -> list[Any]:
        records = [record async for record in self.system.log.read(Aggregate(KIND, self.user))]
        events = [record.event for record in records]
        events += [decision for event in events if isinstance(event, SchedulesFired) for decision in event.decisions]
        return [event for event in events if isinstance(event, kind)]

    async def fired(self, count: int = 1) -> list[ScheduleFired]:
        return await eventually(partial(self._at_least, ScheduleFired, count))

    async def said(self, kind: type[Event]) -> Any:
        return (await eventually(partial(self._at_least, kind, 1)))[0]

    async def _at_least(self, kind: type[Event], count: int) -> list[Any]:
        facts = await self.facts(kind)
        return facts if len(facts) >= count else []

    async def run(self, event: ScheduleFired) -> Record:
        """The request of the run, once it is there. There is never a second."""

        async def probe() -> list[Record]:
            records = [record async for record in self.system.log.read(thread(event.thread_id))]
            return [r for r in records if isinstance(r.event, RunRequested) and r.run == event.run_id]

        [record] = await eventually(probe)
        return record

    async def work(self, event: ScheduleFired, *events: Event) -> None:
        """Write what a worker would write."""
        for one in events:
            await self.system.threads.decide(event.thread_id, lambda _, one=one: [one], actor="lead", run=event.run_id)  # type: ignore[misc]

    async def idle(self) -> None:
        """Return when everything that was said before is done, and what followed from that too: another person's
        schedule has come, twice, as events are dispatched in order, and no wake-up is left.
        """
        names = self.system.bus.names
        consumers = (f"{names.stream('timer')}.timers", f"{names.stream('cmd')}.scheduler")

        async def probe() -> bool:
            infos = [await self.system.bus.api(f"CONSUMER.INFO.{consumer}") for consumer in consumers]
            return not any(info["num_pending"] or info["num_ack_pending"] for info in infos)

        for _ in range(2):
            other = Person(self.system, f"other-{uuid.uuid4().hex}")
            await other.create(-1)
            await other.run((await other.fired())[0])
            await eventually(probe)


def ahead(seconds: float) -> str:
    return stamp(datetime.now(UTC) + timedelta(seconds=seconds))


STARTED = RunStarted(attempt=1, worker="w", lease=1)


@pytest.mark.parametrize("due", [0.4, -3600.0], ids=["ahead", "passed"])
async def test_a_single_time_comes_once(endpoint: Endpoint, tmp_path: Path, due: float) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await person.create(due, job=Job(input=INPUT, context={"user_id": USER}, webhook="https://x.example"))
        [event] = await person.fired()
        record = await person.run(event)
        request = record.event
        assert isinstance(request, RunRequested)
        assert request.input is not None
        assert [(m["type"], m["content"]) for m in request.input["messages"]] == [("human", "hi")]
        assert request.input["messages"][0]["id"]
        assert (request.webhook, request.context) == ("https://x.example", {"user_id": USER})
        state = await running.threads.load(event.thread_id)
        assert (state.user, state.metadata["schedule_id"]) == (USER, "s")
        schedule = await person.schedule()
        assert schedule is not None
        assert schedule.next is None
        await person.idle()
        assert len(await person.facts(ScheduleFired)) == 1


async def test_what_comes_due_at_once_comes_once_each(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        names = [f"s{n}" for n in range(20)]
        for name in names:
            await person.create(0.8, identity=name)
        events = await person.fired(20)
        assert sorted(event.schedule for event in events) == sorted(names)
        for event in events:
            await person.run(event)
        await person.idle()
        assert len(await person.facts(ScheduleFired)) == 20


@pytest.mark.long
async def test_a_thousand_that_are_due_at_once(endpoint: Endpoint, tmp_path: Path) -> None:
    """They fire in few facts, and all their runs are asked for, each once, within the minute."""
    async with system.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as outside:
        person, names = Person(outside), [f"s{n}" for n in range(1000)]
        moment = datetime.now(UTC)
        plan = Plan(timing=Timing(at=stamp(moment)), job=Job(input=INPUT))
        for start in range(0, 1000, 200):
            made = [ScheduleCreated(schedule=name, plan=plan) for name in names[start : start + 200]]
            await person.launch.schedules.decide(USER, lambda _, made=made: made, actor="http")  # type: ignore[misc]
    async with process(endpoint, tmp_path) as running:
        with running.log.listen(None) as listener:
            await Person(running).create(-1, identity="last")
            requested: list[Record] = []
            with anyio.fail_after(60):
                while len(requested) < 1001:
                    records, lost = await listener.take()
                    assert not lost
                    requested += [record for record in records if record.type == "run.requested"]
        assert len({record.run for record in requested}) == 1001
        assert (datetime.fromisoformat(requested[-1].at) - moment).total_seconds() < 60
        fired = [event.schedule for event in await Person(running).facts(ScheduleFired)]
        assert sorted(fired) == ["last", *sorted(names)]
        assert len(await Person(running).facts(SchedulesFired)) == 1000 // launching.BATCH


async def test_schedules_of_the_same_time_share_a_timer(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        for n in range(20):
            await person.create("0 0 1 1 *", identity=f"s{n}")
        await person.create("0 0 2 1 *", identity="other")
        await person.idle()
        assert await timers(running) == 2


async def test_the_log_is_cut(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it was fired; and nothing else is forgotten by that."""
    monkeypatch.setattr("core.user.schedules.CUT_AFTER", 10)
    monkeypatch.setattr("core.user.schedules.MOST_FIRINGS", 5)
    monkeypatch.setattr("core.user.launch.PATIENCE", timedelta())
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await person.create("* * * * *", identity="s")
        await person.create("0 0 1 1 *", identity="other", title="kept")
        moment = datetime.now(UTC)
        for _ in range(60):
            moment += timedelta(minutes=1)
            await wake(running, moment)
        await person.fired()
        state = await person.launch.schedules.load(USER)
        records = [record async for record in running.log.read(Aggregate(KIND, USER))]
        assert len(records) < 40
        assert isinstance(records[0].event, SchedulesKept)
        cold = Person(running)
        assert await cold.launch.schedules.load(USER) == state
        assert (state["s"].runs, len(state["s"].firings), state["other"].plan.title) == (60, 5, "kept")
        for firing in state["s"].firings:
            assert firing.run is not None
            assert firing.thread is not None
            await person.run(ScheduleFired(schedule="s", due=firing.due, run_id=firing.run, thread_id=firing.thread))


async def test_two_schedulers_fire_once(endpoint: Endpoint, tmp_path: Path) -> None:
    """Both get every fact and every timer at the same time."""
    async with process(endpoint, tmp_path) as first, process(endpoint, tmp_path) as second:
        person = Person(first)
        for n in range(5):
            await person.create(-1, identity=f"s{n}", enabled=False)
        schedulers = [Launch(s.log, s.threads, s.intake) for s in (first, second, first, second)]
        await person.say(*(ScheduleResumed(schedule=f"s{n}") for n in range(5)))
        async with anyio.create_task_group() as tasks:
            for launch in schedulers:
                tasks.start_soon(launch.fire, USER, datetime.now(UTC))
        events = await person.fired(5)
        async with anyio.create_task_group() as tasks:
            for launch in schedulers:
                for event in events:
                    tasks.start_soon(launch.launch, USER, event.schedule, event.run_id)
        for event in events:
            await person.run(event)
        await person.idle()
        assert len(await person.facts(ScheduleFired)) == 5
        assert await person.facts(ScheduleFailed) == []


@pytest.mark.parametrize("mode", ["unheard", "heard"])
@pytest.mark.parametrize("last", [1, 2], ids=["fired", "thread made"])
async def test_a_crash_between_firing_and_asking(
    endpoint: Endpoint, tmp_path: Path, last: int, mode: Literal["unheard", "heard"]
) -> None:
    """The power goes when the process has decided to fire, or has made the thread: the next one asks for the run."""
    async with system.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as outside:
        person = Person(outside)
        power = Power(last, mode)
        async with process(endpoint, tmp_path, power):
            await person.create(0.2)
            with anyio.fail_after(60):
                await power.off.wait()
            [event] = await person.fired()
        assert event.run_id not in (await outside.threads.load(event.thread_id)).runs
        async with process(endpoint, tmp_path):
            await person.run(event)
            await person.idle()
            assert len(await person.facts(ScheduleFired)) == 1


async def test_after_an_outage_it_comes_once_and_then_goes_on(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says that it was made three days ago, when nobody was there to fire it."""
    async with process(endpoint, tmp_path):
        pass
    async with system.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as outside:
        person = Person(outside)
        begin = datetime.now(UTC)
        with monkeypatch.context() as then:
            then.setattr("core.log.store.now", lambda: stamp(begin - timedelta(days=3)))
            await person.create("0 * * * *")
        async with process(endpoint, tmp_path):
            first = (await person.fired())[0]
            await person.run(first)
            await person.idle()
            assert begin - datetime.fromisoformat(first.due) > timedelta(hours=70)
            late = [event for event in await person.facts(ScheduleFired) if event.due < stamp(begin)]
            assert late == [first]
            schedule = await person.schedule()
            assert schedule is not None
            assert schedule.next is not None
            assert schedule.next > begin


async def test_a_cron_has_its_next_timer_when_it_was_fired(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await person.create("0 0 1 1 *")
        await person.idle()
        assert await timers(running) == 1
        await wake(running, datetime.now(UTC) + timedelta(days=366))
        [event] = await person.fired()
        await person.run(event)
        await person.idle()
        assert await timers(running) == 2  # the first one has not come yet in truth


async def test_it_goes_on_after_a_clock_that_was_ahead(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock showed next year when it was due, and the process ended before the clock was right again."""
    ahead = datetime.now(UTC) + timedelta(days=400)
    async with system.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as running:
        person = Person(running)
        await person.create("0 * * * *")
        await person.create("0 * * * *", identity="paused", enabled=False)
        with monkeypatch.context() as then:
            for place in ("core.log.store.now", "core.bus.queue.now"):
                then.setattr(place, lambda: stamp(ahead))
            await wake(running, ahead)
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        assert (await person.said(ScheduleResumed)).schedule == "s"
        schedule = await person.schedule()
        assert schedule is not None
        assert schedule.next is not None
        assert schedule.next - datetime.now(UTC) <= timedelta(hours=1)
        await person.idle()
        assert len(await person.facts(ScheduleResumed)) == 1
        await wake(running, datetime.now(UTC) + timedelta(hours=1))
        assert len(await person.facts(ScheduleFired)) == 2


async def wake(running: System, now: datetime) -> None:
    """Have the scheduler wake up for the user at a time."""
    scheduler, aggregate = Scheduler(running.log, running.threads, running.intake), Aggregate(KIND, USER)
    context = HandlerContext(running, scheduler, aggregate)
    context.now = partial(stamp, now)  # type: ignore[method-assign]
    await scheduler.wake(aggregate, context)


async def timers(running: System) -> int:
    names = running.bus.names
    info = await running.bus.api(
        f"STREAM.INFO.{names.stream('timer')}", {"subjects_filter": f"{names.prefix}.timer.scheduler.>"}
    )
    return len(info["state"].get("subjects") or {})


async def test_a_paused_schedule_does_not_come_until_it_is_resumed(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await person.create(0.5)
        await person.say(SchedulePaused(schedule="s"))
        await person.create(0.6, identity="other")
        [event] = await person.fired()
        assert event.schedule == "other"
        await person.idle()
        assert len(await person.facts(ScheduleFired)) == 1
        await person.say(ScheduleResumed(schedule="s"))
        events = await person.fired(2)
        assert events[1].schedule == "s"


async def test_a_schedule_that_was_removed_or_put_off_does_not_come(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await person.create(0.5, identity="removed")
        await person.create(0.5, identity="later")
        await person.say(ScheduleRemoved(schedule="removed"))
        later = Plan(timing=Timing(at=ahead(3600)), job=Job(input=INPUT))
        await person.say(ScheduleRevised(schedule="later", plan=later))
        await person.create(0.7, identity="other")
        [event] = await person.fired()
        await person.idle()
        assert event.schedule == "other"
        assert len(await person.facts(ScheduleFired)) == 1


async def test_a_schedule_that_was_brought_forward_comes(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await person.create(366 * 86_400.0)
        plan = Plan(timing=Timing(at=ahead(0.3)), job=Job(input=INPUT))
        await person.say(ScheduleRevised(schedule="s", plan=plan))
        await person.run((await person.fired())[0])


async def test_nothing_comes_after_the_end(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        ended = Plan(timing=Timing(cron="* * * * *", end=ahead(-1)), job=Job(input=INPUT))
        await person.say(ScheduleCreated(schedule="ended", plan=ended))
        await person.create(-1, identity="other")
        await person.fired()
        await person.launch.fire(USER, datetime.now(UTC) + timedelta(hours=1))
        await person.idle()
        assert [event.schedule for event in await person.facts(ScheduleFired)] == ["other"]


@pytest.mark.parametrize("ending", [RunCompleted(), RunFailed(error="E", text="broke")])
async def test_one_run_at_a_time(endpoint: Endpoint, tmp_path: Path, ending: Event) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await person.create(3600.0, overlap="skip")
        first = await person.launch.trigger(USER, "s", uuid7(), actor="http")
        [event] = await person.fired()
        assert first.run == event.run_id
        with pytest.raises(Refused, match="active run"):
            await person.launch.trigger(USER, "s", uuid7(), actor="http")
        await person.launch.fire(USER, datetime.now(UTC) + timedelta(hours=2))
        skipped = await person.said(ScheduleSkipped)
        assert skipped.reason == BUSY
        await person.work(event, STARTED, ending)
        second = await person.launch.trigger(USER, "s", uuid7(), actor="http")
        assert second.run != first.run


async def test_a_firing_whose_run_is_not_there_yet_counts_as_going_on(endpoint: Endpoint, tmp_path: Path) -> None:
    async with system.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as running:
        person = Person(running)
        await person.create(-1, overlap="skip")
        await person.launch.fire(USER, datetime.now(UTC))
        with pytest.raises(Refused, match="active run"):
            await person.launch.trigger(USER, "s", uuid7(), actor="http")


async def test_a_trigger_leaves_what_is_due_as_it_is(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await person.create(0.7, enabled=True)
        fired = await person.launch.trigger(USER, "s", uuid7(), actor="http")
        assert fired.manual
        assert len(await person.fired(2)) == 2
        with pytest.raises(NotFound):
            await person.launch.trigger(USER, "unknown", uuid7(), actor="http")


async def test_one_thread_for_all_runs(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await running.intake.create_thread("mine", user=USER)
        await person.create(3600.0, thread="mine")
        for _ in range(2):
            await person.launch.trigger(USER, "s", uuid7(), actor="http")
        state = await running.threads.load("mine")
        assert [run.status for run in state.runs.values()] == ["pending", "pending"]
        inputs = [run.request.input["messages"][0]["id"] for run in state.runs.values() if run.request.input]
        assert len(set(inputs)) == 2


@pytest.mark.parametrize("why", ["never was", "erased", "somebody else's"])
async def test_without_its_thread_it_fails_and_pauses(endpoint: Endpoint, tmp_path: Path, why: str) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        if why != "never was":
            await running.intake.create_thread("gone", user=USER if why == "erased" else "bob")
        if why == "erased":
            await running.intake.erase("gone", by=USER)
        await person.create(0.2, thread="gone")
        failed = await person.said(ScheduleFailed)
        assert failed.reason == "Thread gone not found"
        assert (await person.said(SchedulePaused)).reason == failed.reason
        schedule = await person.schedule()
        assert schedule is not None
        assert schedule.last is not None
        assert await person.launch.outcome(schedule.last) == ("failed", None)


async def test_a_busy_thread_that_refuses(endpoint: Endpoint, tmp_path: Path) -> None:
    """It fails this time, and is due again."""
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await running.intake.create_thread("mine", user=USER)
        await running.intake.request_run("mine", "theirs", RunRequested(input=INPUT), user=USER)
        await person.create("0 0 1 1 *", thread="mine", job=Job(input=INPUT, multitask="reject"))
        fired = await person.launch.trigger(USER, "s", uuid7(), actor="http")
        assert fired.failed == "Thread mine already has an active run"
        schedule = await person.schedule()
        assert schedule is not None
        assert schedule.next is not None


async def test_the_assistant_as_it_is_when_it_comes(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        own = assistants.aggregates(running.log)
        name = str(uuid.uuid4())
        settings = Settings(config={"recursion_limit": 7}, context={"model_name": "m", "tone": "dry", "user_id": "eve"})
        created = AssistantCreated(assistant=name, settings=settings)
        await own.decide(USER, lambda _: [created], actor="http")
        job = Job(input=INPUT, context={"user_id": USER, "tone": "warm"})
        await person.create(0.2, job=job, assistant=name)
        request = (await person.run((await person.fired())[0])).event
        assert isinstance(request, RunRequested)
        assert (request.assistant, request.config) == (name, {"recursion_limit": 7})
        assert request.context == {"model_name": "m", "tone": "warm", "user_id": USER}
        await person.create(0.1, identity="other", assistant=str(uuid.uuid4()))
        assert "not found" in (await person.said(ScheduleFailed)).reason


async def test_a_run_that_went_with_its_thread_is_not_made_again(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as running:
        person = Person(running)
        await person.create(0.1)
        [event] = await person.fired()
        await person.run(event)
        await running.intake.erase(event.thread_id, by=USER)
        await person.launch.launch(USER, "s", event.run_id)
        assert await person.facts(ScheduleFailed) == []
        assert not (await running.threads.load(event.thread_id)).exists


async def test_a_thread_with_the_id_of_the_deleted_one_has_no_run_of_a_firing_from_before(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """As the process died between the firing and the request."""
    async with system.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as running:
        person = Person(running)
        await running.intake.create_thread("mine", user=USER)
        await person.create(3600.0, thread="mine")
        await person.say(ScheduleFired(schedule="s", due=ahead(0), run_id="r", thread_id="mine"))
        for event in (ThreadErased(by=USER), ThreadCreated(user=USER)):
            await running.threads.decide("mine", lambda _, event=event: [event], actor="http")  # type: ignore[misc]
        await person.launch.launch(USER, "s", "r")
        assert not (await running.threads.load("mine")).runs
        assert [each.reason for each in await person.facts(ScheduleFailed)] == ["Thread mine was deleted"]


def test_what_it_listens_to() -> None:
    """Whatever a person changes about when it is due next; and what a run follows from."""
    kinds: Sequence[type[Event]] = (ScheduleCreated, ScheduleRevised, ScheduleResumed, ScheduleFired, SchedulesFired)
    assert set(Scheduler.subscription) == set(kinds)
