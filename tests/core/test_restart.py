"""A nats-server that dies or is stopped under load: writers and followers go on, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from core.bus import streams
from core.bus.connection import BATCHES, Bus, connect
from core.bus.errors import STREAM_NOT_FOUND, ApiError
from core.bus.upkeep import Upkeep
from core.errors import Unavailable
from core.events import Aggregate, ThreadAnnotated
from core.log.store import EventLog
from tests.support.nats import DEADLINE, append, bus_on, eventually, fresh, log_on, own, read, take

WRITERS = 6
EVENTS = 120


class Writer:
    def __init__(self, log: EventLog) -> None:
        self.log, self.thread = log, fresh()
        self.acknowledged: list[str] = []

    async def write(self) -> None:
        last = 0
        while len(self.acknowledged) < EVENTS:
            events = [ThreadAnnotated(metadata={"n": len(self.acknowledged)})] * (2 if last % 5 == 4 else 1)
            records = await append(self.log, self.thread, *events, expected=last)
            last = records[-1].seq
            self.acknowledged += [r.id for r in records]

    async def follow(self) -> None:
        seen = await take(self.log.follow(self.thread), EVENTS)
        assert all(a.seq < b.seq for a, b in pairwise(seen))
        stored = await eventually(lambda: read(self.log, self.thread))  # others may still wait for the server's death
        assert [r.id for r in seen] == [r.id for r in stored][:EVENTS]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_writers_and_followers_go_on(tmp_path: Path, how: signal.Signals) -> None:
    async with own(tmp_path) as nats, bus_on(nats) as bus, log_on(bus) as log:
        writers = [Writer(log) for _ in range(WRITERS)]

        async def written(share: float) -> None:
            async def enough() -> bool:
                return sum(len(w.acknowledged) for w in writers) >= share * WRITERS * EVENTS

            await eventually(enough)

        async with asyncio.TaskGroup() as tasks:
            for writer in writers:
                tasks.create_task(writer.write())
                tasks.create_task(writer.follow())
            for share in (0.2, 0.6):
                await written(share)
                await nats.kill(how=how)
                await nats.restart()
        for writer in writers:
            assert [r.id for r in await read(log, writer.thread)] == writer.acknowledged


async def test_a_start_goes_on_when_the_server_dies_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure, tries = Bus.ensure_streams, 0
    async with own(tmp_path) as nats, asyncio.TaskGroup() as tasks:

        async def interrupted(bus: Bus, upkeep: Upkeep) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                process = nats.nodes[0]._process
                assert process is not None
                process.send_signal(signal.SIGSTOP)
                tasks.create_task(killed_with_a_request())
            await ensure(bus, upkeep)

        async def killed_with_a_request() -> None:
            await asyncio.sleep(0.2)
            await nats.kill()
            await nats.restart()

        monkeypatch.setattr(Bus, "ensure_streams", interrupted)
        async with connect(nats.endpoint("late")) as bus, log_on(bus) as log:
            await append(log, fresh(), ThreadAnnotated(metadata={}))
    assert tries > 1


async def test_what_is_asked_while_it_is_down_is_unavailable(tmp_path: Path) -> None:
    async with own(tmp_path) as nats, bus_on(nats) as bus:
        log = EventLog(bus)
        await nats.kill()
        asked = (log.tip(fresh()), read(log, fresh()), log.last(), log.erase(fresh()))
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(outcome, Unavailable) for outcome in outcomes] == [True] * 4, outcomes
        await nats.restart()
        await eventually(lambda: bus.api("INFO"))


async def test_a_read_waits_no_longer_for_its_turn_than_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server is down, reads that are before it in the queue do not add their time to its own."""
    monkeypatch.setattr(streams, "ASK_SECONDS", 0.2)
    async with own(tmp_path) as nats, bus_on(nats) as bus:
        log = EventLog(bus)
        await append(log, thread := fresh(), ThreadAnnotated(metadata={}))
        await nats.kill()
        async with AsyncExitStack() as turns:
            for _ in range(BATCHES):
                await turns.enter_async_context(bus.batches)
            with pytest.raises(Unavailable), anyio.fail_after(DEADLINE):
                await read(log, thread)
        await nats.restart()
        reads = [eventually(lambda: read(log, thread)) for _ in range(BATCHES + 1)]  # it took nobody's turn with it
        assert [len(records) for records in await asyncio.gather(*reads)] == [1] * (BATCHES + 1)


async def test_streams_on_disk_come_back_and_the_one_in_memory_is_made_anew(tmp_path: Path) -> None:
    async with own(tmp_path) as nats, bus_on(nats) as bus:
        await append(EventLog(bus), thread := fresh(), ThreadAnnotated(metadata={}))
        await nats.kill()
        await nats.restart()
        await eventually(lambda: bus.api("INFO"))
        with pytest.raises(ApiError) as missing:
            await bus.api(f"STREAM.INFO.{bus.names.stream('tok')}")
        assert missing.value.err_code == STREAM_NOT_FOUND
        await bus.ensure_previews()
        await bus.ensure_previews()  # harmless
        await bus.api(f"STREAM.INFO.{bus.names.stream('tok')}")
        assert len(await read(EventLog(bus), Aggregate("thread", thread.id))) == 1


async def test_connecting_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.bus.connection.CONNECT_SECONDS", 1.0)
    async with own(tmp_path) as nats:
        await nats.kill()
        with pytest.raises(Unavailable, match=f"NATS at {nats.url}"):
            async with connect(nats.endpoint()):
                pass


async def test_leaving_while_the_server_is_down(tmp_path: Path) -> None:
    """As when the server and we are stopped together: leaving is no error."""
    async with own(tmp_path) as nats, bus_on(nats) as bus:
        await nats.kill()
        await bus.publish("sika.nobody", b"")
