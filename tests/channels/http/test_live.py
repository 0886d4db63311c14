"""What goes on beside requests: it has an owner, its failures are logged, and what must not end begins again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import msgspec
import pytest
import structlog.testing
from aiohttp import web

from channels.http.app import Services
from channels.http.protocols.langgraph import dumps
from channels.http.server import live
from channels.http.server.live import Live
from core.config.load import Config
from core.config.settings import Http
from core.events import ModelCompleted, RunCompleted, ThreadAnnotated
from core.runs.follow import BEAT
from core.runtime.system import System
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import ai
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio


async def broken() -> None:
    raise ValueError("a defect")


async def a_line(logs: Sequence[object]) -> bool:
    return len(logs) > 0


async def test_a_failure_in_the_background_is_logged(services: Services) -> None:
    with structlog.testing.capture_logs() as logs:
        alive = Live(services)
        async with asynccontextmanager(alive.running)(web.Application()):
            alive.background(broken())
            await eventually(lambda: a_line(logs))
    [line] = logs
    assert (line["event"], line["work"], repr(line["exc_info"])) == (
        "background work failed",
        "broken",
        "ValueError('a defect')",
    )


async def test_a_failure_after_the_client_left_is_logged(services: Services) -> None:
    alive, gate = Live(services), asyncio.Event()

    async def late() -> None:
        await gate.wait()
        raise ValueError("a defect")

    async with asynccontextmanager(alive.running)(web.Application()):
        client = asyncio.create_task(alive.to_its_end(late()))
        await asyncio.sleep(0)
        client.cancel()
        await asyncio.wait([client])
        with structlog.testing.capture_logs() as logs:
            gate.set()
            await eventually(lambda: a_line(logs))
    assert repr(logs[0]["exc_info"]) == "ValueError('a defect')"


async def test_the_heart_beats_again(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "AGAIN_SECONDS", 0.01)
    beats = 0

    def config() -> Config:
        nonlocal beats
        beats += 1
        if beats == 1:
            raise ValueError("a defect")
        return Config(http=Http(heartbeat_seconds=0.01))

    alive = Live(replace(services, config=config))
    with structlog.testing.capture_logs() as logs, anyio.fail_after(60):
        async with alive.follow("t") as follower, asynccontextmanager(alive.running)(web.Application()):
            items = await anext(follower.since(0, heard=True))
    assert items[0] is BEAT
    assert [line["event"] for line in logs] == ["background work failed, and is begun again"]


async def test_what_is_erased_does_not_stay_in_memory(api: Api, worker: Worker, system: System) -> None:
    """Also if another process erased it."""
    thread = await api.thread()
    run = await api.run(thread)
    await worker.start(thread, run)
    await worker.write(thread, run, ModelCompleted(message=ai("m", "a secret of hers")), RunCompleted())
    await api.ask("GET", f"/threads/{thread}/state")

    def kept() -> bytes:
        state = system.threads.cached(thread)
        return msgspec.json.encode([*[raw for _, raw, _ in dumps._cache.values()], state.messages if state else []])

    assert b"a secret of hers" in kept()
    await system.intake.erase(thread, by="nobody")

    async def gone() -> bool:
        return b"a secret of hers" not in kept()

    assert await eventually(gone)


async def test_a_log_is_sent_in_pieces_and_with_what_is_no_event(api: Api, worker: Worker) -> None:
    """No whole log in memory; and one malformed message breaks neither the array nor the stream."""
    thread = await api.thread()
    run = await api.run(thread)
    await worker.write(thread, run, *(ThreadAnnotated(metadata={"text": "x" * 20_000}) for _ in range(40)))
    bus = worker.system.bus
    await bus.store(f"{bus.names.prefix}.log.thread.{thread}", b'no event\n\nevent: forged\ndata: "\xff"')
    async with api.session.get(f"{api.url}/api/threads/{thread}/log") as response:
        assert response.headers.get("Transfer-Encoding") == "chunked"
        records = await response.json()
    assert [record["type"] for record in records][-2:] == ["thread.annotated", "unreadable"]
    assert len(records) == 43
    assert await api.ask("GET", f"/threads/{thread}/log?after={records[-1]['seq']}") == []
    async with api.stream("GET", f"/threads/{thread}/log", Accept="text/event-stream") as stream:
        assert [event for event, _, _ in await stream.rest()] == [record["type"] for record in records]
