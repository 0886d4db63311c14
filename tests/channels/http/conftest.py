"""The real application on a real bus. There is no agent: the tests write the facts that a worker would write."""

from __future__ import annotations

import functools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest
from argon2 import PasswordHasher

from channels.http.app import Services, serve
from core.config.agent import Title
from core.config.load import Config
from core.config.server import Runs
from core.config.settings import Http
from core.errors import Unavailable
from core.events import Event, ModelCompleted, Record, RunCompleted
from core.runtime import system as core
from core.runtime.system import System
from core.thread.state import Run
from core.thread.threads import Decision
from tests.channels.http.story import ai, started
from tests.support import routes
from tests.support.nats import Nats, eventually

routes.share()


@pytest.fixture(autouse=True)
def _cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real hashes that take no 50 ms: `tests/core/identity` tests those that do."""
    cheap = functools.partial(PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr("core.identity.passwords.PasswordHasher", cheap)


@pytest.fixture
async def system(nats: Nats, tmp_path: Path) -> AsyncIterator[System]:
    endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with core.start(endpoint, tmp_path / "views.db", lease_seconds=5, slots=4) as system:
        await eventually(lambda: system.views.search(user="nobody"))
        yield system


@dataclass
class Settings:
    """The configuration in force; tests may change it while the server runs."""

    http: Http = field(default_factory=lambda: Http(heartbeat_seconds=0.2, max_body_bytes=100_000))
    runs: Runs = field(default_factory=Runs)
    title: Title = field(default_factory=lambda: Title(enabled=False))

    def __call__(self) -> Config:
        return Config(http=self.http, runs=self.runs, title=self.title)


@pytest.fixture
def config() -> Settings:
    return Settings()


@pytest.fixture
def services(system: System, config: Settings, tmp_path: Path) -> Services:
    return services_of(system, config, tmp_path)


def services_of(system: System, config: Callable[[], Config], home: Path = Path("/nonexistent")) -> Services:
    """Of a system without actors: who asks one learns at once that it is not there."""
    return replace(Services.of(system, config, home), call=nobody)


async def nobody(actor: str, request: Mapping[str, Any]) -> Any:
    raise Unavailable(f"no {actor} here")


@pytest.fixture
async def url(services: Services) -> AsyncIterator[str]:
    async with serve(services, "127.0.0.1", 0) as port:
        yield f"http://127.0.0.1:{port}"


class Api:
    """A client that is plain about what it gets."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200, **more: Any) -> Any:
        given = {"data": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
        async with self.session.request(method, f"{self.url}/api{path}", **given, **more) as response:
            raw = await response.read()
            assert response.status == status, (response.status, raw)
            return msgspec.json.decode(raw) if raw else None

    async def thread(self) -> str:
        return str((await self.ask("POST", "/threads", {}))["thread_id"])

    async def run(self, thread: str, **body: Any) -> str:
        body = {"input": {"messages": [{"role": "user", "content": "hi", "id": uuid.uuid4().hex}]}, **body}
        return str((await self.ask("POST", f"/threads/{thread}/runs", body))["run_id"])

    def stream(self, method: str, path: str, body: Any = None, **headers: str) -> Stream:
        headers = {"Accept": "text/event-stream", **headers}
        return Stream(self.session.request(method, f"{self.url}/api{path}", json=body, headers=headers))


def unnumbered(values: Any) -> Any:
    """Returns values without the numbers of their messages, which are those of the thread."""
    messages = [dict(message) for message in values.get("messages", ())]
    for message in messages:
        message["additional_kwargs"] = {k: v for k, v in message["additional_kwargs"].items() if k != "seq"}
    return {**values, "messages": messages} if messages else values


class Stream:
    """An SSE response, event by event."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.beats = 0
        self.response: aiohttp.ClientResponse

    async def __aenter__(self) -> Stream:
        self.response = await self._request.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._request.__aexit__(*error)

    async def next(self) -> tuple[str, Any, str] | None:
        """The next (event, data, id); None at the end."""
        fields: dict[str, str] = {}
        with anyio.fail_after(60):
            while line := await self.response.content.readline():
                text = line.decode().rstrip("\n")
                if text.startswith(":"):
                    self.beats += 1
                elif text:
                    name, _, value = text.partition(": ")
                    fields[name] = value
                elif fields.keys() == {"id"}:  # a place, and nothing to tell
                    fields = {}
                elif fields:
                    return fields["event"], msgspec.json.decode(fields["data"]), fields.get("id", "")
        return None

    async def hear(self, beats: int) -> None:
        """Waits for heartbeats. Nothing else may come meanwhile."""
        with anyio.fail_after(60):
            while self.beats < beats:
                line = await self.response.content.readline()
                assert line[:1] in (b":", b"\n") or line.startswith(b"id: "), line
                self.beats += line.startswith(b":")

    async def until(self, event: str) -> list[tuple[str, Any, str]]:
        found = []
        while one := await self.next():
            found.append(one)
            if one[0] == event:
                return found
        raise AssertionError(f"ended without {event}: {[one[0] for one in found]}")

    async def rest(self) -> list[tuple[str, Any, str]]:
        found = []
        while one := await self.next():
            found.append(one)
        return found


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(read_bufsize=1 << 22) as session:
        yield Api(session, url)


class Worker:
    """Writes what a worker would write."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.newest: dict[str, int] = {}
        """Sequence of the newest fact written about each run."""

    async def write(self, thread: str, run: str, *events: Event) -> Record:
        for event in events:
            _, [record] = await self.system.threads.decide(thread, _always(event), actor="lead", run=run)
            self.newest[run] = record.seq
        return record

    async def start(self, thread: str, run: str) -> None:
        await self.write(thread, run, started())

    async def finish(self, thread: str, run: str, text: str = "Hello") -> None:
        await self.write(thread, run, ModelCompleted(message=ai(f"m-{run}", text)), RunCompleted())

    async def perform(self, thread: str, run: str, text: str = "Hello") -> None:
        await self.start(thread, run)
        await self.finish(thread, run, text)

    async def requested(self, thread: str, count: int = 1) -> Run:
        """The newest run of a thread, once there are so many."""

        async def probe() -> Run | None:
            runs = list((await self.system.threads.load(thread)).runs.values())
            return runs[-1] if len(runs) >= count else None

        found = await eventually(probe)
        assert found
        return found

    async def cancelled(self, thread: str) -> str:
        """The action of the cancel of the newest run (or what became of it at once), once there is one."""
        return await eventually(self._cancel(thread))

    def _cancel(self, thread: str) -> Callable[[], Awaitable[str]]:
        async def probe() -> str:
            run = await self.requested(thread)
            return run.cancel or {"interrupted": "interrupt", "rolled_back": "rollback"}.get(run.status, "")

        return probe


def _always(event: Event) -> Decision:
    return lambda _: [event]


@pytest.fixture
def worker(system: System) -> Worker:
    return Worker(system)


class FirstWaits:
    """Has the first record of files wait until `go_on`."""

    def __init__(self, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
        self._record = services.commands.record
        self.waits, self.go_on = anyio.Event(), anyio.Event()
        monkeypatch.setattr(services.commands, "record", self)

    async def __call__(self, *arguments: Any) -> Any:
        if not self.waits.is_set():
            self.waits.set()
            await self.go_on.wait()
        return await self._record(*arguments)
