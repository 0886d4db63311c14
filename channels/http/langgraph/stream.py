"""A run's stream, live: facts from the log and previews from the bus, through `frames`, to one client.

Both come through one ear, in the order in which they were heard. If the ear overflows (a slow client), previews are
lost and the facts are read from the log; what the previews would have shown comes with the facts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web
from nats.aio.msg import Msg

from channels.http.langgraph.frames import Cursor, Frame, Frames
from channels.http.langgraph.modes import wants_previews
from channels.http.live import BEAT, STOP, Ear, Live, Outlet
from core.bus import ASK_SECONDS
from core.errors import SikaError, Unavailable
from core.events import Record, thread
from core.previews import Preview, Progress, decode
from core.state import Run, fold

log = structlog.get_logger("sika.http")

T = TypeVar("T")
HEARTBEAT = b": heartbeat\n\n"
BATCH_BYTES = 256 * 1024
"""How much is gathered for one write when much is ready."""
STORED_PAGE = 1000
PAUSE_EVERY = 50
"""Facts that are translated at a time, before others get a turn."""


class Stopped(Exception):
    """The process goes down."""


async def play(
    request: web.Request,
    live: Live,
    ear: Ear,
    thread_id: str,
    frames: Frames,
    missed: AsyncIterable[bytes],
    *,
    cancel: bool,
) -> web.StreamResponse:
    """Send what was missed, then whatever comes until the run ends. `cancel`: the run ends if the client goes."""
    headers = locations(thread_id, frames.run_id)
    outlet = Outlet(request, "text/event-stream; charset=utf-8", headers)

    def gone() -> None:
        if cancel and not frames.ended:
            live.left(thread_id, frames.run_id)

    async with sending(outlet, "stream", gone, run=frames.run_id):
        async for data in gathered(missed):
            await outlet.write(data)
        if not outlet.response.prepared:
            await outlet.write(HEARTBEAT)
        while not frames.ended:
            items, lost = await ear.take()
            source = live.services.log.read(thread(thread_id), after=frames.seq) if lost else each(items)
            async for data in gathered(_told(source, frames)):
                await outlet.write(data)
    return outlet.response


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
    except Stopped:
        outlet.abort()
    except SikaError as error:
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


def begun(frames: Frames, record: Record) -> AsyncIterator[bytes]:
    """What the client of a new run has missed: its first frame."""
    return each([encoded(frames.fact(record))])


def locations(thread_id: str, run_id: str, what: str = "stream") -> dict[str, str]:
    """Paths without the mount's prefix: clients put their own base before them."""
    run = f"/threads/{thread_id}/runs/{run_id}"
    return {"Location": f"{run}/{what}", "Content-Location": run}


async def late(
    live: Live, thread_id: str, run: Run, modes: Sequence[str], last_event_id: str | None
) -> tuple[Frames, AsyncIterator[bytes]]:
    """A translator for a run that was there before, and what the client has missed. Call it while hearing."""
    if last_event_id is None:
        frames = Frames(await live.services.threads.load(thread_id), thread_id, run.id, modes)
        if frames.ended:
            return frames, each([Frame("end", b"null").encoded()])
        return frames, _missed(live, frames, modes, [], resumed=False)
    records = [record async for record in live.services.log.read(thread(thread_id))]
    start = next((i for i, record in enumerate(records) if record.seq >= run.requested_seq), len(records))
    cursor = Cursor.parse(last_event_id)
    end = next((i for i, record in enumerate(records) if record.seq == run.ended_seq), len(records))
    if cursor is not None and all(record.seq != cursor.seq for record in records[start : end + 1]):
        cursor = None  # not an id of this run: from the beginning
    state = await asyncio.to_thread(fold, records[:start])
    frames = Frames(state, thread_id, run.id, modes, after=cursor)
    return frames, _missed(live, frames, modes, records[start:], resumed=cursor is not None)


async def _missed(
    live: Live, frames: Frames, modes: Sequence[str], records: Sequence[Record], *, resumed: bool
) -> AsyncIterator[bytes]:
    """Facts first, then the previews of the message that is being made, as far as they are kept."""
    for record in records:
        yield encoded(frames.fact(record))
    if frames.ended or not wants_previews(modes):
        return
    for preview in await stored(live, frames.run_id):
        if isinstance(preview, Preview) or (not resumed and frames.is_open(preview.call_id)):
            yield encoded(frames.preview(preview))


async def each(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


async def _told(source: AsyncIterable[Record | bytes], frames: Frames) -> AsyncIterator[bytes]:
    async for item in source:
        yield _translated(item, frames)
        if frames.ended:
            return


async def gathered(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """What is ready, in few writes, and never much of it in memory. Others get their turn in between."""
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


def _translated(item: Record | bytes, frames: Frames) -> bytes:
    if isinstance(item, Record):
        made = frames.fact(item) if item.seq > frames.seq else []
    elif item is BEAT:
        return HEARTBEAT
    elif item is STOP:
        raise Stopped
    else:
        preview = decoded(item)
        made = frames.preview(preview) if preview else []
    return encoded(made)


def encoded(frames: Sequence[Frame]) -> bytes:
    return b"".join([frame.encoded() for frame in frames])


def decoded(raw: bytes) -> Preview | Progress | None:
    try:
        return decode(raw)
    except msgspec.DecodeError as error:
        log.debug("not a preview", error=str(error))
        return None


async def stored(live: Live, run_id: str) -> list[Preview | Progress]:
    """The previews of a run that are still kept. None, if the memory stream is gone."""
    bus = live.services.bus
    subject = f"$JS.API.DIRECT.GET.{bus.names.stream('tok')}"
    found: list[Preview | Progress] = []
    seq = 1
    try:
        while True:
            ask = msgspec.json.encode({"seq": seq, "batch": STORED_PAGE, "next_by_subj": bus.names.tok(run_id)})
            async with bus.ask_many(subject, ask) as replies:
                page, more = await _page(replies)
            found += [preview for _, raw in page if (preview := decoded(raw))]
            if not more or not page:
                break
            seq = page[-1][0] + 1
    except (Unavailable, TimeoutError) as error:
        log.debug("no stored previews", error=str(error))
    return found


async def _page(replies: asyncio.Queue[Msg]) -> tuple[list[tuple[int, bytes]], bool]:
    page: list[tuple[int, bytes]] = []
    while True:
        async with asyncio.timeout(ASK_SECONDS):
            msg = await replies.get()
        headers = msg.headers or {}
        if status := headers.get("Status"):
            return page, status == "204" and headers.get("Nats-Num-Pending", "0") != "0"
        page.append((int(headers["Nats-Sequence"]), msg.data))
