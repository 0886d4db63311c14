"""The server, as a client sees it: requests, and runs that are followed over broken connections.

A run does not need its reader: it goes on while nobody listens, also when the server is restarted. So a broken connection
is answered by asking again, from the last frame that was seen. The only doubtful moment is the request for the run itself:
it carries a key of ours in the run's metadata, so that after a break we look whether it got through before we ask again.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from core.errors import Invalid, NotFound, Refused, Unavailable
from core.ids import uuid7

ASK_SECONDS = 30.0
SILENCE_SECONDS = 60.0
"""Servers send a sign of life every few seconds; a stream that is silent for this long is dead."""
PATIENCE_SECONDS = 60.0
PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 5.0)
MODES = ("messages-tuple", "values", "custom")
_RUN = re.compile(r"/runs/([^/?]+)$")
_OPEN = ("pending", "running")


class Frame(NamedTuple):
    """One server-sent event."""

    event: str
    data: Any
    id: str = ""


class Parser:
    """Bytes of an event stream, cut anywhere, to frames. What is not complete is never a frame."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._fields: dict[str, str] = {}

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        *lines, self._rest = (self._rest + self._decoder.decode(chunk)).split("\n")
        for line in lines:
            line = line.removesuffix("\r")
            if line:
                self._field(line)
            elif self._fields:
                fields, self._fields = self._fields, {}
                if "data" in fields:
                    yield Frame(fields.get("event", "message"), _value(fields["data"]), fields.get("id", ""))

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and name in self._fields:
            value = f"{self._fields[name]}\n{value}"
        if name:
            self._fields[name] = value


async def frames_of(chunks: AsyncIterable[bytes]) -> AsyncIterator[Frame]:
    parser = Parser()
    async for chunk in chunks:
        for frame in parser.feed(chunk):
            yield frame


def announced(home: Path) -> str | None:
    """The address a server of this data directory last wrote down; it may be gone."""
    try:
        found = msgspec.json.decode((home / "server.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    return str(found["url"]) if "url" in found else None


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
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_SECONDS)
        # A new connection each time: one kept from before a restart would fail just when a run is asked for.
        connector = aiohttp.TCPConnector(force_close=True)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def open(self, method: str, path: str, **arguments: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request. Raises what the status means, and `Unavailable` if the connection breaks, also while reading."""
        assert self._session is not None
        try:
            async with self._session.request(method, self.url + path, **arguments) as response:
                self.reached = self.reached or response.status < 500
                if response.status >= 400:
                    raise _error(response.status, await response.text())
                yield response
        except aiohttp.InvalidURL as error:
            raise Invalid(f"{self.url}: not an address") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"{self.url}: {error or type(error).__name__}") from error

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """A request that changes nothing or may be repeated: asked again while the server does not answer."""
        patience = Patience(self)
        while True:
            try:
                async with asyncio.timeout(ASK_SECONDS), self.open(method, path, json=body) as response:
                    raw = await response.read()
                patience.rewarded()
                return _value(raw.decode()) if raw else None
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
        found: list[dict[str, Any]] = await self.ask("POST", "/api/threads/search", {"limit": limit})
        return found


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


class Turn:
    """One message of a person and the run that answers it."""

    def __init__(self, client: Client, thread_id: str, text: str, *, plan: bool = False) -> None:
        self.run: str | None = None
        self.status: str | None = None
        """How the run ended, when `frames` has come to its end."""
        self._client = client
        self._runs = f"/api/threads/{thread_id}/runs"
        self._key = uuid7()
        self._asked = False
        self._last = "-1"
        self._body = {
            "assistant_id": "lead_agent",
            "input": {"messages": [{"type": "human", "id": self._key, "content": text}]},
            "metadata": {"terminal_key": self._key},
            "context": {"is_plan_mode": True} if plan else {},
            "stream_mode": MODES,
            "stream_resumable": True,
            "on_disconnect": "continue",
            "multitask_strategy": "reject",
        }

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """The run's frames, each once, until it has ended."""
        patience = Patience(self._client)
        while self.status is None:
            try:
                async with self._open() as response:
                    async for frame in frames_of(response.content.iter_any()):
                        patience.rewarded()
                        self._saw(frame)
                        yield frame
                status = await self._ended()
                if status is None:
                    raise Unavailable("the stream ended before the run")
                self.status = status
            except Unavailable as error:
                await patience.wait(error)

    async def cancel(self) -> None:
        """Ask the run to stop; its frames then come to an end."""
        try:
            run = self.run or await self._find()
            if run is not None:
                await self._client.ask("POST", f"{self._runs}/{run}/cancel?action=interrupt")
        except (NotFound, Refused):
            return  # it has ended by itself

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[aiohttp.ClientResponse]:
        if self.run is None and self._asked:
            self.run = await self._find()
        if self.run is None:
            self._asked = True
            async with self._client.open("POST", f"{self._runs}/stream", json=self._body) as response:
                if found := _RUN.search(response.headers.get("Content-Location", "")):
                    self.run = found[1]
                yield response
            return
        parameters = [("stream_mode", mode) for mode in MODES]
        headers = {"Last-Event-ID": self._last}
        path = f"{self._runs}/{self.run}/stream"
        async with self._client.open("GET", path, params=parameters, headers=headers) as response:
            yield response

    def _saw(self, frame: Frame) -> None:
        self._last = frame.id or self._last
        if frame.event == "metadata" and isinstance(frame.data, dict):
            self.run = str(frame.data.get("run_id") or self.run)

    async def _find(self) -> str | None:
        """The run of our request, if it got through."""
        for run in await self._client.ask("GET", f"{self._runs}?limit=10"):
            if (run.get("metadata") or {}).get("terminal_key") == self._key:
                return str(run["run_id"])
        return None

    async def _ended(self) -> str | None:
        run = await self._client.ask("GET", f"{self._runs}/{self.run}") if self.run else {}
        status = run.get("status")
        return None if status is None or status in _OPEN else str(status)


def _error(status: int, body: str) -> Exception:
    answer = _value(body)
    detail = answer.get("detail") if isinstance(answer, dict) else None
    text = str(detail or body[:200] or f"status {status}")
    if status >= 500 or status == 429:
        return Unavailable(text)
    return {404: NotFound, 409: Refused}.get(status, Invalid)(text)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        return text
