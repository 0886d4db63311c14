"""Actors of others in two servers that die at random between an effect and its acknowledgement, and come back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest

from core.bus import embedded
from core.bus.connection import connect
from core.bus.endpoint import Endpoint
from core.events import Event, ThreadAnnotated, ThreadCreated, thread
from core.log.store import EventLog
from core.runtime.own_state import own_state
from tests.e2e.mortal import DEATHS, NumbersAdded
from tests.e2e.servers import Server, serving
from tests.support.model_server import ModelServer
from tests.support.nats import read
from tests.support.workers import configure, reaching

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]

NUMBERS = range(1, 7)
THREADS = ("t1", "t2", "t3")


async def keep(server: Server, deaths: list[Server]) -> None:
    while True:
        await server.process.waited()
        deaths.append(server)
        await server.start()


async def append(log: EventLog, name: str, events: Sequence[Event]) -> None:
    for event in events:
        tip = await log.tip(thread(name))
        await log.append(thread(name), [event], expected=tip, actor="test")


async def test_deaths_lose_nothing_double_nothing_and_change_no_order(tmp_path: Path) -> None:
    async with ModelServer({}) as models, embedded.start(tmp_path / "nats") as nats:
        config = configure(
            tmp_path / "config.yaml",
            models,
            runs={"lease_seconds": 2},
            nats={"url": nats.url, "token": nats.token},
            actors=["tests.e2e.mortal:Steps", "tests.e2e.mortal:Sums"],
        )
        async with (
            serving(tmp_path / "home", config, name="a") as a,
            serving(tmp_path / "home", config, name="b") as b,
            connect(Endpoint(nats.url, token=nats.token)) as bus,
            anyio.create_task_group() as tasks,
        ):
            log = EventLog(bus)
            deaths: list[Server] = []
            tasks.start_soon(keep, a, deaths)
            tasks.start_soon(keep, b, deaths)
            for name in THREADS:
                await append(log, name, [ThreadCreated(user="ada")])
            for number in NUMBERS:
                for name in THREADS:
                    await append(log, name, [ThreadAnnotated(metadata={"n": number})])

            async def work() -> tuple[int, int, int]:
                return len(set(a.signed())), sum([await counted(log, name) for name in THREADS]), len(deaths)

            await reaching(work, lambda there: min(there[:2]) == len(THREADS) * len(NUMBERS))
            tasks.cancel_scope.cancel()
        assert 0 < len(deaths) <= DEATHS
        for name in THREADS:
            numbers = [int(line.split()[1]) for line in a.signed() if line.split()[0] == name]
            assert numbers == sorted(numbers), "a number comes again only before the next"
            assert set(numbers) == set(NUMBERS)
        async with connect(Endpoint(nats.url, token=nats.token)) as bus:
            for name in THREADS:
                last = (await sums(EventLog(bus), name))[-1]
                assert (last.total, last.count) == (sum(NUMBERS), len(NUMBERS))


async def sums(log: EventLog, name: str) -> list[NumbersAdded]:
    records = await read(log, own_state("sums", thread(name)))
    return [msgspec.convert(record.event, NumbersAdded, from_attributes=True) for record in records]


async def counted(log: EventLog, name: str) -> int:
    return len(await sums(log, name))
