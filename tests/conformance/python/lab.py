"""What the cases are made of: a client, the same server over plain HTTP, the models' gates, a line that can be cut.

This runs in an interpreter with any release of the SDK: it imports nothing else of ours.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from langgraph_sdk.client import LangGraphClient, get_client

AGENT = "lead_agent"
SECONDS = 60.0
"""After which something that a case waits for will not happen any more."""

Case = Callable[["Lab"], Awaitable[None]]
CASES: dict[str, Case] = {}
"""All cases by name: `<module>.<function>`, and for tables `[row]` behind it."""


class Skipped(Exception):
    """The case says nothing about this release."""


def case(function: Case) -> Case:
    CASES[_name(function)] = function
    return function


def table(*rows: Sequence[Any]) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """A case for each row, which is given to the function after the lab."""

    def declare(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        for number, row in enumerate(rows):
            label = "-".join(str(value).replace(" ", "-") for value in row if isinstance(value, str | int))
            name = f"{_name(function)}[{label or number}]"
            assert name not in CASES, name
            CASES[name] = lambda lab, row=row: function(lab, *row)  # type: ignore[misc]
        return function

    return declare


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


class Alternating(httpx.AsyncBaseTransport):
    """Each request goes to the next server, whatever its address says."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = itertools.cycle([httpx.URL(url) for url in urls])
        self._wire = httpx.AsyncHTTPTransport(retries=5)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        there = next(self._urls)
        request.url = request.url.copy_with(host=there.host, port=there.port)
        request.headers["Host"] = f"{there.host}:{there.port}"
        return await self._wire.handle_async_request(request)

    async def aclose(self) -> None:
        await self._wire.aclose()


@dataclass
class Lab:
    urls: Sequence[str]
    client: Any
    """The SDK's `LangGraphClient`; its types differ from release to release."""
    http: httpx.AsyncClient
    """The same server; paths as the SDK has them."""
    models: httpx.AsyncClient
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """A word of this case's own: its gate, its metadata."""

    # ── doing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def thread(self, **more: Any) -> str:
        return str((await self.client.threads.create(**more))["thread_id"])

    async def said(self, model: str = "hello", *, thread: str | None = None, **more: Any) -> tuple[str, Any]:
        """A thread with one turn done: its id and the values."""
        found = thread or await self.thread()
        return found, await self.client.runs.wait(found, AGENT, **self.asked(model, **more))

    def asked(self, model: str = "hello", text: str = "Hi", **more: Any) -> Any:
        """The arguments of a run. The mark of the case ends what the user says."""
        return {
            "input": {"messages": [{"role": "user", "content": f"{text} @{self.mark}"}]},
            "context": {"model_name": model},
            **more,
        }

    async def reached(self, mark: str | None = None) -> None:
        """Return when a model waits at the gate of this case."""
        (await self.models.get(f"/control/waiting/{mark or self.mark}")).raise_for_status()

    async def release(self, mark: str | None = None) -> None:
        (await self.models.post(f"/control/release/{mark or self.mark}")).raise_for_status()

    async def status(self, thread: str, run: str) -> str:
        return str((await self.client.runs.get(thread, run))["status"])

    async def ended(self, thread: str, run: str) -> str:
        """The run's last status."""

        async def over() -> str:
            status = await self.status(thread, run)
            return "" if status in ("pending", "running") else status

        return str(await eventually(over))

    async def texts(self, thread: str) -> list[Any]:
        """What was said in the thread, the marks left out."""
        return contents((await self.client.threads.get_state(thread))["values"], self.mark)

    # ── plain HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200, **more: Any) -> Any:
        response = await self.http.request(method, path, **({} if body is None else {"json": body}), **more)
        assert response.status_code == status, (response.status_code, response.text)
        return response.json() if response.content else None

    async def frames(self, method: str, path: str, body: Any = None, last: str | None = None) -> list[Frame]:
        """All frames of a stream."""
        return [frame async for frame in self.frames_of(method, path, body, last)]

    async def frames_of(
        self, method: str, path: str, body: Any = None, last: str | None = None
    ) -> AsyncIterator[Frame]:
        headers = {} if last is None else {"Last-Event-ID": last}
        arguments: dict[str, Any] = {} if body is None else {"json": body}
        async with self.http.stream(method, path, headers=headers, **arguments) as response:
            if response.status_code != 200:
                await response.aread()
            assert response.status_code == 200, (response.status_code, response.text)
            fields: dict[str, str] = {}
            async for line in _lines(response):
                if not line:
                    if "data" in fields:
                        yield Frame(fields.get("event", ""), json.loads(fields["data"]), fields.get("id", ""))
                    fields = {}
                elif not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    fields[name] = value


