"""HTTP of the client: responses or errors, with timeouts, and one retry policy.

The policy: repeatable requests and streams are retried after a broken connection, and after a temporary error (502,
503, 504, or any with `Retry-After`). A server that has answered before may be away for `AWAY_SECONDS`, one that never
did for `FIRST_SECONDS`. `on_outage` is called at the beginning and the end of each outage.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
from anyio import to_thread

from channels.client.errors import ClientError, Invalid, Unavailable, Unsupported, closed, of_response
from channels.client.servers import is_local
from channels.client.sse import value_of
from core import reasons

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""Read timeout of streams and uploads; servers send heartbeats more often."""
AWAY_SECONDS = 60.0
FIRST_SECONDS = 10.0
PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 5.0)
"""Seconds between attempts."""
MAX_PAUSE = 5.0
UNREACHABLE = "unreachable"
_UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=20)
_NOT_NOW = (502, 503, 504)

OnOutage = Callable[[Unavailable | None], None]
"""Called with the error when a server goes away, and with None when it answers again."""


class Target(NamedTuple):
    """The address of a server, and the headers that identify the user."""

    url: str
    headers: Mapping[str, str]
    locate: Callable[[], str | None] = lambda: None
    """Returns the current URL of a server that came back elsewhere."""
    ended: Callable[[], ClientError | None] = lambda: None
    """Returns the reason why the server will not come back, if known."""


class Reply(NamedTuple):
    body: bytes
    headers: httpx.Headers


class Transport:
    """Connections to a server, of one event loop. `timeout` is in seconds per request."""

    def __init__(self, target: Target, timeout: float, on_outage: OnOutage) -> None:
        self.reached = False
        """True if the server ever answered."""
        self._target = target
        self._timeout = timeout
        self.on_outage = on_outage
        limits = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        try:
            self._http = httpx.AsyncClient(
                base_url=target.url,
                headers=dict(target.headers),
                timeout=limits,
                trust_env=not is_local(target.url),
                limits=_UNLIMITED,
            )
        except (httpx.InvalidURL, ValueError):
            raise Invalid(f"url: {target.url}: not an address of a server") from None

    async def close(self) -> None:
        await self._http.aclose()

    def relocate(self) -> None:
        """Updates the URL of the server."""
        if url := self._target.locate():
            self._http.base_url = url

    async def ask(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, safe: bool = False
    ) -> Any:
        """Sends a request and returns the JSON. `safe`: it may be repeated (as any GET)."""
        response = await self.fetch(method, path, body, query=query, safe=safe)
        return value_of(response.body.decode(errors="replace")) if response.body else None

    async def fetch(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        safe: bool = False,
        timeout: float | None = None,
        accept: Collection[int] = (),
    ) -> Reply:
        """Sends a request; retries it if it is safe, or if the server was not reached."""
        safe, seconds = safe or method == "GET", timeout or self._timeout
        retries = Retries(self)
        while True:
            try:
                with anyio.fail_after(seconds):
                    async with self.open(method, path, accept=accept, json=body, params=query) as response:
                        reply = Reply(await response.aread(), response.headers)
                retries.succeeded()
                return reply
            except TimeoutError:
                raise Unavailable(f"{method} {path}: no answer within {seconds:g} s", "timeout") from None
            except Unavailable as error:
                if not (safe or error.code == UNREACHABLE):
                    raise
                await retries.wait(error)

    @asynccontextmanager
    async def open(
        self, method: str, path: str, *, accept: Collection[int] = (), **arguments: Any
    ) -> AsyncIterator[httpx.Response]:
        """Opens a response. Raises the error of its status, unless `accept` has it, and `Unavailable` if the connection
        breaks, also while reading.
        """
        if self._http.is_closed:
            raise closed()
        try:
            async with self._http.stream(method, path, **arguments) as response:
                self.reached = self.reached or response.status_code < 500
                if response.status_code >= 400 and response.status_code not in accept:
                    raise of_response(response.status_code, response.headers, await response.aread())
                if response.is_redirect:
                    raise ClientError(f"{response.url}: sends us elsewhere", "redirected", response.status_code)
                yield response
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise Invalid(f"{self._http.base_url}: not an address of a server") from error
        except httpx.HTTPError as error:
            reached = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            text = f"{str(self._http.base_url).rstrip('/')}: {_reason(error)}"
            raise self._target.ended() or Unavailable(text, "connection_lost" if reached else UNREACHABLE) from error

    async def send_files(self, path: str, field: str, files: Sequence[Path]) -> Any:
        """Sends files as a form, read while they are sent. Never retries."""
        with ExitStack() as opened:
            parts = []
            for file in files:
                source = opened.enter_context(await to_thread.run_sync(file.open, "rb"))
                parts.append((field, (_sendable(file.name), source, "application/octet-stream")))
            form = self._http.build_request("POST", path, files=parts)
            assert isinstance(form.stream, httpx.SyncByteStream)
            async with self.open("POST", path, content=_read(iter(form.stream)), headers=_head(form)) as response:
                return value_of((await response.aread()).decode(errors="replace"))


class Retries:
    """Pauses between the attempts of a request or stream."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lost_at: float | None = None
        self._attempts = 0

    async def wait(self, error: Unavailable) -> None:
        """Sleeps before the next attempt. Raises the error if a retry is useless, or after the timeout."""
        if isinstance(error, Unsupported) or not (error.status in (None, *_NOT_NOW) or error.retry_after is not None):
            raise error
        now = anyio.current_time()
        if self._lost_at is None:
            self._lost_at = now
            self._transport.on_outage(error)
        patience = AWAY_SECONDS if self._transport.reached else FIRST_SECONDS
        if now - self._lost_at > patience:
            raise Unavailable(f"given up after {patience:g} s: {error}", error.code, error.status) from error
        pause = PAUSES[min(self._attempts, len(PAUSES) - 1)]
        await anyio.sleep(min(pause if error.retry_after is None else error.retry_after, MAX_PAUSE))
        self._attempts += 1
        self._transport.relocate()

    def succeeded(self) -> None:
        if self._lost_at is not None:
            self._transport.on_outage(None)
        self._lost_at, self._attempts = None, 0


def _reason(error: httpx.HTTPError) -> str:
    """Returns the reason of a broken connection, fit for people."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return f"cannot be reached: {reasons.lost(error)}"
        case httpx.ReadTimeout():
            return f"silent for {SILENCE_SECONDS:g} s"
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return "the server closed the connection"
    return reasons.lost(error)


async def _read(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yields pieces of files, read in a thread."""
    while piece := await to_thread.run_sync(next, pieces, b""):
        yield piece


def _head(form: httpx.Request) -> dict[str, str]:
    return {name: form.headers[name] for name in ("Content-Type", "Content-Length") if name in form.headers}


def _sendable(name: str) -> str:
    """Returns a file name as UTF-8, with `?` for what is none: names on a disk need not be. The answer has it."""
    return name.encode("utf-8", "replace").decode()
