"""Places for runs: who starts next, who waits and is told so, who goes to another process, and who is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from core.bus.endpoint import Endpoint
from core.errors import Overloaded
from core.events import RunRequested, thread
from core.ids import uuid7
from core.runs.share import CLIENT, asking, share_of
from core.runtime import system
from core.runtime.governor import LAGS, Governor, Level, Occupied
from core.runtime.memory import Memory, tightest
from core.runtime.system import System
from tests.support.held import Held
from tests.support.nats import Nats, eventually

LEASE = 2


@asynccontextmanager
async def process(
    endpoint: Endpoint, views: Path, slots: int | None = 1, most_waiting: int = 100
) -> AsyncIterator[tuple[System, Held]]:
    actor = Held()
    async with (
        system.start(endpoint, views, lease_seconds=LEASE, slots=slots, most_waiting=most_waiting) as running,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(partial(running.serve, [actor], alone=False))
        yield running, actor
        tasks.cancel_scope.cancel()


@pytest.fixture
async def one(single: Nats, prefix: str, tmp_path: Path) -> AsyncIterator[tuple[System, Held]]:
    async with process(single.endpoint(prefix), tmp_path / "views.db") as running:
        yield running


async def ask(running: System, thread_id: str, user: str = "default") -> None:
    await running.intake.create_thread(thread_id, user=user)
    await running.intake.request_run(thread_id, uuid7(), RunRequested())


async def waiting(running: System, number: int) -> None:
    async def there() -> bool:
        return running.admission.waiting == number

    await eventually(there)


# ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_somebody_elses_run_is_the_next(one: tuple[System, Held]) -> None:
    running, actor = one
    for number in range(8):
        await ask(running, f"ada-{number}", "ada")
        await waiting(running, number)
    for number in range(2):
        await ask(running, f"bob-{number}", "bob")
    await waiting(running, 9)
    for number in range(1, 11):
        actor.end((await actor.until(number))[-1])
    order = await actor.until(10)
    assert order[0] == "ada-0"
    assert order.index("bob-0") <= 2, order
    assert order.index("bob-1") <= 4, order
    assert [name for name in order if name.startswith("ada")] == [f"ada-{number}" for number in range(8)]


async def test_without_accounts_by_client(one: tuple[System, Held]) -> None:
    """Tasks of channels say who asks; without that each thread is somebody."""
    running, actor = one
    CLIENT.set("client 192.0.2.1")
    for number in range(5):
        await ask(running, f"many-{number}")
        await waiting(running, number)
    CLIENT.set("client 192.0.2.2")
    await ask(running, "few")
    CLIENT.set("")
    await ask(running, "thread")
    await waiting(running, 6)
    for number in range(1, 8):
        actor.end((await actor.until(number))[-1])
    order = await actor.until(7)
    assert max(order.index("few"), order.index("thread")) <= 3, order


def test_whose_share() -> None:
    CLIENT.set("client 192.0.2.1")
    assert (share_of("ada"), share_of("default")) == ("user ada", "client 192.0.2.1")


async def test_a_run_that_no_request_wakes_counts_for_its_user(one: tuple[System, Held]) -> None:
    """The dispatcher wakes for what was appended: as goals go on, or by a process that died before it could wake."""
    running, actor = one
    for number in range(5):
        await running.intake.create_thread(f"ada-{number}", user="ada")
        await running.threads.decide(f"ada-{number}", lambda _: [RunRequested()], actor="goals", run=uuid7())
        await waiting(running, number)
    await ask(running, "bob", "bob")
    await waiting(running, 5)
    for number in range(1, 7):
        actor.end((await actor.until(number))[-1])
    order = await actor.until(6)
    assert order.index("bob") <= 2, order


def test_who_asks_goes_before_whose_thread_it_is() -> None:
    with asking("slack__U1"):
        assert share_of("slack__group__C1") == "user slack__U1"
    assert share_of("slack__group__C1") == "user slack__group__C1"


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_place_in_the_queue_is_told_to_every_process(
    one: tuple[System, Held], single: Nats, prefix: str, tmp_path: Path
) -> None:
    running, actor = one
    async with process(single.endpoint(prefix), tmp_path / "other.db") as (other, busy):
        for number in range(2):
            await ask(running, f"first-{number}", "ada")

        async def at_work() -> bool:
            return len(actor.begun) + len(busy.begun) == 2

        await eventually(at_work)
        for number in range(4):
            await ask(running, f"more-{number}", "ada")

        async def told() -> bool:
            places = [running.admission.ahead(thread(f"more-{number}")) for number in range(4)]
            return None not in places and 0 in places

        await eventually(told)

        async def told_to_the_other() -> bool:
            return all(other.admission.ahead(thread(f"more-{number}")) is not None for number in range(4))

        await eventually(told_to_the_other)
        assert running.admission.ahead(thread("first-0")) is None
        assert running.admission.bound == "the configuration: 1 run at a time"
        assert "runs.max_concurrent" in (running.admission.change or "")


async def test_waiting_outlives_the_process(single: Nats, prefix: str, tmp_path: Path) -> None:
    async with process(single.endpoint(prefix), tmp_path / "views.db") as (running, _):
        for number in range(4):
            await ask(running, f"t-{number}", "ada")
        await waiting(running, 3)
    async with process(single.endpoint(prefix), tmp_path / "views.db", slots=8) as (_, actor):
        assert set(await actor.until(4)) == {f"t-{number}" for number in range(4)}


async def test_far_beyond_the_bound_a_run_is_refused(single: Nats, prefix: str, tmp_path: Path) -> None:
    async with process(single.endpoint(prefix), tmp_path / "views.db", most_waiting=2) as (running, actor):
        for number in range(3):
            await ask(running, f"t-{number}", "ada")
        await waiting(running, 2)
        with pytest.raises(Overloaded) as refusal:
            await ask(running, "late", "bob")
        assert refusal.value.seconds >= 5
        actor.end("t-0")
        await actor.until(2)
        await ask(running, "late", "bob")


async def test_what_waits_goes_to_a_process_with_room(
    one: tuple[System, Held], single: Nats, prefix: str, tmp_path: Path
) -> None:
    running, actor = one
    for number in range(5):
        await ask(running, f"t-{number}", "ada")
    await waiting(running, 4)
    async with process(single.endpoint(prefix), tmp_path / "other.db", slots=8) as (_, free):
        assert len(await free.until(4)) == 4
        assert actor.begun == ["t-0"]
        await ask(running, "later", "ada")
        assert "later" in await free.until(5)
        for number in range(5):
            actor.end(f"t-{number}")


async def test_a_run_that_waits_for_others_gives_its_place_away(one: tuple[System, Held]) -> None:
    running, actor = one
    held = running.admission.line("lead", None)
    await ask(running, "parent")
    await actor.until(1)
    await ask(running, "child")
    await waiting(running, 1)
    wakeup = next(iter(running.queue._in_progress.values()))
    with wakeup.idle():
        assert "child" in await actor.until(2)
    assert held.working == 2, "one more than there are places, for a while"


# ── the governor ────────────────────────────────────────────────────────────────────────────────────────────────────


def memory(part: float, limit: int = 1 << 33) -> Callable[[], Memory]:
    return lambda: Memory("the control group's memory", int(part * limit), limit, "raise it")


def levels(governor: Governor, lags: Sequence[float]) -> list[Level]:
    """Returns the level after each second of a lag."""
    seen = []
    for lag in lags:
        for _ in range(LAGS):
            governor.note(lag)
        seen.append(governor.level)
    return seen


def test_lag_bounds_with_hysteresis() -> None:
    free, tight, full = Level
    governor = Governor(memory(0.1))
    governor.look()
    assert levels(governor, [0.0, 0.09, 0.11, 0.07, 0.04]) == [free, free, tight, tight, free]
    assert levels(governor, [0.4, 0.2, 0.14, 0.06, 0.01]) == [full, full, tight, tight, free]
    assert (governor.by, governor.bound) == (None, None)
    for _ in range(LAGS // 2 - 1):
        governor.note(5.0)
    assert governor.level == free, "a single slow step changes nothing"
    for _ in range(LAGS):
        governor.note(5.0, busy=0.3)
    assert governor.level == free, "others on the machine make it late"


def test_time_on_a_processor_and_waiting_for_one(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("1500000000 500000000 7\n")
    assert Occupied(path).seconds() == 2.0
    absent = Occupied(tmp_path / "absent")
    assert absent.seconds() <= absent.seconds()


def test_memory_bounds_with_hysteresis() -> None:
    used = [0.1]
    governor = Governor(lambda: memory(used[0])())
    seen = []
    for used[0] in (0.1, 0.84, 0.86, 0.8, 0.74):
        governor.look()
        seen.append(governor.level)
    assert seen == [Level.FREE, Level.FREE, Level.FULL, Level.FULL, Level.FREE]
    governor = Governor(memory(0.9))
    governor.look()
    assert governor.by == "memory"
    assert "memory" in (governor.bound or "")
    assert governor.change == "raise it"
    assert governor.reached == {"memory": pytest.approx(0.9 / 0.85), "lag": 0}
    levels(governor, [0.2])
    assert governor.by == "memory", "of two, the memory is said"
    assert governor.reached["lag"] == pytest.approx(2)


def test_between_two_looks_runs_take_what_is_left() -> None:
    governor = Governor(memory(0.5, limit=10 << 20))
    governor.look()
    taken = 0
    while governor.level == Level.FREE:
        governor.took()
        taken += 1
    assert taken == 3, "of ten MiB five are used, and one and a half are kept"


FILES = {
    "no limit": ({"fs/memory.max": "max", "fs/memory.current": "5"}, "0::/\n", "the machine's memory", 0.25),
    "version 2": (
        {"fs/a/memory.max": "1000", "fs/a/memory.current": "900", "fs/a/memory.stat": "inactive_file 100\nfile 3"},
        "0::/a\n",
        "the control group's memory",
        0.8,
    ),
    "of a group around it": (
        {"fs/a/memory.max": "1000", "fs/a/memory.current": "900", "fs/a/b/memory.max": "max"},
        "0::/a/b\n",
        "the control group's memory",
        0.9,
    ),
    "version 1": (
        {
            "fs/memory/a/memory.limit_in_bytes": "1000",
            "fs/memory/a/memory.usage_in_bytes": "700",
            "fs/memory/a/memory.stat": "total_inactive_file 200\n",
        },
        "3:cpu:/b\n2:memory:/a\n",
        "the control group's memory",
        0.5,
    ),
    "outside of what is mounted": (
        {"fs/memory.max": "1000", "fs/memory.current": "600"},
        "0::/../../x\n",
        "the control group's memory",
        0.6,
    ),
}


@pytest.mark.parametrize(("files", "groups", "by", "part"), FILES.values(), ids=FILES)
def test_the_nearest_limit(files: dict[str, str], groups: str, by: str, part: float, tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 4000 kB\nMemFree: 1 kB\nMemAvailable: 3000 kB\n",
        "proc/self/cgroup": groups,
        **files,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    nearest = tightest(tmp_path / "proc", tmp_path / "fs")
    assert nearest is not None
    assert (nearest.by, round(nearest.part, 3)) == (by, part)


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    governor = Governor(lambda: tightest(tmp_path, tmp_path))
    governor.look()
    assert governor.level == Level.FREE