@dataclass(frozen=True)
class Frame:
    event: str
    data: Any
    id: str = ""


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """By CR and LF only, as the standard has it; `aiter_lines` of httpx knows more line breaks than that."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            yield line.decode()


@asynccontextmanager
async def lab(urls: Sequence[str], models: str) -> AsyncIterator[Lab]:
    """With two addresses, consecutive requests of both clients go to one and the other."""
    base, timeout = f"{urls[0]}/api", httpx.Timeout(SECONDS)
    if len(urls) == 1:
        client, plain = (
            get_client(url=base, api_key=None, timeout=SECONDS),
            httpx.AsyncClient(base_url=base, timeout=timeout),
        )
    else:
        client = LangGraphClient(httpx.AsyncClient(base_url=base, timeout=timeout, transport=Alternating(urls)))
        plain = httpx.AsyncClient(base_url=base, timeout=timeout, transport=Alternating(urls))
    async with plain, httpx.AsyncClient(base_url=models, timeout=timeout) as control:
        try:
            yield Lab(urls, client, plain, control)
        finally:
            await client.http.client.aclose()


# ── small things ────────────────────────────────────────────────────────────────────────────────────────────────────


async def eventually(probe: Callable[[], Awaitable[Any]], seconds: float = SECONDS) -> Any:
    """The first true answer."""
    async with asyncio.timeout(seconds):
        while True:
            if found := await probe():
                return found
            await asyncio.sleep(0.05)


def contents(values: Any, mark: str = "") -> list[Any]:
    found = [message["content"] for message in values.get("messages", [])]
    return [text.replace(f" @{mark}", "") if isinstance(text, str) and mark else text for text in found]


def untimed(messages: list[Any]) -> list[Any]:
    """Without the life of their runs, which is known once they have ended: what was streamed before is without it."""
    for message in messages:
        message["additional_kwargs"].pop("turn_duration", None)
    return messages


def unnumbered(values: Any) -> Any:
    """Returns values without the numbers of their messages, which are those of the thread."""
    for message in values.get("messages", ()):
        message["additional_kwargs"].pop("seq", None)
    return values


def needs(owner: Any, name: str) -> None:
    """Skip where the release does not have this."""
    if not hasattr(owner, name):
        raise Skipped(f"this release has no {type(owner).__name__}.{name}")


async def raises(kind: type[BaseException] | tuple[type[BaseException], ...], work: Awaitable[Any]) -> Any:
    """The error that the work ends in."""
    try:
        found = await work
    except kind as error:
        return error
    raise AssertionError(f"expected {kind}, got {found!r}")


class Line:
    """A TCP line to a server that can be cut. New connections work; `seen` are the request lines and the cursors."""

    def __init__(self, url: str) -> None:
        self._to = httpx.URL(url)
        self.url = ""
        self.seen: list[str] = []
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(self._to.host, self._to.port)
        self._writers |= {writer, forth}
        try:
            await asyncio.gather(self._pass(reader, forth, note=True), self._pass(back, writer))
        finally:
            self._writers -= {writer, forth}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, note: bool = False) -> None:
        try:
            while data := await reader.read(65536):
                if note:
                    self._note(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    def _note(self, data: bytes) -> None:
        lines = data.decode(errors="replace").split("\r\n")
        cursors = [line.partition(": ")[2] for line in lines if line.lower().startswith("last-event-id:")]
        self.seen.append(" ".join([lines[0].rpartition(" HTTP")[0], *cursors]))


@asynccontextmanager
async def line(url: str) -> AsyncIterator[Line]:
    made = Line(url)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(made.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.cut()
        await asyncio.gather(*tasks, return_exceptions=True)
