"""Connections that send slowly, too many of them, and what they send that is no HTTP or is compressed."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp.http_parser
import pytest
import structlog.testing
from aiohttp import web

from channels.http.app import Services, build
from channels.http.server import connections
from channels.http.server.connections import ConnectionLimit, Site
from core.config.settings import Http
from tests.channels.http.conftest import Settings
from tests.support.nats import eventually

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/threads HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Line:
    """A connection, as bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer; (0, b"") if the connection ended instead."""
        async with asyncio.timeout(120):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0, b""
            length = next(
                int(v) for k, _, v in (h.partition(b": ") for h in head.split(b"\r\n")) if k == b"Content-Length"
            )
            return int(head.split(b" ")[1]), await self.reader.readexactly(length)

    async def ended(self) -> bool:
        async with asyncio.timeout(120):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def line(url: str) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "GZIP", "identity, gzip", "x-unknown"])
async def test_compressed_bodies_are_refused_unread(url: str, coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing inflates them: also not what reads the rest of a body that nobody wants."""

    def inflate(*_: object, **__: object) -> None:
        raise AssertionError("inflated")

    monkeypatch.setattr(aiohttp.http_parser.DeflateBuffer, "__init__", inflate)
    body = gzip.compress(b"x" * 1_000_000)
    async with line(url) as one:
        one.send(POST + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding.encode(), len(body)) + body)
        status, text = await one.answer()
        assert (status, json.loads(text)["code"]) == (415, "content_encoding")
        assert await one.ended()


async def test_bodies_that_are_not_compressed_may_say_so(url: str) -> None:
    async with line(url) as one:
        one.send(POST + b"Content-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}")
        assert (await one.answer())[0] == 200


async def test_headers_must_arrive_in_time(url: str, config: Settings) -> None:
    """The deadline is that of a request: a connection that waits for one stays."""
    config.http = Http(request_timeout_seconds=0.2)
    async with line(url) as idle, line(url) as slow, line(url) as second:
        for one in (idle, second):
            one.send(HEAD + b"\r\n")
            assert (await one.answer())[0] == 200
        slow.send(HEAD)
        second.send(HEAD + b"X-Slow: ")
        for one in (slow, second):
            assert (await one.answer())[0] == 408
            assert await one.ended()
        idle.send(HEAD + b"\r\n")
        assert (await idle.answer())[0] == 200


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": uvloop}) for uvloop in (False, True)])
async def test_headers_of_the_first_segment_must_arrive_in_time_too(url: str, config: Settings) -> None:
    """They may lie there before the handler of the connection has begun, as with uvloop."""
    config.http = Http(request_timeout_seconds=0.2)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    sockets = [socket.create_connection(address) for _ in range(8)]
    for each in sockets:
        each.sendall(HEAD + b"X: ")
    for each in sockets:
        reader, writer = await asyncio.open_connection(sock=each)
        slow = Line(reader, writer)
        assert (await slow.answer())[0] == 408
        assert await slow.ended()
        writer.transport.abort()


async def test_idle_connections_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that never sent anything, and those that were answered; a proxy's, which lasts a minute, is not cut off."""
    assert connections.IDLE_SECONDS == 75
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.2)
    async with line(url) as silent, line(url) as answered:
        answered.send(HEAD + b"\r\n")
        assert (await answered.answer())[0] == 200
        assert await silent.ended()
        assert await answered.ended()


async def test_bodies_must_arrive_in_time(url: str, config: Settings) -> None:
    """Who has sent much may take longer for the rest."""
    config.http = Http(request_timeout_seconds=0.2)
    async with line(url) as slow, line(url) as steady:
        steady.send(POST + b'Content-Length: 20013\r\n\r\n{"metadata":{' + b" " * 19_998)
        slow.send(POST + b"Content-Length: 100\r\n\r\n{")
        status, text = await slow.answer()
        assert (status, json.loads(text)["code"]) == (408, "slow_body")
        assert await slow.ended()
        steady.send(b"}}")
        assert (await steady.answer())[0] == 200


async def test_an_address_has_so_many_connections(services: Services, config: Settings) -> None:
    config.http = Http(max_connections_per_address=2)
    runner = web.AppRunner(build(services))
    await runner.setup()
    await Site(runner, "127.0.0.1", 0, ConnectionLimit(lambda: config.http, counted=lambda _: True)).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def served() -> bool:
        async with line(url) as one:
            one.send(HEAD + b"\r\n")
            return (await one.answer())[0] == 200

    try:
        async with line(url) as one:
            async with line(url) as two:
                for open_ in (one, two):
                    open_.send(HEAD + b"\r\n")
                    assert (await open_.answer())[0] == 200
                assert not await served()
            await eventually(served)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("addresses", "places"),
    [
        (("127.0.0.1", "127.0.0.1", "127.0.0.1"), 3),
        (("10.1.2.3", "10.1.2.3", "10.1.2.3"), 3),
        (("192.0.2.1", "192.0.2.1", "192.0.2.2"), 2),
        (("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"), 2),
    ],
)
def test_whose_connections_are_counted(addresses: tuple[str, ...], places: int) -> None:
    """Neither this machine's nor those of a proxy, behind which are many; of IPv6 those of a network."""
    http = Http(max_connections_per_address=1, trusted_proxies=("10.0.0.0/8",))
    counter = ConnectionLimit(lambda: http)
    assert len([one for one in map(counter.take, addresses) if one is not None]) == places


@pytest.fixture
def chatty() -> Iterator[None]:
    """Debug lines are not dropped, whatever tests before have configured."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("chatty")
@pytest.mark.parametrize(
    "data",
    [b"GET /health HTTP/1.1\r\nBad Header\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"FETCH / HTTP/9.9\r\n\r\n"],
)
async def test_what_is_no_http_costs_a_line(url: str, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """And none in the usual log: anybody can send it."""
    with caplog.at_level(logging.DEBUG), structlog.testing.capture_logs() as lines:
        async with line(url) as one:
            one.send(data)
            status, text = await one.answer()
            assert (status, json.loads(text)["code"]) == (400, "bad_request")
            assert await one.ended()
    assert [(entry["event"], entry["log_level"]) for entry in lines] == [("malformed request", "debug")]
    assert "\n" not in lines[0]["error"]
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]
