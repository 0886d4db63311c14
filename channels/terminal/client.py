"""The server, as a client sees it: requests, repeated while it is away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from channels.terminal.sse import value_of
from channels.terminal.text import one_line
from core import servers
from core.errors import Invalid, NotFound, Refused, SikaError, Unavailable
from core.previews import text_of

ASK_SECONDS = 30.0
LOOK_SECONDS = 3.0
SILENCE_SECONDS = 60.0
"""Servers send a sign of life every few seconds; a stream that is silent for this long is dead."""
PATIENCE_SECONDS = 60.0
PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 5.0)


def announced(home: Path) -> str | None:
    """The address of a server of this data directory whose process lives; it may not answer."""
    return next((address.url for address in servers.announced(home)), None)


async def healthy(url: str) -> bool:
    """Whether a Sika answers there, within two seconds."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
            session.get(f"{url}/health") as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return False


API_KEY = "SIKA_API_KEY"
"""Environment variable: the key for a server with accounts (`sika key create`)."""


class Client:
    """One server. `relocate` tells where it is now, should it come back elsewhere; `notice` tells the person."""

    def __init__(
        self, url: str, *, notice: Callable[[str], None], relocate: Callable[[], str | None] = lambda: None
    ) -> None:
        self.url = url.rstrip("/")
        self.notice = notice
        self.reached = False
        """Whether the server ever answered: if not, there is nothing to wait for."""
        self._relocate = relocate
        self._key = False
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_SECONDS)
        # A new connection each time: one kept from before a restart would fail just when a run is asked for.
        connector = aiohttp.TCPConnector(force_close=True)
        key = os.environ.get(API_KEY)
        self._key = bool(key)
        headers = {"X-Api-Key": key} if key else None
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def open(
        self, method: str, path: str, *, accept: Collection[int] = (), **arguments: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request. Raises what the status means, unless it is one to `accept`, and `Unavailable` if the connection
        breaks, also while reading.
        """
        assert self._session is not None
        try:
            async with self._session.request(method, self.url + path, **arguments) as response:
                self.reached = self.reached or response.status < 500
                if response.status >= 400 and response.status not in accept:
                    raise _error(response.status, await response.text(), self._key)
                yield response
        except aiohttp.InvalidURL as error:
            raise Invalid(f"{self.url}: not an address") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"{self.url}: {_reason(error)}") from error

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """A request that changes nothing or may be repeated: asked again while the server does not answer."""
        patience = Patience(self)
        while True:
            try:
                async with asyncio.timeout(ASK_SECONDS), self.open(method, path, json=body) as response:
                    raw = await response.read()
                patience.rewarded()
                return value_of(raw.decode()) if raw else None
            except TimeoutError:
                await patience.wait(Unavailable(f"{self.url}: no answer within {ASK_SECONDS:g} s"))
            except Unavailable as error:
                await patience.wait(error)

    def relocate(self) -> None:
        self.url = (self._relocate() or self.url).rstrip("/")

    async def ensure_thread(self, thread_id: str) -> None:
        body = {"thread_id": thread_id, "metadata": {"source": "terminal"}, "if_exists": "do_nothing"}
        await self.ask("POST", "/api/threads", body)

    async def threads(self, limit: int = 20) -> list[dict[str, Any]]:
        """The latest threads, each with its `title`, or else the beginning of its first message."""
        body = {
            "limit": limit,
            "select": ["thread_id", "updated_at", "status"],
            "extract": {"title": "values.title", "first": "values.messages[0].content"},
        }
        threads: list[dict[str, Any]] = await self.ask("POST", "/api/threads/search", body)
        for thread in threads:
            extracted = thread.pop("extracted", None) or {}
            thread["title"] = str(extracted.get("title") or text_of(extracted.get("first") or ""))
        return threads

    async def problems(self) -> list[str]:
        """The parts of the server that do not work as configured; none if it does not know `/ready`."""
        try:
            async with asyncio.timeout(LOOK_SECONDS), self.open("GET", "/ready", accept=(503,)) as response:
                report = value_of(await response.text())
        except (SikaError, TimeoutError):
            return []
        missing = report.get("missing") if isinstance(report, dict) else None
        parts = [part for part in missing or () if isinstance(part, dict)]
        return [f"{part.get('part')}: {part.get('reason')}" for part in parts]

    async def default_model(self) -> str:
        """The model that answers if a run names none, as the configuration calls it."""
        listed = await self.ask("GET", "/api/models")
        models = (listed.get("models") if isinstance(listed, dict) else None) or [{}]
        first: dict[str, Any] = models[0]
        name, model = first.get("name"), first.get("model")
        return f"{name} ({model})" if name and model != name else str(name or "unknown")


class Patience:
    """Waits between tries, longer and longer, and says so; gives up after a minute without a reward."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._since = 0.0
        self._tries = 0

    async def wait(self, error: Unavailable) -> None:
        if not self._client.reached:
            raise error
        now = asyncio.get_running_loop().time()
        if not self._tries:
            self._since = now
            self._client.notice(f"connection lost ({error}); trying again for up to {PATIENCE_SECONDS:g} s")
        elif now - self._since > PATIENCE_SECONDS:
            raise Unavailable(f"given up after {PATIENCE_SECONDS:g} s: {error}") from error
        await asyncio.sleep(PAUSES[min(self._tries, len(PAUSES) - 1)])
        self._tries += 1
        self._client.relocate()

    def rewarded(self) -> None:
        if self._tries:
            self._client.notice("connected again")
        self._tries = 0


def _reason(error: Exception) -> str:
    """Why a request got no answer, in words rather than in those of the protocol."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientConnectorError():
            return f"cannot be reached ({error.os_error.strerror or error.os_error})"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            return "the server closed the connection"
    return str(error) or type(error).__name__


def _error(status: int, body: str, keyed: bool) -> Exception:
    text = one_line(_detail(value_of(body)) or body, 1000) or f"status {status}"
    if status == 401:
        hint = f"is the key in {API_KEY} still valid?" if keyed else f"put a key (sika key create) into {API_KEY}"
        return Invalid(f"{text.rstrip('.')}; {hint}")
    if status >= 500 or status == 429:
        return Unavailable(text)
    return {404: NotFound, 409: Refused}.get(status, Invalid)(text)


def _detail(answer: Any) -> str:
    """What an error says: its `detail`, a text or an object with a `message`."""
    detail = answer.get("detail") if isinstance(answer, dict) else None
    if isinstance(detail, dict):
        detail = detail.get("message") or detail.get("code")
    return detail if isinstance(detail, str) else msgspec.json.encode(detail).decode() if detail else ""
