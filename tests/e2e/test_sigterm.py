"""SIGTERM ends a server, whatever its libraries do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from tests.e2e.servers import Server, browser, request, serving
from tests.support.applications import running
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import configure

pytestmark = pytest.mark.anyio

KILLED_AFTER = 30.0
"""What orchestrators allow."""


@asynccontextmanager
async def misbehaving() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A collector for LangSmith whose `/info` ends the thread that sends; and whether it was asked."""
    asked = asyncio.Event()

    async def info(_: web.Request) -> web.Response:
        asked.set()
        return web.json_response({"version": "1", "batch_ingest_config": {"use_multipart_endpoint": True}})

    app = web.Application()
    app.router.add_get("/info", info)
    async with running(app) as url:
        yield url, asked


async def test_a_tracing_library_whose_thread_is_dead(tmp_path: Path) -> None:
    async with ModelServer({"m": [Turn(text="Yes?")]}) as models, misbehaving() as (url, asked), browser() as client:
        tracing = {"langsmith": {"enabled": True, "api_key": "k", "endpoint": url}}
        config = configure(tmp_path / "config.yaml", models, tracing=tracing)
        async with serving(tmp_path / "home", config) as server:
            thread_id = await client.thread(server)
            await client.post(server, f"/threads/{thread_id}/runs/wait", request("Hi", "m"))
            async with asyncio.timeout(KILLED_AFTER):
                await asked.wait()
            server.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(KILLED_AFTER):
                assert await server.process.waited() == 0
    assert "traces dropped: not taken in time" in server.said()


async def test_a_draining_server_says_so_and_serves_to_the_end_of_its_streams(tmp_path: Path) -> None:
    """`/ready` answers 503 while the port is open; a run at work comes to its end, and so does its stream."""
    turn = Turn(text="one two three", gate="end", gate_after=1)
    async with ModelServer({"m": [turn]}) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models, http={"drain_seconds": 20})
        async with serving(tmp_path / "home", config) as server, ClientSession() as session:
            thread_id = await client.thread(server)
            url = f"{server.url}/api/threads/{thread_id}/runs/stream"
            async with session.post(url, json=request("Hi", "m")) as stream:
                body = b""
                async with asyncio.timeout(KILLED_AFTER):
                    while b"one" not in body:
                        body += await stream.content.readany()
                    assert (await ready(session, server))[0] == 200
                    server.process.send_signal(signal.SIGTERM)
                    while (answer := await ready(session, server))[0] == 200:
                        pass
                assert answer == (503, ["server"])
                models.release("end")
                async with asyncio.timeout(KILLED_AFTER):
                    body += await stream.content.read()  # raises if it is cut off
            assert b"event: end\ndata: null" in body
            assert b"three" in body
            assert (await ready(session, server))[0] == 503
            async with session.get(f"{server.url}/health") as healthy:
                assert healthy.status == 200
            server.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(KILLED_AFTER):
                await server.process.waited()


async def ready(session: ClientSession, server: Server) -> tuple[int, list[str]]:
    async with session.get(f"{server.url}/ready") as response:
        return response.status, [part["part"] for part in (await response.json())["missing"]]
