"""What the clients of these tests meet: models, servers in processes of their own, lines that break."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx

from channels.client import SikaClient, StreamEvent
from channels.client.background import Background
from tests.support import warm
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.skills import ALLOW
from tests.support.workers import DEADLINE

T = TypeVar("T")
OUTPUT = "/mnt/user-data/outputs/note.md"
NOTE = ToolCall("write_file", {"description": "a note", "path": OUTPUT, "content": "# Found\n"})
ASK = ToolCall("ask", {"question": "Which one?"})
LIST = ToolCall("ls", {"description": "look", "path": "/mnt/user-data/outputs"})
MOST_BYTES = 2_000_000
"""Of an upload."""
EACH = 60
SCRIPTS: Mapping[str, Script | Sequence[Turn]] = {
    "hello": [Turn(text="Hello there, nice to meet you.")],
    "noting": [Turn(text="Let me write that down.", tool_calls=(NOTE,)), Turn(text="It is written.")],
    "thinking": [Turn(reasoning="Let me think this over.", text="Yes, that is so.")],
    "failing": [Turn(error=Failure(status=400, message="no luck today"))],
    "judging": [Turn(text=ALLOW)],
    "asking": [Turn(tool_calls=(ASK,)), Turn(text="Thank you.")],
    "looping": [Turn(tool_calls=(LIST,))] * 30,
    "switched": [Turn(text="Either way.")],
    **{f"gated-{n}": [Turn(text="One two three four five six.", gate=f"gated-{n}", gate_after=3)] for n in range(EACH)},
    **{f"flaky-{n}": [Turn(text="Now it worked.", disconnect_after=2, times=1)] for n in range(EACH)},
}
LONG = "tokens-300"


class Stage:
    """An event loop in a thread, for what is asynchronous beside clients that are not."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._loop = Background("stage", _nothing, daemon=True)

    def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Until the stage is closed."""
        return self._open.enter_context(self._loop.portal.wrap_async_context_manager(manager))

    def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        async def soon() -> T:
            async with asyncio.timeout(DEADLINE):
                return await work(*arguments)

        return self._loop.call(soon)

    def close(self) -> None:
        self._open.close()
        self._loop.stop()


async def _nothing() -> None:
    pass


class Models:
    """The model server, from other threads."""

    def __init__(self, stage: Stage) -> None:
        self.server = stage.enter(ModelServer(SCRIPTS))
        self._stage = stage
        self._number = iter(range(EACH))

    def gated(self) -> str:
        """A model that says three words and waits for `release`; nobody else's."""
        return f"gated-{next(self._number)}"

    def flaky(self) -> str:
        """A model that breaks off once; nobody else's."""
        return f"flaky-{next(self._number)}"

    def reached(self, gate: str) -> None:
        self._stage.call(self.server.reached, gate)

    def release(self, gate: str) -> None:
        async def release() -> None:
            self.server.release(gate)

        self._stage.call(release)

    def bodies(self, model: str) -> list[dict[str, Any]]:
        """The requests to a model so far."""
        return [record.body for record in self.server.requests if record.model == model]


def written(folder: Path, models: ModelServer, **sections: Any) -> Path:
    """A configuration."""
    folder.mkdir(exist_ok=True)
    # Servers at once in this process share their providers' connections, which belong to one event loop.
    at = {"base_url": models.url, "api_key": "none", "default_headers": {"Connection": "close"}}
    thinking = {"extra_body": {"thinking": {"type": "enabled"}}}
    entries = [
        *({"name": name, "model": name, **at} for name in (*models.scripts, LONG)),
        {"name": "switch", "model": "switched", "supports_thinking": True, "when_thinking_enabled": thinking, **at},
    ]
    uploads = {"auto_convert_documents": True, "max_file_size": MOST_BYTES}
    off = {name: {"enabled": False} for name in ("title", "memory", "delivery_check")}
    given = {"sandbox": {"allow_host_bash": True}, "uploads": uploads, **off, **sections}
    path = folder / "config.yaml"
    path.write_text(json.dumps({"models": entries, **given}))
    return path


