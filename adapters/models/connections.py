"""Connections to OpenAI-compatible endpoints: one pool per event loop for all models, on aiohttp, whose parser is
compiled. A run with a long answer takes a quarter less CPU than on httpx's own connections (decision 8).
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
import httpx2
from aiohttp import AddrInfoType
from openai import DefaultAioHttpClient, DefaultAsyncHttpxClient
from openai._vendor.httpx_aiohttp.transport import map_aiohttp_exceptions

from core.pace import pace
from core.ports.models import ANSWER_BYTES, BEFORE_REQUEST, AnswerTooLong

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 120_000}
"""Socket options that detect a dead peer in some two minutes (`ChatOpenAI.http_socket_options` has the same). Seconds;
the last is in milliseconds. An option that a system lacks is skipped.
"""

AT_ONCE = 3
"""Parts of a body that are handed on as they come: the first words of an answer are among them."""
GATHERED_BYTES = 4096
"""A part of this size comes of a model that is faster than we read."""

BEAT_SECONDS = 0.05
"""Waits for more end at multiples of this, all at once: what they lead to costs less in a row, and one message to NATS
takes it all along.
"""

_BODY = "sika.body"
"""The extension of a response whose body is read directly."""

_reused: ContextVar[bool] = ContextVar("reused", default=False)
"""True while the request of this task is sent on a connection that another one was sent on before."""


@cache
def shared() -> httpx2.AsyncClient:
    """Returns the SDK's HTTP client for all models. It works in any event loop, also in several at once."""
    return DefaultAsyncHttpxClient(transport=_Pools())


class _Pools(httpx2.AsyncBaseTransport):
    """A pool per event loop: a connection belongs to the event loop that it was opened in."""

    def __init__(self) -> None:
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = WeakKeyDictionary()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = _open()
        try:
            response = await client._transport_for_url(request.url).handle_async_request(request)
        except httpx2.ConnectTimeout as error:  # it reports all errors of connecting as this
            if isinstance(error.__cause__, TimeoutError):
                raise
            raise httpx2.ConnectError(str(error), request=request) from error.__cause__
        response.stream = body = _Bounded(response)
        if body.is_direct:
            response.extensions[_BODY] = body
        return response

    async def aclose(self) -> None:
        """Closes the connections of this event loop; the next request opens others."""
        if client := self._clients.pop(asyncio.get_running_loop(), None):
            await client.aclose()


def blocks(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """Returns the body of a response, part by part; one without a content encoding without the layers in between. Its
    errors are those of the SDK's HTTP client. The caller closes the response.
    """
    body = response.extensions.get(_BODY)
    return body.__aiter__() if isinstance(body, _Bounded) else response.aiter_bytes()


class _Bounded(httpx2.AsyncByteStream):
    """The body of a response. Raises `AnswerTooLong` when it has more than `ANSWER_BYTES`. In a stream of events, whose
    sum the run counts, that is the limit of each event: the SDK keeps one until it ends. Small parts of a stream of
    events are gathered while the process is busy (`core.pace`), as each costs the same on its way through the layers.
    """

    def __init__(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        answer = getattr(response.stream, "_aiohttp_response", None)
        self._content: aiohttp.StreamReader | None = answer.content if answer is not None else None
        encoding = response.headers.get("content-encoding", "identity")
        self.is_direct = self._content is not None and encoding.lower() == "identity"
        """True: it yields the content as it is, without an encoding."""
        self._pause: asyncio.Future[None] | None = None
        self._whole = response.status_code >= 400 or "json" in response.headers.get("content-type", "")

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        size, last, parts = 0, b"", 0
        async for data in self._stream if self._content is None else _read(self._content):
            size += len(data)
            if not self._whole:
                last += data
                end = max(last.rfind(b"\n\n"), last.rfind(b"\n\r\n"))
                size = size if end < 0 else len(last) - end
                last = last[-2:]
            if size > ANSWER_BYTES:
                raise AnswerTooLong(ANSWER_BYTES)
            yield data
            if (parts := parts + 1) >= AT_ONCE and pace.seconds and not self._whole and len(data) < GATHERED_BYTES:
                await self._more(pace.seconds)

    async def _more(self, seconds: float) -> None:
        """Waits, but not longer than until the end of the body."""
        if self._content is None or self._content.is_eof():
            return
        if self._pause is None:
            self._content.on_eof(self._go_on)
        loop = asyncio.get_running_loop()
        self._pause = loop.create_future()
        timer = loop.call_at(math.ceil((loop.time() + seconds) / BEAT_SECONDS) * BEAT_SECONDS, self._go_on)
        try:
            await self._pause
        finally:
            timer.cancel()

    def _go_on(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _read(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    with map_aiohttp_exceptions():
        while data := await content.readany():
            yield data


def _open() -> httpx2.AsyncClient:
    """Returns the SDK's client on aiohttp, which uses the proxies of the environment. Its sockets have keepalive."""
    client = DefaultAioHttpClient()
    for transport in {client._transport, *client._mounts.values()} - {None}:
        transport.client = partial(_session, transport)  # type: ignore[union-attr]
    return client


def _session(transport: Any) -> aiohttp.ClientSession:
    limits: httpx2.Limits = transport.limits
    connector = aiohttp.TCPConnector(
        ssl=transport.ssl_context,
        limit=0,  # runs at work are bounded, and requests to a provider if it is configured (`slots`)
        keepalive_timeout=limits.keepalive_expiry,
        socket_factory=_keepalive_socket,
    )
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        middlewares=(_confirmed_first,),
        trace_configs=[trace],
    )


async def _note_reuse(*_: Any) -> None:
    _reused.set(True)


async def _confirmed_first(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Sends a request, again and at once while a kept connection ends before a byte of the answer: its server had
    closed it, as some do that said they would not. A new connection that ends so is an error.
    """
    if isinstance(request.body, aiohttp.BytesPayload):
        await request.update_body(_Confirmed(await request.body.as_bytes()))
    while True:
        _reused.set(False)
        try:
            return await send(request)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if not _reused.get():
                raise


class _Confirmed(aiohttp.BytesPayload):
    """A body that is confirmed when it is about to be written, which is when there is a connection. Without its body
    a request is none.
    """

    async def write_with_length(self, writer: aiohttp.abc.AbstractStreamWriter, content_length: int | None) -> None:
        if confirm := BEFORE_REQUEST.get():
            await confirm()
        await super().write_with_length(writer, content_length)


def _keepalive_socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    sock = socket.socket(family=family, type=kind, proto=protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        with suppress(AttributeError, OSError):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock
