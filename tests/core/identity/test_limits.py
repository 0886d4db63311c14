"""Limits of a user: exact over processes where runs are concerned."""

from __future__ import annotations

import asyncio

import pytest

from core.config import settings
from core.errors import Refused, Unavailable
from core.events import Aggregate, Event, RunCompleted, RunRequested, RunStarted, ThreadCreated, ThreadErased
from core.identity import limits
from core.identity.errors import TooMany
from core.identity.limits import Limits
from core.identity.principal import LOCAL, Principal
from core.ids import now, uuid7
from core.log.repository import Repository
from core.log.store import EventLog
from core.runs.ledger import KIND, Counts, Ledger, TokensSpent, fold
from core.thread.threads import Threads

ADA, BOB = Principal("ada"), Principal("bob")


class World:
    """Processes that share a log, and one clock."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.config = settings.Limits()
        self.time = 0.0

    def process(self) -> Limits:
        return Limits(self.log, Threads(self.log), lambda: self.config, clock=lambda: self.time)

    async def spend(self, user: str, tokens: int) -> None:
        spent = TokensSpent(day=now()[:10], used={"r": {"m": Counts(tokens - 9, 9)}})
        await Repository(self.log, KIND, fold, Ledger()).decide(user, lambda _: [spent], actor="t")

    async def run(
        self, here: Limits, who: Principal = ADA, thread: str = "", *, replaces: bool = False
    ) -> tuple[str, str]:
        """A run that was admitted and asked for."""
        thread, run = thread or uuid7(), uuid7()
        await here.admit_run(who, thread, run, replaces=replaces)
        await self.write(thread, run, ThreadCreated(user=who.user), RunRequested())
        return thread, run

    async def write(self, thread: str, run: str, *events: Event) -> None:
        for event in events:
            await Threads(self.log).decide(thread, lambda _, event=event: [event], actor="t", run=run)  # type: ignore[misc]

    async def end(self, run: tuple[str, str]) -> None:
        await self.write(*run, RunStarted(attempt=1, worker="w", lease=1), RunCompleted())


@pytest.fixture
def world(log: EventLog) -> World:
    return World(log)


async def test_runs_at_a_time(world: World) -> None:
    world.config = settings.Limits(max_concurrent_runs=2)
    one, other = world.process(), world.process()
    first, _ = await world.run(one), await world.run(other)
    for here in (one, other):
        with pytest.raises(TooMany) as caught:
            await here.admit_run(ADA, "t", "r")
        assert caught.value.code == "too_many_runs"
    await world.run(one, BOB)
    await world.end(first)
    await world.run(other)
    with pytest.raises(TooMany):
        await one.admit_run(ADA, "t", "r")


async def test_no_more_get_in_at_once_than_may(world: World) -> None:
    world.config = settings.Limits(max_concurrent_runs=3)
    processes = [world.process(), world.process()]
    tries = [world.run(processes[n % 2]) for n in range(12)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    refused = [one for one in results if isinstance(one, TooMany)]
    assert (len(refused), len(results)) == (9, 12), results


async def test_a_run_that_replaces_others_of_its_thread(world: World) -> None:
    world.config = settings.Limits(max_concurrent_runs=1)
    here = world.process()
    thread, _ = await world.run(here)
    run = uuid7()
    await here.admit_run(ADA, thread, run, replaces=True)
    with pytest.raises(TooMany):
        await here.admit_run(ADA, "another", uuid7(), replaces=True)


async def test_erased_threads_and_unused_admissions_make_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.config = settings.Limits(max_concurrent_runs=1)
    here = world.process()
    thread, run = await world.run(here)
    await world.write(thread, run, ThreadErased(by="ada"))
    await here.admit_run(ADA, "never asked for", "r1")
    with pytest.raises(TooMany):
        await here.admit_run(ADA, "t", "r2")
    monkeypatch.setattr(limits, "REQUESTED_WITHIN", limits.REQUESTED_WITHIN * 0)
    await here.admit_run(ADA, "t", "r2")


async def test_the_place_of_a_refused_run(world: World) -> None:
    """Is given back for what was certainly not asked for, and only its own."""
    world.config = settings.Limits(max_concurrent_runs=2)
    here = world.process()
    await world.run(here)
    for _ in range(3):
        with pytest.raises(Refused):
            async with here.admitted(ADA, "t", uuid7()):
                raise Refused("busy")
    with pytest.raises(Unavailable):
        async with here.admitted(ADA, "t", "perhaps"):
            raise Unavailable("no answer")
    with pytest.raises(TooMany):
        async with world.process().admitted(ADA, "t", uuid7()):
            raise AssertionError


async def test_little_is_kept_of_admissions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEPT", 4)
    world.config = settings.Limits(max_concurrent_runs=2)
    here = world.process()
    for _ in range(9):
        await world.end(await world.run(here))
    kept = [record async for record in world.log.read(Aggregate(limits.KIND, "ada"))]
    assert len(kept) < 4
    fresh = world.process()
    await world.run(fresh), await world.run(fresh)
    with pytest.raises(TooMany):
        await fresh.admit_run(ADA, "t", "r")


async def test_tokens_of_a_day(world: World) -> None:
    world.config = settings.Limits(tokens_per_day=100)
    here = world.process()
    await world.spend("ada", 99)
    await here.admit_run(ADA, "t", "r")
    await world.spend("ada", 100)
    with pytest.raises(TooMany) as caught:
        await here.admit_run(ADA, "t", "r")
    assert caught.value.code == "token_budget"
    assert 1 <= caught.value.retry_after <= 24 * 3600 + 1
    await here.admit_run(BOB, "t", "r")


async def test_requests_in_a_minute(world: World) -> None:
    world.config = settings.Limits(requests_per_minute=3)
    here = world.process()
    for world.time in (0, 10, 20):
        here.admit_request(ADA)
    world.time = 50
    with pytest.raises(TooMany) as caught:
        here.admit_request(ADA)
    assert (caught.value.code, caught.value.retry_after) == ("too_many_requests", 10)
    here.admit_request(BOB)
    world.time = 60
    here.admit_request(ADA)
    with pytest.raises(TooMany):
        here.admit_request(ADA)


async def test_who_has_no_limits(world: World) -> None:
    world.config = settings.Limits(max_concurrent_runs=1, requests_per_minute=1, tokens_per_day=1)
    await world.spend(LOCAL.user, 10)
    here = world.process()
    for _ in range(3):
        here.admit_request(LOCAL)
        await here.admit_run(LOCAL, "t", uuid7())
    world.config = settings.Limits(requests_per_minute=1, exempt_admins=False)
    here.admit_request(LOCAL)
    with pytest.raises(TooMany):
        here.admit_request(LOCAL)
