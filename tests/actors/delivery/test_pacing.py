"""The pace of calls, by a clock that only moves when it is told to."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from actors.delivery import pacing
from actors.delivery.pacing import MINUTE, SECOND, Later, Schedule, Slots, Turns
from core.chat.port import Pace

pytestmark = pytest.mark.anyio
PACE = Pace(edit_seconds=1.0, group_edit_seconds=3.0, send_seconds=1.0, group_per_minute=8, per_second=3)


def test_messages_of_a_chat_keep_their_distance() -> None:
    schedule = Schedule(PACE)
    assert schedule.until_send("a", False, 100.0) == 0.0
    schedule.sent("a", 100.0)
    assert schedule.until_send("a", False, 100.25) == pytest.approx(0.75)
    assert schedule.until_send("b", False, 100.25) == 0.0
    assert schedule.until_send("a", False, 101.0) == 0.0


def test_a_group_has_its_minute() -> None:
    schedule = Schedule(PACE)
    for second in range(8):
        assert schedule.until_send("g", True, 10.0 * second) == 0.0
        schedule.sent("g", 10.0 * second if second < 7 else 60.0)
    assert schedule.until_send("g", True, 60.9) == pytest.approx(MINUTE - 60.9)
    assert schedule.until_send("g", False, 61.5) == 0.0
    assert schedule.until_send("g", True, MINUTE) == 0.0


def test_an_album_has_as_much_of_a_groups_minute_as_it_has_messages() -> None:
    schedule = Schedule(PACE)
    schedule.sent("g", 0.0, 3)
    assert schedule.until_send("g", True, 10.0, 5) == 0.0
    assert schedule.until_send("g", True, 10.0, 6) == pytest.approx(MINUTE - 10.0)
    assert schedule.until_send("g", True, 10.0, 10) == pytest.approx(MINUTE - 10.0), "more than a minute has"
    assert schedule.until_send("a", False, 10.0, 10) == 0.0


def test_edits_leave_room_for_messages() -> None:
    schedule = Schedule(PACE)
    for second in range(6):
        schedule.edited("g", f"d{second}", float(second))
    assert schedule.until_edit("g", True, "new", 10.0) > 0.0
    assert schedule.until_send("g", True, 10.0) == 0.0


@pytest.mark.parametrize(("group", "interval"), [(False, 1.0), (True, 3.0)])
def test_edits_of_a_message_keep_their_distance(group: bool, interval: float) -> None:
    schedule = Schedule(PACE)
    assert schedule.until_edit("a", group, "d", 100.0) == 0.0, "the first at once"
    schedule.edited("a", "d", 100.0)
    assert schedule.until_edit("a", group, "d", 100.5) == pytest.approx(interval - 0.5)
    assert schedule.until_edit("a", group, "other", 100.5) == 0.0
    assert schedule.until_send("a", group, 100.5) == 0.0


def test_a_pause_is_kept_exactly() -> None:
    schedule = Schedule(PACE)
    schedule.refused("a", 130.0)
    schedule.refused("a", 120.0)
    assert schedule.until_send("a", False, 100.0) == schedule.until_edit("a", False, "d", 100.0) == 30.0
    assert schedule.until_send("b", False, 100.0) == 0.0
    assert schedule.until_send("a", False, 130.0) == 0.0


def test_the_account_has_its_second() -> None:
    schedule = Schedule(PACE)
    for _ in range(3):
        assert schedule.until_call(5.0) == 0.0
        schedule.called(5.0)
    assert schedule.until_call(5.5) == pytest.approx(SECOND - 0.5)
    assert schedule.until_call(5.0 + SECOND) == 0.0


def test_chats_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "KEPT_CHATS", 10)
    schedule = Schedule(PACE)
    schedule.refused("refused", 10_000.0)
    for number in range(50):
        schedule.sent(f"c{number}", float(number) * MINUTE)
    assert len(schedule._chats) < 15
    assert schedule.until_send("refused", False, 0.0) == 10_000.0


class Clock:
    """Time that passes while somebody sleeps, and not otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        monkeypatch.setattr(anyio, "sleep", self.sleep)

    @property
    def sleeps(self) -> bool:
        return bool(self._sleepers)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        event = anyio.Event()
        self._sleepers.append((self.now + seconds, len(self._sleepers), event))
        await event.wait()

    async def run(self, until: Callable[[], bool]) -> None:
        """Lets time pass until a condition holds."""
        for _ in range(100_000):
            await anyio.lowlevel.checkpoint()
            if until():
                return
            if self._sleepers:
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                self._sleepers.sort()
                self.now, _, event = self._sleepers.pop(0)
                event.set()
        raise AssertionError("nothing comes of it any more")


async def test_messages_go_before_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = Clock(monkeypatch), list[str]()
    turns = Turns(PACE, clock)
    turns.schedule.sent("a", 0.0)

    async def send() -> None:
        await turns.send("a", False)
        order.append("message")

    async def edit() -> None:
        await turns.edit("a", False, "d")
        order.append("edit")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        tasks.start_soon(edit)
        await clock.run(lambda: len(order) == 2)
    assert order == ["message", "edit"]


async def test_signs_take_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    turns = Turns(PACE, clock)
    assert [turns.spare() for _ in range(3)] == [True, True, False]
    await turns.call()
    clock.now = SECOND
    assert turns.spare()


