"""No route holds the whole log of a long thread, and few batches are read at a time: a walk over all routes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from aiohttp import WSMsgType

import core.log.reader
from channels.http.endpoints.table import all_routes
from channels.http.server import reading
from channels.http.server.reading import BATCH, READING, WHOLE, Reading
from channels.http.server.routes import Route
from core.errors import Unavailable
from core.events import Event, Record, ThreadAnnotated
from core.log.reader import PAGE
from core.replay.causes import HELD
from core.runtime.system import System
from core.thread.threads import Decision
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.test_auth_security import filled, named

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]

EVENTS = 3_000
PAGES = READING + 1
"""Pages at a time: those of the door, and one of a thread's state if its feed cannot tell that nothing has come."""
READERS = PAGES + 1
ONE = PAGE + 2 * BATCH
"""Events that one reader may have in memory: a page of the log, the batch of its turn, and the one that is written."""
LAST = "the last words of a long thread"
QUESTIONS = {f"GET /threads/{{thread_id}}/log/{name}" for name in ("diff", "why", "tree")}
"""Questions about much of a log."""


class Counts:
    """Events in memory and pages that are being read, now and at most."""

    def __init__(self) -> None:
        self.events = self.before = self.most_events = self.pages = self.most_pages = 0

    def begin(self) -> None:
        gc.collect()
        self.before = self.most_events = self.events
        self.most_pages = 0

    @property
    def held(self) -> int:
        """Events that were in memory at once since the beginning."""
        return self.most_events - self.before


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    counts, page = Counts(), core.log.reader.Reader._page

    class Counted(Record):
        __slots__ = ()

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            counts.events += 1
            counts.most_events = max(counts.most_events, counts.events)

        def __del__(self) -> None:
            counts.events -= 1

    async def paged(*arguments: Any) -> Any:
        counts.pages += 1
        counts.most_pages = max(counts.most_pages, counts.pages)
        try:
            return await page(*arguments)
        finally:
            counts.pages -= 1

    with monkeypatch.context() as patched:
        patched.setattr(core.log.reader, "Record", Counted)
        patched.setattr(core.log.reader.Reader, "_page", paged)
        yield counts


class Long(NamedTuple):
    thread: str
    run: str


def always(events: list[Event]) -> Decision:
    return lambda _: events


@pytest.fixture
async def long(api: Api, worker: Worker, system: System) -> Long:
    """A thread with one run of many events."""
    thread = await api.thread()
    run = await api.run(thread)
    await worker.start(thread, run)
    for begin in range(0, EVENTS, 500):
        some: list[Event] = [ThreadAnnotated(metadata={"n": begin + number}) for number in range(500)]
        await system.threads.decide(thread, always(some), actor="test", run=run)
    await worker.finish(thread, run, LAST)
    await api.ask("GET", f"/threads/{thread}/state")
    return Long(thread, run)


def answers() -> list[Route]:
    """Returns the routes about a thread that only read, and whose answer ends."""
    routes = [route for route in all_routes() if route.method == "GET" and "{thread_id}" in route.path]
    return [route for route in routes if not route.endless]


def path_of(route: Route, long: Long) -> str:
    path = filled(route, thread_id=long.thread, run_id=long.run)
    return path.replace("event=x", f"event={EVENTS}").replace("right=x", "right=%231") if "/log/" in path else path


async def read(api: Api, path: str, **headers: str) -> int:
    async with api.session.get(f"{api.url}/api{path}", headers=headers) as response:
        async for _ in response.content.iter_any():
            pass
        return response.status


async def told(api: Api, method: str, path: str, body: Any, **headers: str) -> None:
    """Reads an endless stream to the last words of the thread."""
    async with api.session.request(method, f"{api.url}/api{path}", json=body, headers=headers) as response:
        assert response.status == 200, await response.read()
        before = b""
        async for piece in response.content.iter_any():
            if LAST.encode() in before + piece:
                return
            before = piece[-len(LAST) :]
    raise AssertionError(f"{path} ended before the last words")


