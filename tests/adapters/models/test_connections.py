"""Connections to endpoints: shared, of one event loop each, closed with it, and kept alive."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any

import anyio.to_thread
import httpx2
import openai
import pytest
from langchain_core.messages import HumanMessage

from adapters.models import connections, factory
from core.events import Json
from core.pace import pace
from tests.e2e.servers import until
from tests.support.model_server import Failure, ModelServer, Turn
from tests.support.ports import free_port

EVENTS = ("text/event-stream", 200)
ENDLESS = {
    "line": (*EVENTS, b"data: ", b"x" * 1000),
    "event": (*EVENTS, b"", b"data: x\n"),
    "document": ("application/json", 200, b'{"choices":[', b'{"index":0},\n\n'),
    "refusal": ("text/html", 500, b"", b"<p>No.</p>\n\n"),
}
"""Answers that do not end: type, status, beginning, and what is sent again and again."""
ENTRY: Json = {"name": "m", "model": "m", "api_key": "k"}


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "_built", {})
    for name in ("OPENAI_PROXY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """All sockets that were made."""
    found: list[socket.socket] = []
    make = connections._keepalive_socket

    def remembered(address: Any) -> socket.socket:
        found.append(make(address))
        return found[-1]

    monkeypatch.setattr(connections, "_keepalive_socket", remembered)
    return found


async def ask(server: ModelServer, **more: Any) -> str:
    model = factory.build({**ENTRY, "base_url": server.url, **more})
    return "".join([str(chunk.content) async for chunk in model.astream("hi")])


async def test_one_connection_for_one_after_the_other(opened: list[socket.socket]) -> None:
    async with ModelServer({"m": [Turn(text="Yes.")]}) as server:
        assert [await ask(server, temperature=number / 10) for number in range(3)] == ["Yes."] * 3
        [one] = opened
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == connections.KEEPALIVE["TCP_KEEPIDLE"]
        await factory.close()
        assert one.fileno() == -1
        assert await ask(server) == "Yes."
        assert len(opened) == 2
        await factory.close()


async def test_each_event_loop_has_its_own(opened: list[socket.socket]) -> None:
    async def there() -> str:
        try:
            return await ask(server)
        finally:
            await factory.close()

    async with ModelServer({"m": [Turn(text="Yes.")]}) as server:
        assert await ask(server) == "Yes."
        assert await anyio.to_thread.run_sync(asyncio.run, there()) == "Yes."
        assert await ask(server) == "Yes."
        here, elsewhere = opened
        assert (here.fileno() == -1, elsewhere.fileno() == -1) == (False, True)
        await factory.close()


async def test_an_endpoint_that_is_not_there() -> None:
    model = factory.build({**ENTRY, "base_url": f"http://127.0.0.1:{free_port()}/v1"})
    with pytest.raises(openai.APIConnectionError, match="Connection error"):
        await model.ainvoke("hi")
    await factory.close()


async def test_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is asked for what has no exception: here one that nobody answers at."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    async with ModelServer({"m": [Turn(text="Yes.")]}) as server:
        monkeypatch.setenv("NO_PROXY", "localhost")
        with pytest.raises(openai.APIConnectionError, match="Connection error"):
            await ask(server)
        await factory.close()
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert await ask(server) == "Yes."
        await factory.close()


@pytest.mark.parametrize("way", ["http_async_client", "openai_proxy", "http_socket_options"])
def test_whoever_says_how_to_connect_is_obeyed(way: str) -> None:
    own = httpx2.AsyncClient()
    value: Any = {"http_async_client": own, "openai_proxy": "http://localhost:1", "http_socket_options": ()}[way]
    model: Any = factory.build({**ENTRY, way: value})
    used = model.root_async_client._client
    assert used is not connections.shared()
    assert (used is own) == (way == "http_async_client")


@pytest.mark.parametrize(("kind", "status", "beginning", "piece"), ENDLESS.values(), ids=ENDLESS)
async def test_an_answer_that_does_not_end_is_dropped(
    monkeypatch: pytest.MonkeyPatch, kind: str, status: int, beginning: bytes, piece: bytes
) -> None:
    monkeypatch.setattr(connections, "ANSWER_BYTES", 100_000)
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\n\r\n".encode() + beginning)
        try:
            while True:
                writer.write(piece * (8000 // len(piece)))
                await writer.drain()
        except ConnectionError:
            closed.set()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        model = factory.build({**ENTRY, "base_url": f"http://127.0.0.1:{port}/v1"})
        with pytest.raises(Exception) as raised:  # noqa: PT011 (the SDK wraps some)
            [chunk async for chunk in model.astream("hi")]
        await closed.wait()
        await factory.close()
    assert str(raised.value) == "the model's answer has more than 100000 bytes, so it was dropped"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
async def test_the_events_of_a_stream_are_bounded_one_by_one(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(connections, "ANSWER_BYTES", 300)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\n\r\n")
        for text in [b'{"choices":[{"index":0,"delta":{"content":"x"}}]}'] * 20 + [b"[DONE]"]:
            for piece in (b"data: ", text, *(bytes([byte]) for byte in end)):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        model = factory.build({**ENTRY, "base_url": f"http://127.0.0.1:{port}/v1"})
        assert "".join([str(chunk.content) async for chunk in model.astream("hi")]) == "x" * 20
        await factory.close()


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_refusals_are_the_sdks_own(status: int) -> None:
    turn = Turn(error=Failure(status=status, message="no", headers={"retry-after": "7"}))
    async with ModelServer({"m": [turn]}) as server:
        with pytest.raises(Exception, match="no") as refused:
            await ask(server)
        await factory.close()
    response: Any = refused.value
    assert response.status_code == status
    assert response.response.headers["retry-after"] == "7"


_BODY = b'{"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)


async def head_of(reader: asyncio.StreamReader) -> bytes | None:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("answers", "requests"), [([1, 1], 3), ([0], 1), ([2, 0], 4)])
async def test_a_kept_connection_that_ends_costs_no_attempt(answers: list[int], requests: int, reset: bool) -> None:
    """`answers`: how many requests each connection answers before it ends at the next one, in the order of opening."""
    sizes: list[int] = []
    ended: list[int] = []
    plan = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = next(plan)
        while (head := await head_of(reader)) is not None:
            [length] = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(length)
            sizes.append(length)
            if not left:
                break
            left -= 1
            writer.write(ANSWER)
            await writer.drain()
        if reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.append(left)

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        model: Any = factory.build({**ENTRY, "base_url": f"http://127.0.0.1:{port}/v1"})
        for _ in range(sum(answers)):
            assert [piece.text async for piece in model.pieces([HumanMessage("hi")])] == ["Yes."]
        if not answers[-1]:
            with pytest.raises(openai.APIConnectionError):
                [piece async for piece in model.pieces([HumanMessage("hi")])]
        await factory.close()
        await until(lambda: len(ended) == len(answers))
    assert len(sizes) == requests
    assert len(set(sizes)) == 1


async def parts(server: ModelServer) -> list[bytes]:
    """Returns the body of an answer, as it is handed on."""
    request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with connections.shared().stream("POST", f"{server.url}/chat/completions", json=request) as response:
        return [part async for part in response.aiter_raw()]


async def test_a_busy_process_gathers_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are the same, the first ones come at once, and the end is not waited for."""
    number = 100
    words = " ".join(f"word-{place}" for place in range(number))
    async with ModelServer({"m": [Turn(text=words, delay_ms=5)]}) as server:
        single = await parts(server)
        monkeypatch.setattr(pace, "seconds", 0.05)
        gathered = await parts(server)
        monkeypatch.setattr(pace, "seconds", 3600.0)
        at_once = await parts(server)
        await factory.close()
    assert b"".join(single) == b"".join(gathered) == b"".join(at_once)
    assert len(gathered) < number / 2, "on a busy machine the system gathers, too"
    assert [len(part) for part in at_once[: connections.AT_ONCE]] == [
        len(part) for part in single[: connections.AT_ONCE]
    ]
    assert len(at_once) <= connections.AT_ONCE + 2, "all that was left, at the end of the body"
