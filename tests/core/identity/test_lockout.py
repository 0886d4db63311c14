"""Failures count for a while, and lock for a while; on every process alike."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from core.events import Aggregate
from core.identity import lockout
from core.identity.errors import TooMany
from core.identity.lockout import LOCKED, Lockout
from core.log.store import EventLog


class Clock:
    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def locked(door: Lockout, *names: str) -> bool:
    try:
        await door.check(*names)
    except TooMany as error:
        return 0 < error.retry_after <= LOCKED.total_seconds()
    return False


async def test_five_lock_for_five_minutes(log: EventLog, clock: Clock) -> None:
    doors = [Lockout(log, clock), Lockout(log, clock)]
    for n in range(5):
        assert not await locked(doors[0], "a"), n
        await doors[n % 2].failed("a")
    assert [await locked(door, "b", "a") for door in doors] == [True, True]
    assert not await locked(doors[0], "b")
    clock.ahead = LOCKED - timedelta(seconds=5)
    with pytest.raises(TooMany):
        await doors[0].failed("a")
    assert await locked(doors[0], "a")
    clock.ahead = LOCKED + timedelta(seconds=5)
    assert not await locked(doors[0], "a"), "and the failures before do not count any more"
    await doors[0].failed("a")
    assert not await locked(doors[0], "a")


async def test_many_tries_at_once_are_no_more_than_five(log: EventLog) -> None:
    doors = [Lockout(log), Lockout(log)]
    results = await asyncio.gather(*(doors[n % 2].failed("a") for n in range(20)), return_exceptions=True)
    assert sum(result is None for result in results) == 5, results
    assert sum(isinstance(result, TooMany) for result in results) == 15


async def test_old_failures_do_not_count(log: EventLog, clock: Clock) -> None:
    door = Lockout(log, clock)
    for _ in range(4):
        await door.failed("a")
    clock.ahead = LOCKED + timedelta(seconds=1)
    await door.failed("a")
    assert not await locked(door, "a")


async def test_success_forgets_failures(log: EventLog, clock: Clock) -> None:
    door = Lockout(log, clock)
    for _ in range(3):
        for _ in range(4):
            await door.failed("a")
        await door.succeeded("a")
    assert not await locked(door, "a")
    await door.succeeded("never failed")
    assert [r async for r in log.read(Aggregate(lockout.KIND, "never failed"))] == []


async def test_little_is_kept(log: EventLog) -> None:
    door = Lockout(log)
    for _ in range(5):
        await door.failed("a")
    assert [r.type async for r in log.read(Aggregate(lockout.KIND, "a"))] == ["signin.locked"]
    assert await locked(Lockout(log), "a")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("what?", "what?", True),
        ("", "x", False),
    ],
)
def test_addresses(one: str, other: str, same: bool) -> None:
    assert (lockout.of_address(one) == lockout.of_address(other)) == same
    assert one == "" or one not in lockout.of_address(one)