async def test_an_edit_waits_for_messages_of_other_chats(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = Clock(monkeypatch), list[str]()
    turns = Turns(PACE, clock)
    for _ in range(PACE.per_second):
        turns.schedule.called(0.0)

    async def edit() -> None:
        await turns.edit("a", False, "d")
        order.append("edit")

    async def send(chat: str) -> None:
        await turns.send(chat, False)
        order.append("message")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(edit)
        await clock.run(lambda: clock.sleeps)
        for number in range(3):
            tasks.start_soon(send, f"c{number}")
        await clock.run(lambda: len(order) == 4)
    assert order == ["message"] * 3 + ["edit"]


async def test_calls_of_many_chats_share_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, times = Clock(monkeypatch), list[float]()
    turns = Turns(PACE, clock)

    async def send(chat: str) -> None:
        await turns.send(chat, True)
        times.append(clock.now)

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(send, f"c{number % 15}")
        await clock.run(lambda: len(times) == 30)
    assert all(later - earlier >= 1.0 for earlier, later in zip(times, times[3:], strict=False))
    assert times[-1] < 30 / 3 * SECOND + 1.0, "and no slower than it must be"


async def test_a_long_wait_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(PACE, Clock(monkeypatch))
    turns.refused("a", 60.0)
    with pytest.raises(Later) as later:
        await turns.send("a", False)
    assert later.value.seconds == 60.0


@pytest.mark.parametrize("many", ["edit", "send"])
@pytest.mark.parametrize("few", ["edit", "send"])
async def test_who_has_many_calls_does_not_hold_up_others(many: str, few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One person's answers in 60 chats, and one of somebody else, who comes later."""
    clock, order = Clock(monkeypatch), list[str]()
    turns = Turns(PACE, clock)

    async def call(how: str, chat: str, share: str) -> None:
        await (turns.send(chat, False, share) if how == "send" else turns.edit(chat, False, "d", share))
        order.append(share)

    async with anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(call, many, f"c{number}", "one")
        await clock.run(lambda: len(order) == 10)
        tasks.start_soon(call, few, "other", "other")
        await clock.run(lambda: len(order) == 61)
    assert order.index("other") <= 10 + PACE.per_second


async def test_calls_that_are_given_up_leave_the_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever of those that wait is cancelled, the one that watches the clock, too."""
    clock, order = Clock(monkeypatch), list[int]()
    turns = Turns(PACE, clock)
    scopes = [anyio.CancelScope() for _ in range(20)]

    async def call(number: int) -> None:
        with scopes[number]:
            await turns.call(f"p{number % 3}")
            order.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(call, number)
        await clock.run(lambda: len(order) == PACE.per_second)
        left = [number for number in range(20) if number not in order]
        for number in left[::2]:
            scopes[number].cancel()
        await clock.run(lambda: len(order) == PACE.per_second + len(left[1::2]))
    assert sorted(order[PACE.per_second :]) == left[1::2]


@pytest.mark.parametrize("how", ["edit", "send"])
async def test_a_fifth_of_a_second_is_for_first_calls(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call for somebody does not wait at all while one person's calls fill the account's seconds; and these
    do, as far as they may."""
    clock, order = Clock(monkeypatch), list[tuple[str, float]]()
    turns = Turns(PACE._replace(per_second=30), clock)

    async def call(chat: str, share: str) -> None:
        await (turns.send(chat, False, share) if how == "send" else turns.edit(chat, False, "d", share))
        order.append((share, clock.now))

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(call, f"c{number}", "one")
        for other in range(3):
            await clock.run(lambda other=other: len(order) >= 30 + 25 * other)  # type: ignore[misc]
            began = clock.now
            tasks.start_soon(call, f"other{other}", f"other{other}")
            await clock.run(lambda other=other: order[-1][0] == f"other{other}")  # type: ignore[misc]
            assert order[-1] == (f"other{other}", began)
        await clock.run(lambda: len(order) == 103)
    times = [at for _, at in order]
    assert all(later - earlier >= 1.0 for earlier, later in zip(times, times[30:], strict=False))
    assert [at for share, at in order if share == "one"][24 * 4 - 4] <= 3 * SECOND


async def test_who_has_slots_leaves_as_many_free_and_waits_for_own_turns() -> None:
    slots, working, release = Slots(8), list[str](), anyio.Event()

    async def work(share: str) -> None:
        async with slots.slot(share):
            working.append(share)
            await release.wait()

    async with anyio.create_task_group() as tasks:
        for share, most in (("one", 4), ("two", 2), ("three", 1)):
            for _ in range(100):
                tasks.start_soon(work, share)
            await anyio.wait_all_tasks_blocked()
            assert working.count(share) == most
        tasks.start_soon(work, "other")
        await anyio.wait_all_tasks_blocked()
        assert working[-1] == "other"
        given_up = anyio.CancelScope()
        with given_up:
            given_up.cancel()
            await work("other")
        release.set()
    assert {share: working.count(share) for share in ("one", "two", "three", "other")} == {
        "one": 100,
        "two": 100,
        "three": 100,
        "other": 1,
    }
    assert (slots._free, slots._taken) == (8, {})
