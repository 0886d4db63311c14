"""HTTP as the client needs it: answers or errors, with deadlines, asked again where that cannot do harm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
from anyio import to_thread

from channels.client.errors import ClientError, Invalid, Unavailable, Unsupported, closed, of_answer
from channels.terminal.sse import value_of

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""Servers send a sign of life every few seconds; a stream, or the answer to an upload, silent for this long is dead."""
PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds between tries."""
MOST_PAUSE = 5.0
UNREACHABLE = "unreachable"
_ANY = httpx.Limits(max_connections=None, max_keepalive_connections=20)


class Place(NamedTuple):
    """Where a server is, and what says who we are."""

    url: str
    headers: Mapping[str, str]
    proxies: bool = True
    """Whether proxies of the environment may be between us."""
    ended: Callable[[], ClientError | None] = lambda: None
    """Why the server will not come back, if that is known."""


class Answer(NamedTuple):
    body: bytes
    headers: httpx.Headers


class Wire:
    """Connections to one server, of one event loop. `timeout`: seconds for a whole request."""

    def __init__(self, place: Place, timeout: float) -> None:
        self._timeout = timeout
        self._ended = place.ended
        limits = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        try:
            self._http = httpx.AsyncClient(
                base_url=place.url, headers=dict(place.headers), timeout=limits, trust_env=place.proxies, limits=_ANY
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise Invalid(f"url: {place.url}: {error}") from None

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, safe: bool = False
    ) -> Any:
        """A request and its JSON. `safe`: it changes nothing, or may be repeated (as any GET)."""
        answer = await self.fetch(method, path, body, query=query, safe=safe)
        return value_of(answer.body.decode(errors="replace")) if answer.body else None

    async def fetch(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        safe: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """Asked again if that is safe: when the server was not reached, was lost, or says when to come back."""
        safe, seconds = safe or method == "GET", timeout or self._timeout
        for pause in (*PAUSES, None):
            try:
                with anyio.fail_after(seconds):
                    async with self.open(method, path, json=body, params=query) as response:
                        return Answer(await response.aread(), response.headers)
            except TimeoutError:
                raise Unavailable(f"{method} {path}: no answer within {seconds:g} s", "timeout") from None
            except Unavailable as error:
                again = error.status is None or error.retry_after is not None
                repeatable = error.code == UNREACHABLE or (safe and again)
                if pause is None or not repeatable or isinstance(error, Unsupported):
                    raise
                await anyio.sleep(min(error.retry_after or pause, MOST_PAUSE))
        raise AssertionError("the last try raises")

    @asynccontextmanager
    async def open(self, method: str, path: str, **arguments: Any) -> AsyncIterator[httpx.Response]:
        """A request. Raises what the status means, and `Unavailable` if the connection breaks, also while reading."""
        if self._http.is_closed:
            raise closed()
        try:
            async with self._http.stream(method, path, **arguments) as response:
                if response.status_code >= 400:
                    raise of_answer(response.status_code, response.headers, await response.aread())
                if response.is_redirect:
                    raise ClientError(f"{response.url}: sends us elsewhere", "redirected", response.status_code)
                yield response
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise Invalid(f"{self._http.base_url}: not an address of a server") from error
        except httpx.HTTPError as error:
            reached = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            text = f"{self._http.base_url}: {error or type(error).__name__}"
            raise self._ended() or Unavailable(text, "connection_lost" if reached else UNREACHABLE) from error

    async def send_files(self, path: str, field: str, files: Sequence[Path]) -> Any:
        """Files as a form, read while they are sent. Never repeated."""
        with ExitStack() as opened:
            parts = []
            for file in files:
                source = opened.enter_context(await to_thread.run_sync(file.open, "rb"))
                parts.append((field, (_sendable(file.name), source, "application/octet-stream")))
            form = self._http.build_request("POST", path, files=parts)
            assert isinstance(form.stream, httpx.SyncByteStream)
            async with self.open("POST", path, content=_read(iter(form.stream)), headers=_head(form)) as response:
                return value_of((await response.aread()).decode(errors="replace"))


async def _read(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces of files, read in a thread."""
    while piece := await to_thread.run_sync(next, pieces, b""):
        yield piece


def _head(form: httpx.Request) -> dict[str, str]:
    return {name: form.headers[name] for name in ("Content-Type", "Content-Length") if name in form.headers}


def _sendable(name: str) -> str:
    """A file name as UTF-8: names on a disk need not be."""
    return name.encode("utf-8", "replace").decode()
