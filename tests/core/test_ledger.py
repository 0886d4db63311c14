"""The ledger of a day: the same sums in every process, whatever is posted twice, late, or side by side."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import Aggregate, ModelCompleted, Record, RunRequested, RunStarted, ThreadCreated
from core.ids import now
from core.log.store import EventLog
from core.runs import ledger
from core.runs.ledger import KIND, KIND_OF_ALL, Ledger, Ledgers, fold, posted
from core.thread.fold import fold as folded
from core.thread.usage import Tokens
from tests.support.records import ai, log_of, record

pytestmark = pytest.mark.anyio

YESTERDAY = "2020-01-01T23:59:00.000000+00:00"
AHEAD = "2100-01-01T12:00:00.000000+00:00"


class World:
    """Processes that share a log."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.here, self.there = Ledgers(log), Ledgers(log)

    async def post(
        self, by: Ledgers, run: str, *tokens: int, user: str = "ada", at: str | None = None
    ) -> tuple[int, int]:
        """Posts a run whose answers used so many tokens. Returns what the user, and everybody, used today."""
        usages = [{"input_tokens": count, "output_tokens": 0} for count in tokens]
        answers = [ModelCompleted(message={**ai(f"a{n}"), "usage_metadata": usage}) for n, usage in enumerate(usages)]
        started = RunStarted(attempt=1, worker="w", lease=1, model="m")
        state = folded(log_of(ThreadCreated(user=user), *((e, run) for e in (RunRequested(), started, *answers))))
        asked = msgspec.structs.replace(state.runs[run], created_at=at or now())
        today = await by.post(state, asked, everybody=True)
        return total(today.user), total(today.everybody)

    async def posts(self, kind: str, identity: str) -> int:
        return len([record async for record in self.log.read(Aggregate(kind, identity))])


def total(used: ledger.Used) -> int:
    return sum(tokens.total for tokens in used.values())


@pytest.fixture
def world(log: EventLog) -> World:
    return World(log)


async def test_every_process_has_the_same_sums(world: World) -> None:
    assert await world.post(world.here, "r1") == (0, 0)
    assert await world.post(world.here, "r1", 10) == (10, 10)
    assert await world.post(world.there, "r2", 5) == (15, 15)
    assert await world.post(world.here, "r3", 1, user="bob") == (1, 16)
    assert await world.post(world.there, "r1", 10, 20) == (35, 36)
    assert await world.post(Ledgers(world.log), "r1", 10, 20) == (35, 36)
    assert [await world.posts(KIND, user) for user in ("ada", "bob")] == [3, 1]
    assert total(await world.there.used("ada", now()[:10])) == 35
    assert total(await world.there.used("nobody", now()[:10])) == 0


async def test_a_worker_that_knows_less_takes_nothing_back(world: World) -> None:
    await world.post(world.here, "r1", 10, 20)
    assert await world.post(world.there, "r1", 10) == (30, 30)


async def test_a_run_counts_for_the_day_on_which_it_was_asked_for(world: World) -> None:
    """Yet it is held to the budget of today with all that it has used, which nobody else is."""
    assert await world.post(world.here, "r1", 10, at=YESTERDAY) == (10, 10)
    assert await world.post(world.here, "r2", 5) == (5, 5)
    assert await world.post(world.there, "r1", 10, 20, at=YESTERDAY) == (35, 35)
    assert await world.post(world.here, "r2", 6) == (6, 6)
    assert await world.posts(KIND, "ada") == 2


async def test_yesterday_is_counted_on_while_it_is_one_of_the_last_days(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as then:
        then.setattr(ledger, "now", lambda: YESTERDAY)
        await world.post(world.here, "r1", 10, at=YESTERDAY)
    await world.post(world.here, "r2", 5)
    await world.post(world.there, "r1", 10, 20, at=YESTERDAY)
    assert total(await world.here.used("ada", YESTERDAY[:10])) == 30
    assert total(await world.here.used("ada", now()[:10])) == 5


@pytest.mark.parametrize("kept", [ledger.KEPT, 3], ids=["few posts", "whole posts"])
async def test_a_clock_that_was_ahead_takes_nothing_from_today(
    world: World, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "KEPT", kept)
    await world.post(world.here, "r1", 10)
    with monkeypatch.context() as then:
        then.setattr(ledger, "now", lambda: AHEAD)
        assert await world.post(world.here, "r2", 7, at=AHEAD) == (7, 7)
        assert await world.post(world.here, "r1", 10, 1) == (18, 18)  # of a day that seems to be over
    for number in range(3, 9):
        await world.post(world.there, f"r{number}", 1)
    assert await world.post(Ledgers(world.log), "last") == (17, 17)


async def test_a_run_of_long_ago_ends_no_day(world: World) -> None:
    await world.post(world.here, "r1", 10)
    for day in range(1, 5):
        at = f"2020-01-0{day}T12:00:00.000000+00:00"
        assert await world.post(world.here, f"old{day}", 1, at=at) == (11, 11)
    assert await world.post(Ledgers(world.log), "last") == (10, 10)


async def test_runs_side_by_side(world: World) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            by = (world.here, world.there)[number % 2]
            tasks.create_task(world.post(by, f"r{number}", number, user=f"u{number % 3}"))
    fresh = Ledgers(world.log)
    assert await world.post(fresh, "last", user="u0") == (sum(range(0, 20, 3)), sum(range(20)))


async def test_old_posts_are_purged_and_nothing_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEPT", 4)
    for number in range(1, 14):
        by = (world.here, world.there, Ledgers(world.log))[number % 3]
        await world.post(by, f"r{number}", number)
    assert await world.posts(KIND, "ada") < 8
    assert await world.posts(KIND_OF_ALL, ledger.EVERYBODY) < 8
    assert await world.post(Ledgers(world.log), "last") == (91, 91)


DAYS = [f"2026-01-0{day}" for day in range(1, 5)]
POSTS = st.lists(
    st.tuples(st.sampled_from(DAYS), st.sampled_from(DAYS), st.sampled_from("abc"), st.integers(1, 9)), max_size=12
)


@given(POSTS, st.integers(0, 12), st.sampled_from([2, 3, ledger.KEPT]))
def test_folding_in_two_steps_is_folding_at_once(posts: list[tuple[str, str, str, int]], cut: int, kept: int) -> None:
    """Whatever day the posters' clocks show: the last days that were begun are there, complete."""
    state, records, whole = Ledger(), list[Record](), 0
    days: dict[str, dict[str, int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "KEPT", kept)
        for day, today, key, tokens in posts:
            events = posted(state, day, key, {"m": Tokens(tokens, 0, 0, 1)}, today)
            if events and state.count % kept == kept - 1:
                whole = len(records)
            for event in events:
                records.append(record(len(records) + 1, event))
                state = fold(records[-1:], state)
            if day in days or day >= today:
                largest = days.setdefault(day, {})
                largest[key] = max(tokens, largest.get(key, 0))
                days = dict(list(days.items())[-ledger.DAYS :])
    assert fold(records[cut:], fold(records[:cut], Ledger())) == fold(records, Ledger()) == state
    cold = fold(records[whole:], Ledger())
    assert list(cold.days.items()) == list(state.days.items())
    assert {day: total(state.on(day)) for day in state.days} == {day: sum(of.values()) for day, of in days.items()}
