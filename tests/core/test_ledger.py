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
from core.thread import ledger
from core.thread.fold import fold as folded
from core.thread.ledger import KIND, KIND_OF_ALL, Ledger, Ledgers, fold, posted
from core.thread.usage import Tokens
from tests.support.records import ai, log_of, record

pytestmark = pytest.mark.anyio

YESTERDAY = "2020-01-01T23:59:00.000000+00:00"


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
    assert total(await world.there.used("ada", YESTERDAY[:10])) == 10
    assert await world.post(world.here, "r2", 5) == (5, 5)
    assert await world.post(world.there, "r1", 10, 20, at=YESTERDAY) == (35, 35)
    assert await world.post(world.here, "r2", 6) == (6, 6)
    assert await world.posts(KIND, "ada") == 3


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


POSTS = st.lists(
    st.tuples(st.sampled_from(["2026-01-01", "2026-01-02"]), st.sampled_from("abc"), st.integers(1, 9)), max_size=12
)


@given(POSTS, st.integers(0, 12))
def test_folding_in_two_steps_is_folding_at_once(posts: list[tuple[str, str, int]], cut: int) -> None:
    state, records = Ledger(), list[Record]()
    for day, key, tokens in posts:
        for event in posted(state, day, key, {"m": Tokens(tokens, 0, 0, 1)}):
            records.append(record(len(records) + 1, event))
            state = fold(records[-1:], state)
    assert fold(records[cut:], fold(records[:cut], Ledger())) == fold(records, Ledger()) == state
    newest = max((day for day, _, _ in posts), default="")
    largest: dict[str, int] = {}
    for day, key, tokens in posts:
        if day == newest:
            largest[key] = max(tokens, largest.get(key, 0))
    assert total(state.on(newest)) == sum(largest.values())
