"""Work that ends its process becomes a dead letter after five attempts; work that was merely there does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from core.bus.queue import Hint
from core.bus.streams import counts, find
from core.events import RunRequested, ThreadAnnotated, ThreadCreated, thread
from core.runtime import letters as dlq
from core.runtime import system
from core.runtime.attempts import DEADLY, LATE, SUSPECT, Mark
from core.runtime.system import System
from tests.core import deadly
from tests.support import warm
from tests.support.nats import Nats, append, eventually, read

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]
HEALTHY = 4


@asynccontextmanager
async def watching(single: Nats, prefix: str, home: Path) -> AsyncIterator[System]:
    async with system.start(single.endpoint(prefix), home / "views.db", lease_seconds=2, slots=1) as running:
        yield running


async def started(single: Nats, prefix: str, home: Path, kind: str) -> warm.Process:
    arguments = single.url, prefix, str(home / "deadly.db"), kind
    process = await asyncio.to_thread(warm.start, "tests.core.deadly", *arguments)
    assert await process.line() in (b"ready\n", b"begun\n", b"")
    return process


async def deaths(
    process: warm.Process, single: Nats, prefix: str, home: Path, kind: str, done: asyncio.Task[None]
) -> int:
    """Starts the process again after each death, until `done`. Returns the number of deaths."""
    number = 0
    while True:
        ended = asyncio.ensure_future(process.waited())
        await asyncio.wait([ended, done], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            process.kill()
            await ended
            done.result()
            return number
        assert process.returncode == deadly.DIED
        number += 1
        process = await started(single, prefix, home, kind)


async def answered(running: System, count: int) -> None:
    async def all_of_them() -> bool:
        names = [f"ok{number}" for number in range(count)]
        logs = [await read(running.log, thread(name)) for name in names]
        return all(any(isinstance(record.event, deadly.MarkPlaced) for record in records) for records in logs)

    await eventually(all_of_them)


async def letters(running: System) -> list[dlq.Letter]:
    return [letter async for letter in dlq.letters(running.bus)]


async def marks(running: System) -> list[str]:
    """The attempts that are stored, of any actor."""
    names = running.bus.names
    return [subject for subject in await counts(running.bus, "place", names.place("*")) if "@" in subject]


@pytest.mark.parametrize("kind", ["deadly", "inturn", "timed"])
async def test_a_handler_that_ends_its_process(single: Nats, prefix: str, tmp_path: Path, kind: str) -> None:
    async with watching(single, prefix, tmp_path) as running:
        first = await started(single, prefix, tmp_path, kind)
        if kind == "timed":
            await running.queue.wake(kind, thread("t1"), Hint(), key="t1")
        else:
            await append(running.log, thread("t1"), ThreadAnnotated(metadata={"die": True}))
        for number in range(HEALTHY):
            await append(running.log, thread(f"ok{number}"), ThreadAnnotated(metadata={}))

        async def over() -> None:
            await eventually(lambda: letters(running), 180)
            await answered(running, HEALTHY)

        done = asyncio.ensure_future(over())
        dies_of_both = kind != "inturn"
        assert await deaths(first, single, prefix, tmp_path, kind, done) == DEADLY + 1 + dies_of_both
        placed = [
            record for record in await read(running.log, thread("t1")) if isinstance(record.event, deadly.MarkPlaced)
        ]
        assert len(placed) == (kind == "inturn"), "it is called before that becomes a dead letter"
        [letter] = await letters(running)
        assert (letter.actor.partition("~")[0], letter.aggregate) == (kind, thread("t1"))
        assert letter.body.reason == "5 processes ended while they handled it"
        await eventually(lambda: _no(marks(running)))


async def _no(listed: object) -> bool:
    return not await listed  # type: ignore[misc]


async def test_a_run_whose_preparation_ends_its_process(single: Nats, prefix: str, tmp_path: Path) -> None:
    async with watching(single, prefix, tmp_path) as running:
        first = await started(single, prefix, tmp_path, "lead")
        for name, die in (("t1", True), ("t2", False)):
            await append(running.log, thread(name), ThreadCreated(user="ada"))
            await running.intake.request_run(name, f"run-{name}", RunRequested(input={"die": die}))

        async def over() -> None:
            async def ended() -> bool:
                states = [await running.threads.load(name) for name in ("t1", "t2")]
                return not any(run.open for state in states for run in state.runs.values())

            await eventually(ended, 180)

        done = asyncio.ensure_future(over())
        assert await deaths(first, single, prefix, tmp_path, "lead", done) == DEADLY + 1
        [died, well] = [await running.threads.load(name) for name in ("t1", "t2")]
        assert (error := died.runs["run-t1"].error) is not None
        assert error.error == "Stalled"
        assert well.runs["run-t2"].status == "success"
        assert await letters(running) == []


async def test_healthy_work_outlives_a_storm_of_kills(single: Nats, prefix: str, tmp_path: Path) -> None:
    """The process is killed more often than a wake-up may die, each time with work in its hands."""
    dice = random.Random(26)
    async with watching(single, prefix, tmp_path) as running:
        process = await started(single, prefix, tmp_path, "deadly")
        for number in range(4 * HEALTHY):
            await append(running.log, thread(f"ok{number}"), ThreadAnnotated(metadata={"seconds": 0.05}))
        for _ in range(DEADLY + 1 + 2):
            for _ in range(dice.randint(1, 3)):
                await process.line()
            process.kill()
            await process.waited()
            process = await started(single, prefix, tmp_path, "deadly")
        await answered(running, 4 * HEALTHY)
        assert await letters(running) == []
        process.kill()
        await process.waited()


async def test_work_that_lives_long_outlives_kills_and_does_not_hold_up_what_was_killed_with_it(
    single: Nats, prefix: str, tmp_path: Path
) -> None:
    """The other one has died once more, so it waits until the one that lives long gives it its turn."""
    end = tmp_path / "end"
    async with watching(single, prefix, tmp_path) as running:
        process = await started(single, prefix, tmp_path, "deadly")
        await append(running.log, thread("ok0"), ThreadAnnotated(metadata={"until": str(end)}))
        process = await killed_at(1, process, single, prefix, tmp_path)
        await append(running.log, thread("long"), ThreadAnnotated(metadata={"seconds": 3600}))
        for _ in range(SUSPECT + 1):
            process = await killed_at(2, process, single, prefix, tmp_path)
        end.touch()
        await answered(running, 1)
        deaths = 0.0
        for _ in range(DEADLY + 1):
            deaths = await eventually(partial(_late, running, deaths))
            process = await killed_at(0, process, single, prefix, tmp_path)
        for _ in range(DEADLY - SUSPECT + 1):
            deaths = await eventually(partial(_late, running, deaths))
            for at_work in (0, *[1] * SUSPECT):
                process = await killed_at(at_work, process, single, prefix, tmp_path)
        await eventually(partial(_late, running, deaths))
        assert await letters(running) == [], "it has died early more often than it may, and went on in between"
        process.kill()
        await process.waited()


async def killed_at(at_work: int, process: warm.Process, single: Nats, prefix: str, home: Path) -> warm.Process:
    """Kills a process that has begun with so much work. Returns the next one."""
    while at_work:
        line = await process.line()
        assert line, "it has ended"
        at_work -= line == b"begun\n"
    process.kill()
    await process.waited()
    return await asyncio.to_thread(
        warm.start, "tests.core.deadly", single.url, prefix, str(home / "deadly.db"), "deadly"
    )


async def _late(running: System, before: float) -> float:
    """Returns the weight of the late deaths of a wake-up that has gone on, with that of its next one, if it has grown;
    0 for none.
    """
    stored = [await find(running.bus, "place", {"last_by_subj": subject}) for subject in await marks(running)]
    known = [msgspec.json.decode(each.data, type=Mark) for each in stored if each]
    return max((late for mark in known if mark.charge == LATE and (late := mark.late + LATE) > before), default=0.0)
