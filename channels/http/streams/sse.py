"""Server-sent events: how any protocol's translation of a thread is written to one client.

A protocol is a `Translator`: facts and previews in, frames out, with no I/O of its own. It knows nothing of other
protocols, of the log, or of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple, Protocol

import structlog

from channels.http.server.live import Outlet
from core.config.server import Http
from core.errors import SikaError
from core.events import Record
from core.runs.follow import Batch, Beat, Item, Stopping
from core.runs.previews import RunPreview

log = structlog.get_logger("sika.http")

CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEARTBEAT = b": heartbeat\n\n"
BATCH_BYTES = 256 * 1024
"""Bytes that are gathered for one write when more are ready."""
PAUSE_EVERY = 50
"""Facts that are translated at a time, before others get a turn."""
_BREAKS = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


class Encodable(Protocol):
    """A frame of any protocol."""

    def encoded(self) -> bytes: ...


class Frame(NamedTuple):
    """One event. `data` is JSON on one line; an empty `event` or `id` is not sent."""

    event: str
    data: bytes
    id: str = ""

    def encoded(self) -> bytes:
        data = self.data
        if not data.isascii():
            for character, escaped in _BREAKS:
                data = data.replace(character, escaped)
        event = f"event: {self.event}\n" if self.event else ""
        place = f"\nid: {self.id}\n\n" if self.id else "\n\n"
        return b"%bdata: %b%b" % (event.encode(), data, place.encode())


def rhythm(http: Http) -> dict[str, str]:
    """Returns the header of a stream that is followed for ever: the interval of its heartbeats, from which a client
    knows how long a silence means that the connection is lost.
    """
    return {"X-Heartbeat-Seconds": f"{http.heartbeat_seconds:g}"}


class Translator(Protocol):
    """A thread, or one of its runs, in the words of a protocol. Fed with every fact in order, and previews between."""

    ended: bool
    """True if the last frame has been made."""

    def fact(self, record: Record) -> Sequence[Encodable]: ...

    def run_preview(self, item: RunPreview) -> Sequence[Encodable]: ...


Before = Callable[[Item], Awaitable[None]]


async def play(
    outlet: Outlet,
    translator: Translator,
    batches: AsyncGenerator[Batch],
    missed: AsyncGenerator[Batch] | None = None,
    before: Before | None = None,
) -> None:
    """Write what a translator makes of the facts that were missed, then of the batches, until it has ended. `before`:
    tells it what it has to know before an item.
    """
    if missed is not None:
        await _play(outlet, translator, missed, before)
    if not outlet.response.prepared:
        await outlet.write(HEARTBEAT)
    if not translator.ended:
        await _play(outlet, translator, batches, before)


async def _play(outlet: Outlet, translator: Translator, batches: AsyncGenerator[Batch], before: Before | None) -> None:
    async with aclosing(batches):
        async for batch in batches:
            if await _write(outlet, batch, translator, before):
                return


async def single(item: Item) -> AsyncGenerator[Batch]:
    """Yields one item."""
    yield [item]


async def _write(outlet: Outlet, items: Sequence[Item], translator: Translator, before: Before | None) -> bool:
    """Tells whether the last frame was among them. Writes like `gathered`."""
    ready: list[bytes] = []
    size = 0
    for count, item in enumerate(items, 1):
        if before is not None:
            await before(item)
        data = _translated(item, translator)
        ready.append(data)
        size += len(data)
        if size > BATCH_BYTES:
            await outlet.write(b"".join(ready))
            ready, size = [], 0
        if translator.ended:
            break
        if not ready or count % PAUSE_EVERY == 0:
            await asyncio.sleep(0)
    if size:
        await outlet.write(b"".join(ready))
    return translator.ended


def _translated(item: Item, translator: Translator) -> bytes:
    match item:
        case Record():
            return encoded(translator.fact(item))
        case RunPreview():
            return encoded(translator.run_preview(item))
        case Beat():
            return HEARTBEAT if item.ahead is None else b": waiting, %d before you\n\n" % item.ahead


def encoded(frames: Iterable[Encodable]) -> bytes:
    return b"".join([frame.encoded() for frame in frames])


async def gathered(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Writes what is ready in few writes, and holds little of it in memory. Other tasks run in between."""
    ready: list[bytes] = []
    size = count = 0
    async for piece in pieces:
        ready.append(piece)
        size += len(piece)
        count += 1
        if size > BATCH_BYTES:
            yield b"".join(ready)
            ready, size = [], 0
        if not ready or count % PAUSE_EVERY == 0:
            await asyncio.sleep(0)
    if size:
        yield b"".join(ready)


@asynccontextmanager
async def sending(
    outlet: Outlet, what: str, gone: Callable[[], None] | None = None, **about: str
) -> AsyncIterator[None]:
    """Ends the response properly if everything was sent, and cuts it off if not. `gone`: called if the client leaves.
    `what` and `about`: for the log.
    """
    try:
        yield
        await outlet.response.write_eof()
    except Stopping:
        outlet.break_off()
    except SikaError as error:
        if not outlet.response.prepared:
            raise
        log.warning(f"{what} broken off", error=str(error), **about)
        outlet.abort()
    except (asyncio.CancelledError, ConnectionError) as error:
        if gone is not None:
            gone()
        if isinstance(error, asyncio.CancelledError):
            raise
    except Exception:
        if not outlet.response.prepared:
            raise
        log.exception(f"{what} failed", **about)
        outlet.abort()
