"""`sika chat` against a small server that speaks the wire format, and drops connections when it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
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
        self.refusal: tuple[int, Any] | None = None
        self.deaf = False
        """Whether a request to cancel changes nothing."""
        self.cancel_asked, self.cancelled = asyncio.Event(), asyncio.Event()
        self.missing: list[dict[str, str]] | None = None
        self.hangs_at: tuple[str, str] | None = None
        """A request that is never answered."""
        self.hanging = asyncio.Event()
        first = [{"type": "text", "text": "What is\nnew?"}]
        self.threads: list[dict[str, Any]] = [
            {"thread_id": "old", "updated_at": "2026-11-20T10:00:00", "extracted": {"title": "Old", "first": "x"}},
            {"thread_id": "T", "updated_at": "2026-11-20T09:00:00", "extracted": {"title": None, "first": first}},
            {"thread_id": "none", "updated_at": "2026-11-20T08:00:00", "extracted": {}},
        ]
        self._sent = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path))
        match request.method, request.path.removeprefix("/api"):
            case "GET", "/health":
                return web.json_response({"status": "healthy"})
            case "GET", "/ready" if self.missing is not None:
                return web.json_response({"status": "incomplete", "missing": self.missing}, status=503)
            case "GET", "/models":
                return web.json_response({"models": [{"name": "main", "model": "gpt"}]})
            case method, path if (method, path) == self.hangs_at:
                self.hanging.set()
                await asyncio.Event().wait()
            case "GET", "/threads/T":
                return web.json_response({"thread_id": "T", "status": "idle", "values": {}})
            case "POST", "/threads":
                return web.json_response({"thread_id": (await request.json())["thread_id"]})
            case "POST", "/threads/search":
                return web.json_response(self.threads[: (await request.json())["limit"]])
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
    [lost] = [notice for notice in found.notices if notice.startswith("connection lost")]
    assert lost.endswith("the server closed the connection); trying again for up to 60 s")
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


@pytest.mark.parametrize("request_", [("GET", "/threads/T"), ("POST", "/threads"), ("POST", "/threads/search")])
async def test_ctrl_c_ends_every_wait_for_the_server(request_: tuple[str, str]) -> None:
    server = Server(ANSWER, ANSWER)
    server.hangs_at = request_
    async with talk(server) as found, anyio.create_task_group() as tasks:

        async def press() -> None:
            await server.hanging.wait()
            server.hangs_at = None
            found.pressed.press()

        tasks.start_soon(press)
        assert await found.chat.converse(Typed("/threads", "hi", "hi")) == OK
    assert "stopped" in found.notices
    assert found.out.endswith("Hello, world\n")


async def test_ctrl_c_while_nobody_waits_is_kept() -> None:
    pressed = Interrupts()
    pressed.press()
    with anyio.fail_after(60):
        await pressed.wait()
    with anyio.move_on_after(0) as nothing_left:
        await pressed.wait()
    assert nothing_left.cancelled_caught


async def test_ctrl_c_on_a_terminal_while_the_server_is_away() -> None:
    """Also if the script that started the command ignores SIGINT."""
    ours, theirs = os.openpty()
    seen = b""

    def until(words: bytes) -> None:
        nonlocal seen
        while words not in seen:
            seen += os.read(ours, 4096)
        seen = seen.partition(words)[2]

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(AsyncExitStack())
        url = await server.enter_async_context(serving(Server()))
        command = [sys.executable, "-m", "actors", "chat", "--url", url, "--thread", "T"]
        process = await anyio.open_process(
            ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(theirs)
        stack.callback(os.close, ours)
        stack.callback(lambda: process.returncode is None and process.kill())
        await anyio.to_thread.run_sync(until, b"> ")
        await server.aclose()
        os.write(ours, b"hi\n")
        for words in (b"connection lost", b"stopped\r\n", b"> ", b"again Ctrl-C", b"> "):
            await anyio.to_thread.run_sync(until, words)
            if words != b"stopped\r\n" and words != b"again Ctrl-C":
                process.send_signal(signal.SIGINT)
        with anyio.fail_after(60):
            assert await process.wait() == 0


async def test_a_conversation_begins_with_a_greeting_and_what_is_wrong() -> None:
    server = Server()
    server.missing = [{"part": "configuration", "reason": "config.yaml: models[0].api_key: OPENAI_API_KEY is not set"}]
    async with talk(server, thread="t2") as found:
        assert await found.chat.converse(Typed()) == OK
        assert found.notices[0].startswith("Sika on http://127.0.0.1:")
        assert found.notices[0].endswith(", model main (gpt). /help lists the commands.")
    assert found.notices[1:3] == [
        "the server has a problem: configuration: config.yaml: models[0].api_key: OPENAI_API_KEY is not set",
        "thread t2 is new: there was none of this name",
    ]


async def test_threads_are_listed_by_their_first_words_and_the_latest_is_gone_on_with() -> None:
    async with talk(Server(ANSWER), thread=None, latest=True) as found:
        assert await found.chat.once("hi") == OK
        assert (found.chat.thread, found.notices[0]) == ("old", "thread old: Old")
        assert await found.chat.converse(Typed("/threads")) == OK
    listed = [line.partition(":00  ")[2] for line in found.out.splitlines()[1:]]
    assert listed == ["Old  old", "What is new?  T", "(empty)  none"]
    server = Server()
    server.threads = []
    async with talk(server, thread=None, latest=True) as found:
        with pytest.raises(NotFound, match="--continue"):
            await found.chat.once("hi")


@pytest.mark.parametrize(
    ("key", "hint"), [(None, "put a key (sika key create) into SIKA_API_KEY"), ("x", "still valid")]
)
async def test_a_key_that_is_missing_or_wrong_is_named(
    key: str | None, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIKA_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("SIKA_API_KEY", key)
    server = Server()
    server.refusal = (401, {"code": "not_authenticated", "message": "Sign in, or send an API key"})
    async with talk(server) as found:
        with pytest.raises(Invalid) as refused:
            await found.chat.once("hi")
    assert str(refused.value).startswith("Sign in, or send an API key; ")
    assert hint in str(refused.value)


async def test_a_bad_thread_id_is_refused_here() -> None:
    async with Client("http://127.0.0.1:9", notice=print) as client:
        with pytest.raises(Invalid, match="--thread"):
            Chat(client, Interrupts(), out=print, notice=print, thread="a/b")
