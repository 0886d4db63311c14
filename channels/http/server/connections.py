"""Connections: how long a request may take to arrive, and how many one address may have open.

Rules. A connection without a request is closed after `IDLE_SECONDS`. From the first byte of a request, its headers must
be there within `http.request_timeout_seconds`. A body has as long, and a second more for every `BODY_RATE` bytes that
have arrived: slow lines are served, and senders of a byte now and then are not. Time in which *we* do not read (the
handler is slower than the sender) does not count. Bodies stay as they were sent: aiohttp would inflate them in its
parser, also those of requests that are refused.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from channels.http.server.errors import SlowBody, answer
from channels.http.server.guard import is_loopback, trusts
from channels.http.server.routes import Handler
from core.config.settings import Http
from core.identity.lockout import network

log = structlog.get_logger("sika.http")

IDLE_SECONDS = 75.0
"""Longer than proxies keep connections: they, and not we, close one that is about to be used again."""
BODY_RATE = 500
BACKLOG = 4096
"""Connections that the system keeps until they are taken. Its own limit is `net.core.somaxconn`."""
TICKS = 8
"""Checks of an arriving body within its first deadline."""
QUIET_SECONDS = 60.0
"""Between two lines about addresses with too many connections."""
_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class ConnectionLimit:
    """Counts the connections of each address. Proxies that count and this machine are not limited: behind them are
    many. `counted` says otherwise whose are.
    """

    def __init__(self, http: Callable[[], Http], counted: Callable[[str], bool] | None = None) -> None:
        self.http = http
        self._counted = counted or self._is_limited
        self._open: Counter[str] = Counter()
        self._warned_at = -QUIET_SECONDS

    def take(self, ip: str) -> str | None:
        """The place of a new connection, for `leave`; None if the address has too many."""
        most = self.http().max_connections_per_address
        if not self._counted(ip):
            return ""
        place = network(ip)
        if self._open[place] >= most:
            if time.monotonic() - self._warned_at >= QUIET_SECONDS:
                self._warned_at = time.monotonic()
                log.warning("too many connections", ip=ip, most=most, see="http.max_connections_per_address")
            return None
        self._open[place] += 1
        return place

    def leave(self, place: str) -> None:
        if place:
            self._open[place] -= 1
            if not self._open[place]:
                del self._open[place]

    def _is_limited(self, ip: str) -> bool:
        return not is_loopback(ip) and not trusts(self.http().trusted_proxies, ip)


class Connection(web.RequestHandler):
    """A connection of a client. Uses what aiohttp keeps to itself in one place: the requests whose headers are
    complete, and the one at work."""

    __slots__ = ("_late", "_place", "_places")

    def __init__(self, server: web.Server, places: ConnectionLimit, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server, loop=loop, access_log=None, keepalive_timeout=IDLE_SECONDS, auto_decompress=False)  # type: ignore[arg-type]
        self._places = places
        self._place: str | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        name = transport.get_extra_info("peername")
        self._place = self._places.take(str(name[0]) if name else "")
        if self._place is None:
            assert isinstance(transport, asyncio.WriteTransport)
            transport.abort()
        else:
            super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._in_time()
        if self._place is not None:
            self._places.leave(self._place)
            self._place = None
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages or self._current_request is not None:  # the headers of a request are complete
            self._in_time()
        elif self._late is None:
            self._late = self._loop.call_later(self._places.http().request_timeout_seconds, self._too_late)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        if self.transport is not None:
            self.transport.write(_LATE)
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Logs malformed HTTP in one line: it is no defect of the server."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        text = (message or "").partition("\n")[0].strip(" :") or "it is no HTTP"
        log.debug("malformed request", ip=request.remote, error=text)
        response = answer(400, f"malformed request: {text}", "bad_request", {"Server": "Sika"})
        response.force_close()
        return response


class Site(web.BaseSite):
    """As `web.TCPSite`, with connections of ours."""

    def __init__(self, runner: web.BaseRunner, host: str, port: int, places: ConnectionLimit) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._host, self._port, self._places = host, port, places

    @property
    def name(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        await super().start()
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None
        make = functools.partial(Connection, server, self._places, loop)
        self._server = await loop.create_server(make, self._host, self._port, backlog=self._backlog)


def middleware(http: Callable[[], Http]) -> Middleware:
    """Gives whoever reads a request's body a `SlowBody` if it does not arrive."""

    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.content.is_eof():
            return await handler(request)
        arrival = _Arrival(request, http().request_timeout_seconds)
        try:
            return await handler(request)
        finally:
            arrival.timer.cancel()

    return handle


class _Arrival:
    """Watches a body that is not there yet."""

    def __init__(self, request: web.Request, seconds: float) -> None:
        self._request, self._seconds = request, seconds
        self._spent = 0.0
        self._loop = asyncio.get_running_loop()
        self.timer = self._loop.call_later(seconds / TICKS, self._look)

    def _look(self) -> None:
        content, transport = self._request.content, self._request.transport
        if content.is_eof() or transport is None:
            return
        if transport.is_reading():
            self._spent += self._seconds / TICKS
        if self._spent >= self._seconds + content.total_bytes / BODY_RATE:
            content.set_exception(SlowBody("the body did not arrive in time"))
        else:
            self.timer = self._loop.call_later(self._seconds / TICKS, self._look)
