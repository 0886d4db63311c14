"""Runs that wait for a place: what clients and operators are told of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from channels.cli import checks
from channels.http.app import serve
from core.config.settings import Http
from core.runtime import system as core
from core.runtime.system import System
from tests.channels.http.conftest import Api, Settings, Stream, services_of
from tests.support.held import Held
from tests.support.nats import DEADLINE, Nats, eventually


@pytest.fixture
async def full(nats: Nats, tmp_path: Path) -> AsyncIterator[tuple[System, Held]]:
    """A process with one place, which is taken."""
    actor = Held()
    endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with (
        core.start(endpoint, tmp_path / "views.db", lease_seconds=5, slots=1, most_waiting=2) as running,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(partial(running.serve, [actor], alone=True))
        yield running, actor
        tasks.cancel_scope.cancel()


async def test_a_run_that_waits_says_its_place(full: tuple[System, Held], tmp_path: Path) -> None:
    running, actor = full
    services = services_of(running, Settings(), tmp_path)
    async with serve(services, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        api = Api(session, f"http://127.0.0.1:{port}")
        first, second, third = [await api.thread() for _ in range(3)]
        at_work = await api.run(first)
        await actor.until(1)
        waiting = await api.run(second)
        last = await api.run(third)

        async def placed() -> bool:
            return "queue" in await api.ask("GET", f"/threads/{third}/runs/{last}")

        await eventually(placed)
        shown: dict[str, Any] = await api.ask("GET", f"/threads/{second}/runs/{waiting}")
        assert shown["queue"] == {"ahead": 0, "since": shown["created_at"]}
        [listed] = await api.ask("GET", f"/threads/{third}/runs")
        assert listed["queue"]["ahead"] == 1
        assert "queue" not in await api.ask("GET", f"/threads/{first}/runs/{at_work}")
        async with session.get(f"{api.url}/api/threads/{third}/runs/{last}/stream") as stream:
            async with asyncio.timeout(DEADLINE):
                await stream.content.readuntil(b": waiting, 1 before you\n\n")
        async with session.get(f"{api.url}/ready") as response:
            load = (await response.json())["load"]
        assert (load["at_work"], load["waiting"]) == (1, 2)
        assert load["by"] == "number"
        assert "1 run at a time" in load["bound"]
        assert "runs.max_concurrent" in load["change"]
        async with session.get(f"{api.url}/metrics") as response:
            exposed = await response.text()
        assert "sika_runs_waiting 2" in exposed
        for bound, holds in {"number": 1, "memory": 0, "lag": 0, "starts": 0}.items():
            assert f'sika_runs_bound{{bound="{bound}"}} {holds}' in exposed
        assert 'sika_runs_bound_ratio{bound="number"} 1' in exposed
        refused = await api.thread()
        async with session.post(f"{api.url}/api/threads/{refused}/runs", json={"input": {}}) as response:
            assert response.status == 503
            assert 5 <= int(response.headers["Retry-After"]) <= 600
            assert "2 runs wait" in await response.text()
        [capacity] = [finding for finding in await checks.server(api.url) if finding.name == "capacity"]
        assert "2 runs waiting for a place, 1 at work; the bound is the configuration: 1 run at a time" in capacity.text
        assert "runs.max_concurrent" in capacity.advice
        assert (await api.ask("GET", f"/threads/{first}/state"))["values"] is not None
        assert await api.ask("POST", "/threads/search", {})
        answer = {"command": {"resume": "yes"}, "multitask_strategy": "enqueue"}
        await api.ask("POST", f"/threads/{first}/runs", answer)
        await api.ask("POST", f"/threads/{third}/runs/{last}/cancel?wait=true", status=204)
        actor.end(first)
        await actor.until(2)

        async def begun() -> bool:
            return "queue" not in await api.ask("GET", f"/threads/{second}/runs/{waiting}")

        await eventually(begun)
        actor.end(second)


async def test_streams_of_runs_at_work_go_on_in_overload(full: tuple[System, Held], tmp_path: Path) -> None:
    running, actor = full
    async with (
        serve(services_of(running, Settings(), tmp_path), "127.0.0.1", 0) as port,
        aiohttp.ClientSession() as session,
    ):
        api = Api(session, f"http://127.0.0.1:{port}")
        thread, *others = [await api.thread() for _ in range(4)]
        run = await api.run(thread)
        await actor.until(1)
        async with (
            api.stream("GET", f"/threads/{thread}/runs/{run}/stream?stream_mode=messages-tuple") as stream,
            asyncio.timeout(DEADLINE),
        ):
            for other in others[:2]:
                await api.run(other)

            async def refused() -> bool:
                body: dict[str, Any] = {"input": {}}
                async with session.post(f"{api.url}/api/threads/{others[2]}/runs", json=body) as response:
                    return response.status == 503

            await eventually(refused)
            words = running.pump.message(run, "m1", after=(await running.threads.load(thread)).seq)
            for word in ("So ", "it ", "goes ", "on."):
                await words.add("text", word)
                assert await _text(stream) == word
            assert await refused()
            actor.end(thread)
            while (frame := await stream.next()) is not None and frame[0] != "end":
                pass
            assert frame is not None
        for other in others[:2]:
            actor.end(other)


async def _text(stream: Stream) -> str:
    """Returns the next words of an answer."""
    while (frame := await stream.next()) is not None:
        if frame[0] == "messages" and (text := str(frame[1][0]["content"])):
            return text
    raise AssertionError("the stream ended")


async def test_addresses_behind_a_proxy_are_people(full: tuple[System, Held], tmp_path: Path) -> None:
    running, actor = full
    settings = Settings(http=Http(trusted_proxies=("127.0.0.1",)))
    async with serve(services_of(running, settings, tmp_path), "127.0.0.1", 0) as port:
        threads = []
        for client in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
            async with aiohttp.ClientSession(headers={"X-Forwarded-For": client}) as session:
                api = Api(session, f"http://127.0.0.1:{port}")
                threads.append(await api.thread())
                await api.run(threads[-1])

                async def heard() -> bool:
                    return running.admission.working + running.admission.waiting == len(threads)

                await eventually(heard)
        first, second, other = threads
        actor.end(first)
        assert list(await actor.until(2)) == [first, other]
        actor.end(other)
        assert list(await actor.until(3)) == [first, other, second]
        actor.end(second)
