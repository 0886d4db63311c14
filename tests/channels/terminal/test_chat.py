"""`sika chat` against a small server that speaks the wire format, and drops connections when it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from aiohttp import web

from channels.terminal import client as client_module
from channels.terminal.chat import FAILED, OK, STOPPED, Chat
from channels.terminal.client import Client
from channels.terminal.keyboard import Interrupts
from core.errors import Invalid, NotFound, Refused, Unavailable

pytestmark = pytest.mark.anyio

HUMAN = {"type": "human", "id": "h", "content": "hi"}
ANSWER = [
    ("metadata", {"run_id": "R", "thread_id": "T", "attempt": 1}),
    ("values", {"messages": [HUMAN]}),
    ("messages", [{"type": "AIMessageChunk", "id": "m", "content": "Hello"}, {}]),
    ("messages", [{"type": "AIMessageChunk", "id": "m", "content": ", world"}, {}]),
    ("values", {"messages": [HUMAN, {"type": "ai", "id": "m", "content": "Hello, world"}]}),
    ("end", None),
]
CUT = object()
"""In a script: the connection breaks here, in the middle of a frame."""
HANG = object()
"""In a script: nothing more comes until the run is cancelled."""


class Server:
    """One thread, one run. `script` lists what the connections deliver, one after the other; ids count frames."""

    def __init__(self, *script: list[Any]) -> None:
        self.script = list(script)
        self.asked: list[tuple[str, str]] = []
        self.resumed_after: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.status = "success"
        self.statuses: list[str] = []
        """What is answered before `status`."""
        self.known = True
        """Whether a request for a run gets through before the connection breaks."""
        self.refusal: tuple[int, str] | None = None
        self.deaf = False
        """Whether a request to cancel changes nothing."""
        self.cancel_asked, self.cancelled = asyncio.Event(), asyncio.Event()
        self._sent = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path))
        match request.method, request.path.removeprefix("/api"):
            case "GET", "/health":
                return web.json_response({"status": "healthy"})
            case "POST", "/threads":
                return web.json_response({"thread_id": (await request.json())["thread_id"]})
            case "POST", "/threads/search":
                return web.json_response(
                    [{"thread_id": "old", "updated_at": "2026-11-20T10:00:00", "values": {"title": "Old"}}]
                )
            case "POST", path if path.endswith("/runs/stream"):
                if self.refusal:
                    return web.json_response({"detail": self.refusal[1]}, status=self.refusal[0])
                self.bodies.append(await request.json())
                return await self._stream(request)
            case "GET", path if path.endswith("/runs/R/stream"):
                self.resumed_after.append(request.headers["Last-Event-ID"])
                return await self._stream(request)
            case "GET", path if path.endswith("/runs/R"):
                return web.json_response({"run_id": "R", "status": (self.statuses or [self.status]).pop(0)})
            case "GET", path if path.endswith("/runs"):
                runs = [{"run_id": "R", "metadata": body["metadata"]} for body in self.bodies if self.known]
                return web.json_response(runs)
            case "POST", path if path.endswith("/runs/R/cancel"):
                self.cancel_asked.set()
                if not self.deaf:
                    self.cancelled.set()
                return web.Response(status=202)
        raise web.HTTPNotFound

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        frames = self.script.pop(0)
        if frames and frames[0] is not CUT:
            response.headers["Content-Location"] = "/api/threads/T/runs/R"
        if frames == [CUT]:
            assert request.transport
            request.transport.abort()
            return response
        await response.prepare(request)
        await response.write(b": heartbeat\n\n")
        for frame in frames:
            if frame is CUT:
                await response.write(b'event: messages\ndata: [{"type":"AIMes')
                assert request.transport
                request.transport.abort()
                return response
            if frame is HANG:
                await self.cancelled.wait()
                continue
            event, data = frame
            self._sent += 1
            place = "" if event == "end" else f"id: {self._sent}-0-0\n"
            await response.write(f"event: {event}\ndata: {json.dumps(data)}\n{place}\n".encode())
        return response


class Talk:
    """A chat with a server, and what it wrote."""

    chat: Chat

    def __init__(self, server: Server) -> None:
        self.server, self.pressed = server, Interrupts()
        self.out = ""
        self.notices: list[str] = []
        self._changed = asyncio.Event()

    def write(self, text: str) -> None:
        self.out += text
        self._changed.set()

    def notice(self, text: str) -> None:
        self.notices.append(text)
        self._changed.set()

    async def until(self, probe: Callable[[], bool]) -> None:
        """Wait for something that was written."""
        with anyio.fail_after(60):
            while not probe():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def talk(server: Server, thread: str | None = "T", **options: Any) -> AsyncIterator[Talk]:
    found = Talk(server)
    async with serving(server) as url, Client(url, notice=found.notice) as client:
        found.chat = Chat(client, found.pressed, out=found.write, notice=found.notice, thread=thread, **options)
        yield found


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Typed:
    """Lines from a list. A callable in it is called instead of a line being typed."""

    def __init__(self, *lines: str | Callable[[], None]) -> None:
        self._lines = list(lines)

    def forget(self) -> None:
        """Nothing is typed before it is asked for."""

    async def line(self, prompt: str) -> str | None:
        if not self._lines:
            return None
        line = self._lines.pop(0)
        if isinstance(line, str):
            return line
        line()
        await anyio.sleep_forever()
        raise AssertionError


async def test_one_message_and_its_answer() -> None:
    async with talk(Server(ANSWER), plan=True) as found:
        assert await found.chat.once("hi") == OK
    assert found.out == "Hello, world\n"
    assert found.notices == ["thread T (go on with: sika chat --thread T)"]
    [body] = found.server.bodies
    assert body["stream_mode"] == ["messages-tuple", "values", "custom"]
    assert body["input"]["messages"][0]["content"] == "hi"
    assert body["context"] == {"is_plan_mode": True}


async def test_a_new_thread_is_named_at_the_end() -> None:
    async with talk(Server(ANSWER), thread=None) as found:
        assert await found.chat.once("hi") == OK
    assert ("POST", "/api/threads") in found.server.asked
    assert found.chat.thread is not None
    assert found.chat.thread in found.notices[-1]


@pytest.mark.parametrize("cut", range(1, len(ANSWER)))
async def test_a_dropped_connection_is_resumed_where_it_broke(cut: int) -> None:
    server = Server([*ANSWER[:cut], CUT], ANSWER[cut:])
    async with talk(server) as found:
        assert await found.chat.once("hi") == OK
    assert found.out == "Hello, world\n"
    assert server.resumed_after == [f"{cut}-0-0"]
    assert len(server.bodies) == 1
    assert [n for n in found.notices if n.startswith("connection lost")]
    assert "connected again" in found.notices


async def test_a_run_that_got_through_is_not_asked_for_again() -> None:
    server = Server([CUT], ANSWER)
    async with talk(server) as found:
        assert await found.chat.once("hi") == OK
    assert len(server.bodies) == 1
    assert server.resumed_after == ["-1"]
    assert found.out == "Hello, world\n"


async def test_a_run_that_did_not_get_through_is_asked_for_again() -> None:
    server = Server([CUT], ANSWER)
    server.known = False
    async with talk(server) as found:
        assert await found.chat.once("hi") == OK
    assert len(server.bodies) == 2
    assert server.bodies[0]["metadata"] == server.bodies[1]["metadata"]


async def test_a_stream_that_ends_before_its_run_is_taken_up_again() -> None:
    server = Server(ANSWER[:2], ANSWER[2:])
    server.statuses = ["running"]
    async with talk(server) as found:
        assert await found.chat.once("hi") == OK
    assert server.resumed_after == ["2-0-0"]
    assert found.out == "Hello, world\n"


async def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(client_module, "PAUSES", (0.05,))
    async with talk(Server([*ANSWER[:2], CUT], *([[CUT]] * 50))) as found:
        with pytest.raises(Unavailable, match="given up"):
            await found.chat.once("hi")


async def test_a_server_that_was_never_there_is_not_waited_for() -> None:
    async with Client("http://127.0.0.1:9", notice=print) as client:
        with pytest.raises(Unavailable), anyio.fail_after(client_module.PATIENCE_SECONDS / 2):
            await client.threads()
    async with Client("not an address", notice=print) as client:
        with pytest.raises(Invalid):
            await client.threads()


async def test_a_failed_run_is_a_failed_command() -> None:
    server = Server([*ANSWER[:3], ("error", {"error": "RateLimitError", "message": "slow\x1b[2J down"})])
    server.status = "error"
    async with talk(server) as found:
        assert await found.chat.once("hi") == FAILED
    assert found.out == "Hello\n"
    assert "error: RateLimitError: slow down" in found.notices


@pytest.mark.parametrize(("status", "kind"), [(409, Refused), (404, NotFound), (422, Invalid)])
async def test_a_refusal_is_told_in_the_servers_words(status: int, kind: type[Exception]) -> None:
    server = Server()
    server.refusal = (status, "Thread T already has an active run")
    async with talk(server) as found:
        with pytest.raises(kind, match="already has an active run"):
            await found.chat.once("hi")


async def test_ctrl_c_cancels_the_run() -> None:
    server = Server([*ANSWER[:3], HANG, ("end", None)])
    server.status = "interrupted"
    async with talk(server) as found, anyio.create_task_group() as tasks:

        async def press() -> None:
            await found.until(lambda: "Hello" in found.out)
            found.pressed.press()

        tasks.start_soon(press)
        assert await found.chat.once("hi") == STOPPED
    assert server.cancelled.is_set()
    assert "stopped" in found.notices


async def test_a_second_ctrl_c_does_not_wait_for_the_end() -> None:
    server = Server([*ANSWER[:3], HANG, HANG])
    server.deaf = True
    async with talk(server) as found, anyio.create_task_group() as tasks:

        async def press() -> None:
            await found.until(lambda: "Hello" in found.out)
            found.pressed.press()
            await found.until(lambda: any("stopping" in notice for notice in found.notices))
            await server.cancel_asked.wait()
            found.pressed.press()

        tasks.start_soon(press)
        assert await found.chat.once("hi") == STOPPED


async def test_a_conversation() -> None:
    server = Server(ANSWER, ANSWER, ANSWER)
    async with talk(server, thread=None) as found:
        lines = Typed("/help", "hi", "  ", "again", "/new", "/threads", "/threads 1", "third", "/quit", "never")
        assert await found.chat.converse(lines) == OK
    assert found.out.count("Hello, world\n") == 3
    assert "/new" in found.out
    assert "Old" in found.out
    assert found.chat.thread == "old"
    threads = [path for method, path in server.asked if path.endswith("/runs/stream")]
    assert threads[0] == threads[1] != threads[2] == "/api/threads/old/runs/stream"


async def test_a_refusal_does_not_end_the_conversation() -> None:
    server = Server()
    server.refusal = (409, "busy")
    async with talk(server) as found:
        assert await found.chat.converse(Typed("hi", "/quit")) == OK
    assert "error: busy" in found.notices


async def test_ctrl_c_at_the_prompt_asks_and_then_leaves() -> None:
    async with talk(Server(ANSWER)) as found:
        once = Typed(found.pressed.press, "hi")
        assert await found.chat.converse(once) == OK
        assert found.out == "Hello, world\n"
        twice = Typed(found.pressed.press, found.pressed.press, "never")
        assert await found.chat.converse(twice) == OK
    assert len([n for n in found.notices if "again Ctrl-C" in n]) == 2


async def test_a_bad_thread_id_is_refused_here() -> None:
    async with Client("http://127.0.0.1:9", notice=print) as client:
        with pytest.raises(Invalid, match="--thread"):
            Chat(client, Interrupts(), out=print, notice=print, thread="a/b")
