"""Real servers in processes of their own, and a client that speaks plain HTTP and SSE to them."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from tests.support import warm
from tests.support.workers import DEADLINE, wait_for

MODES = ["values", "messages-tuple", "updates"]
SIKA = "tests.e2e.sika"
_URL = re.compile(rb"http://\S+")


class Server:
    """A `sika serve`: started, killed, started again with the same command."""

    def __init__(self, home: Path, config: Path, *more: str, name: str = "sika") -> None:
        self.home = home
        self.url = ""
        self.ledger = home.parent / "ledger.txt"
        self._command = ["serve", "--home", str(home), "--config", str(config), "--port", "0", *more]
        self._stderr = home.parent / f"{name}.log"
        self._process: warm.Process | None = None

    @property
    def process(self) -> warm.Process:
        assert self._process is not None
        return self._process

    async def start(self, module: str = SIKA, **environment: str) -> None:
        about: dict[str, Any] = {"module": module, "environment": environment}
        self._process = await sika(*self._command, ledger=self.ledger, stderr=self._stderr, **about)
        async with asyncio.timeout(DEADLINE):
            line = await self._process.line()
        found = _URL.search(line)
        assert found, f"{line!r}; {self._stderr.read_text()}"
        self.url = found[0].decode()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.waited()

    async def terminate(self) -> int:
        self.process.terminate()
        async with asyncio.timeout(DEADLINE):
            return await self.process.waited()

    def said(self) -> str:
        """What it wrote to stderr so far, in all its lives."""
        return self._stderr.read_text()

    def signed(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []


async def sika(
    *arguments: str, ledger: Path, stderr: Path, module: str = SIKA, environment: Mapping[str, str] | None = None
) -> warm.Process:
    with stderr.open("ab") as errors:
        variables = {**os.environ, "SIKA_TEST_LEDGER": str(ledger), **(environment or {})}
        start = partial(warm.start, module, *arguments, env=variables, stderr=errors.fileno())
        return await asyncio.to_thread(start)


@asynccontextmanager
async def serving(home: Path, config: Path, *more: str, name: str = "sika") -> AsyncIterator[Server]:
    server = Server(home, config, *more, name=name)
    try:
        await server.start()
        yield server
    finally:
        if server._process is not None:
            server.process.kill()
            await server.process.waited()


class Frame(NamedTuple):
    """One SSE event as it came."""

    event: str
    data: Any
    id: str


class Browser:
    """A client over plain HTTP. It may talk to any server: what it needs to know is in its hands."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(self, server: Server, path: str, body: Any = None) -> Any:
        async with self._session.post(f"{server.url}/api{path}", json=body or {}) as response:
            text = await response.text()
            assert response.status < 300, (response.status, text)
            return json.loads(text) if text else None

    async def get(self, server: Server, path: str) -> Any:
        async with self._session.get(f"{server.url}/api{path}") as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def thread(self, server: Server) -> str:
        return str((await self.post(server, "/threads"))["thread_id"])

    async def run(self, server: Server, thread_id: str, text: str, model: str, **more: Any) -> str:
        return str((await self.post(server, f"/threads/{thread_id}/runs", request(text, model, **more)))["run_id"])

    async def status(self, server: Server, thread_id: str, run_id: str) -> str:
        """The run's, or `503` if the server cannot tell now."""
        async with self._session.get(f"{server.url}/api/threads/{thread_id}/runs/{run_id}") as response:
            if response.status == 503:
                return "503"
            assert response.status == 200, await response.text()
            return str((await response.json())["status"])

    async def messages(self, server: Server, thread_id: str) -> list[Any]:
        return list((await self.get(server, f"/threads/{thread_id}/state"))["values"].get("messages", []))

    async def log(self, server: Server, thread_id: str) -> list[Any]:
        return list(await self.get(server, f"/threads/{thread_id}/log"))

    async def start(
        self, server: Server, thread_id: str, text: str, model: str, into: list[Frame], **more: Any
    ) -> None:
        """Ask for a run and take its frames until the stream ends or breaks."""
        await self._take(
            "POST", f"{server.url}/api/threads/{thread_id}/runs/stream", into, request(text, model, **more)
        )

    async def resume(self, server: Server, thread_id: str, run_id: str, into: list[Frame], last: str) -> None:
        """Take the frames of a run after one."""
        query = "&".join(f"stream_mode={mode}" for mode in MODES)
        path = f"/threads/{thread_id}/runs/{run_id}/stream?{query}"
        await self._take("GET", f"{server.url}/api{path}", into, None, {"Last-Event-ID": last})

    async def _take(
        self, method: str, url: str, into: list[Frame], body: Any, headers: dict[str, str] | None = None
    ) -> None:
        """Frames as they come, until the connection ends or breaks: the last frame tells which it was."""
        with suppress(aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            async with self._session.request(method, url, json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                fields: dict[str, str] = {}
                async for raw in response.content:
                    line = raw.decode().rstrip("\n")
                    if not line and "data" in fields:
                        into.append(Frame(fields["event"], json.loads(fields["data"]), fields.get("id", "")))
                    if not line:
                        fields = {}
                    elif not line.startswith(":"):
                        name, _, value = line.partition(": ")
                        fields[name] = value


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 22) as session:
        yield Browser(session)


def request(text: str, model: str, **more: Any) -> dict[str, Any]:
    return {
        "assistant_id": "lead_agent",
        "input": {"messages": [{"role": "user", "content": text}]},
        "context": {"model_name": model},
        "stream_mode": MODES,
        "on_disconnect": "continue",
        "stream_resumable": True,
        **more,
    }


def last_id(frames: Sequence[Frame]) -> str:
    return next((frame.id for frame in reversed(frames) if frame.id), "-1")


def run_of(frames: Sequence[Frame]) -> str:
    return next(str(frame.data["run_id"]) for frame in frames if frame.event == "metadata")


def texts(frames: Sequence[Frame]) -> dict[str, str]:
    """What was streamed of each message, by id."""
    found: dict[str, str] = {}
    for frame in frames:
        if frame.event == "messages":
            chunk, _ = frame.data
            found[chunk["id"]] = found.get(chunk["id"], "") + str(chunk["content"])
    return found


def facts(frames: Sequence[Frame]) -> list[Frame]:
    """The frames that stand for facts: everything but the pieces of messages."""
    return [frame for frame in frames if frame.event != "messages" and frame.id]


async def until(condition: Callable[[], bool]) -> None:
    async def met() -> bool:
        return condition()

    await wait_for(met)