async def subscribed(api: Api, path: str) -> None:
    """Subscribes by WebSocket ten times to everything, and reads to the last words each time."""
    async with api.session.ws_connect(f"{api.url.replace('http', 'ws')}/api{path}") as socket:
        for number in range(10):
            params = {"channels": ["messages"], "since": 0}
            await socket.send_json({"id": number, "method": "subscription.subscribe", "params": params})
        words = 0
        async for message in socket:
            assert message.type is WSMsgType.TEXT
            words += LAST in message.data and "message-finish" not in message.data
            if words >= 10:
                return


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.long)])
async def test_each_answer_is_made_of_few_events_at_a_time(
    api: Api, long: Long, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    surprises = list[str]()
    with counted(monkeypatch) as counts:
        for route in [*answers()][::step]:
            most = WHOLE * HELD if named(route) in QUESTIONS else 0
            counts.begin()
            statuses = await asyncio.gather(*(read(api, path_of(route, long)) for _ in range(READERS)))
            if counts.most_pages > PAGES or counts.held > most + READERS * ONE:
                surprises.append(f"{named(route)}: {counts.most_pages} pages, {counts.held} events")
            if named(route) in QUESTIONS and set(statuses) != {200}:
                surprises.append(f"{named(route)}: {statuses}")
    assert surprises == [], "\n".join(surprises)


STREAMS: list[tuple[str, str, Any, dict[str, str]]] = [
    ("GET", "/threads/{t}/log?follow=1", None, {}),
    ("GET", "/threads/{t}/log", None, {"Accept": "text/event-stream"}),
    ("GET", "/threads/{t}/stream", None, {"Last-Event-ID": "-"}),
    ("GET", "/threads/{t}/runs/{r}/stream?stream_mode=messages-tuple", None, {"Last-Event-ID": "-"}),
    ("GET", "/threads/{t}/runs/{r}/stream?stream_mode=messages-tuple", None, {"Last-Event-ID": "{first}-0-1"}),
    ("GET", "/threads/{t}/stream", None, {"Last-Event-ID": "{first}-0-1"}),
    ("POST", "/threads/{t}/stream/events", {"channels": ["messages"]}, {}),
    ("POST", "/threads/{t}/stream/events", {"channels": ["messages"], "since": 0}, {}),
    ("POST", "/threads/{t}/stream/events", {"channels": ["messages"], "since": "{first}"}, {}),
]


@pytest.mark.parametrize(("method", "path", "body", "headers"), STREAMS)
async def test_each_stream_is_made_of_few_events_at_a_time(
    api: Api,
    long: Long,
    system: System,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: Any,
    headers: Any,
) -> None:
    run = (await system.threads.load(long.thread)).runs[long.run]
    first = str(run.requested_seq)
    path = path.format(t=long.thread, r=long.run)
    headers = {name: text.format(first=first) for name, text in headers.items()}
    if body and body.get("since"):
        body = {**body, "since": int(first) * 512}
    with counted(monkeypatch) as counts:
        await asyncio.gather(*(told(api, method, path, body, **headers) for _ in range(READERS)))
    assert 0 < counts.most_pages <= PAGES
    assert counts.held <= READERS * ONE


async def test_a_socket_reads_for_each_subscription_in_batches(
    api: Api, long: Long, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted(monkeypatch) as counts:
        await asyncio.gather(*(subscribed(api, f"/threads/{long.thread}/stream/events") for _ in range(3)))
    assert 0 < counts.most_pages <= READING
    assert counts.held <= 3 * 2 * ONE


async def test_an_answer_beyond_the_bound_is_refused(api: Api, long: Long, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ANSWER_BYTES", 200)
    for question in ("tree", "diff?left=%231&right=%231"):
        refusal = await api.ask("GET", f"/threads/{long.thread}/log/{question}", status=413)
        assert "ask about one run" in refusal["detail"], question


async def test_a_turn_that_does_not_come_is_said(api: Api, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WAIT_SECONDS", 0.01)
    door = Reading(system.log)
    async with door.whole(), door.whole():
        with pytest.raises(Unavailable, match="other logs are being read"):
            async with door.whole():
                pass