@asynccontextmanager
async def serving(home: Path, config: Path) -> AsyncIterator[str]:
    """A `sika serve`; its URL."""
    errors = home.with_suffix(".log")
    with errors.open("ab") as stderr:
        options = ("--home", str(home), "--config", str(config), "--port", "0")
        start = partial(warm.start, "tests.channels.client.sika", "serve", *options, stderr=stderr.fileno())
        process = await asyncio.to_thread(start)
    try:
        async with asyncio.timeout(DEADLINE):
            line = await process.line()
        found = re.search(rb"http://\S+", line)
        assert found, f"{line!r}; {errors.read_text()}"
        yield found[0].decode()
    finally:
        process.terminate()
        await process.waited()


class Line:
    """A connection to a server that breaks after so many bytes of its answers, once for each number in `cuts`."""

    def __init__(self, target: str, cuts: Sequence[int] = ()) -> None:
        self.url = ""
        self.cuts = list(cuts)
        self.connections = 0
        self.mute = False
        """Whether nothing goes back any more."""
        self.muted = asyncio.Event()
        """Set when something did not go back."""
        self._port = urlsplit(target).port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Line]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            await self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cut(self) -> None:
        """Break all connections; new ones work."""
        for writer in self._writers:
            writer.transport.abort()

    def _drops(self) -> bool:
        if self.mute:
            self.muted.set()
        return self.mute

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        back, forth = await asyncio.open_connection("127.0.0.1", self._port)
        ends = {writer, forth}
        self._writers |= ends
        left = self.cuts.pop(0) if self.cuts else None
        try:
            await asyncio.gather(_pass(reader, forth), _pass(back, writer, left, self._drops))
        except OSError:
            pass
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()


async def _pass(
    source: asyncio.StreamReader,
    target: asyncio.StreamWriter,
    left: int | None = None,
    drops: Callable[[], bool] = lambda: False,
) -> None:
    while data := await source.read(65536):
        if drops():
            continue
        target.write(data if left is None else data[:left])
        await target.drain()
        left = None if left is None else left - len(data)
        if left is not None and left <= 0:
            raise ConnectionResetError
    raise ConnectionResetError


# ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Subject(NamedTuple):
    """A client, and its server as plain HTTP shows it."""

    client: SikaClient
    raw: httpx.Client

    def get(self, path: str) -> Any:
        return self.raw.get(path).raise_for_status().json()

    def status(self, thread_id: str, run_id: str) -> str:
        return str(self.get(f"/api/threads/{thread_id}/runs/{run_id}")["status"])


def told(events: Sequence[StreamEvent]) -> list[str]:
    """The kinds of events in their order, repeated ones once."""
    kinds = [_kind(event) for event in events]
    return [kind for n, kind in enumerate(kinds) if n == 0 or kinds[n - 1] != kind]


def _kind(event: StreamEvent) -> str:
    match event.data:
        case {"type": "ai", "tool_calls": _}:
            return "calls"
        case {"type": "ai", "usage_metadata": _}:
            return "usage"
        case {"type": "ai"}:
            return "text"
        case {"type": "tool"}:
            return "result"
    return event.type


def text_of(events: Sequence[StreamEvent]) -> str:
    pieces = [event.data for event in events if event.type == "messages-tuple" and event.data["type"] == "ai"]
    return "".join(piece["content"] for piece in pieces)


def shape(value: Any) -> Any:
    """What a value is made of."""
    match value:
        case dict():
            return {key: shape(value[key]) for key in sorted(value)}
        case list():
            return [shape(value[0])] if value else []
    return type(value).__name__


def processes(home: Path) -> Iterator[int]:
    """Processes that have something to do with a data directory."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if str(home).encode() in (entry / "cmdline").read_bytes():
                    yield int(entry.name)
