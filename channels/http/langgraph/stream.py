"""A run's stream, live: facts from the log and previews from the bus, through `frames`, to one client.

Both come through one ear, in the order in which they were heard. If the ear overflows (a slow client), previews are
lost and the facts are read from the log; what the previews would have shown comes with the facts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence

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

HEARTBEAT = b": heartbeat\n\n"
BATCH_BYTES = 256 * 1024
"""How much is gathered for one write when much is ready."""
STORED_PAGE = 1000


class Stopped(Exception):
    """The process goes down."""


async def play(
    request: web.Request, live: Live, ear: Ear, thread_id: str, frames: Frames, first: Sequence[Frame], *, cancel: bool
) -> web.StreamResponse:
    """Send `first`, then whatever comes until the run ends. `cancel`: the run ends if the client goes."""
    headers = locations(thread_id, frames.run_id)
    outlet = Outlet(request, "text/event-stream; charset=utf-8", headers)
    try:
        await outlet.write(b"".join([frame.encoded() for frame in first]) or HEARTBEAT)
        while not frames.ended:
            items, lost = await ear.take()
            source = live.services.log.read(thread(thread_id), after=frames.seq) if lost else _each(items)
            async for data in _batches(source, frames):
                await outlet.write(data)
        await outlet.response.write_eof()
    except Stopped:
        outlet.abort()
    except SikaError as error:
        log.warning("stream broken off", run=frames.run_id, error=str(error))
        outlet.abort()
    except (asyncio.CancelledError, ConnectionError) as error:
        if cancel and not frames.ended:
            await live.left(thread_id, frames.run_id)
        if isinstance(error, asyncio.CancelledError):
            raise
    return outlet.response


def locations(thread_id: str, run_id: str, what: str = "stream") -> dict[str, str]:
    """Paths without the mount's prefix: clients put their own base before them."""
    run = f"/threads/{thread_id}/runs/{run_id}"
    return {"Location": f"{run}/{what}", "Content-Location": run}


async def late(
    live: Live, thread_id: str, run: Run, modes: Sequence[str], last_event_id: str | None
) -> tuple[Frames, list[Frame]]:
    """A translator that has caught up with now, and what the client has missed. Call it while hearing the thread."""
    if last_event_id is None:
        state = await live.services.threads.load(thread_id)
        frames = Frames(state, thread_id, run.id, modes)
        missed: list[Frame] = []
        if frames.ended:
            return frames, [Frame("end", b"null")]
        resumed = False
    else:
        frames, missed, resumed = await _again(live, thread_id, run, modes, last_event_id)
    if not frames.ended and wants_previews(modes):
        for preview in await _stored(live, run.id):
            if isinstance(preview, Preview) or (not resumed and preview.call_id in frames.state.runs[run.id].intents):
                missed += frames.preview(preview)
    return frames, missed


async def _again(
    live: Live, thread_id: str, run: Run, modes: Sequence[str], last_event_id: str
) -> tuple[Frames, list[Frame], bool]:
    """The stream from its beginning, without what the client has seen.

    An id that is not ours means: from the beginning.
    """
    records = [record async for record in live.services.log.read(thread(thread_id))]
    start = next((i for i, record in enumerate(records) if record.seq >= run.requested_seq), len(records))
    cursor = Cursor.parse(last_event_id)
    if cursor is not None and all(record.seq != cursor.seq for record in records[start:]):
        cursor = None
    frames = Frames(fold(records[:start]), thread_id, run.id, modes, after=cursor)
    missed: list[Frame] = []
    for record in records[start:]:
        missed += frames.fact(record)
    return frames, missed, cursor is not None


async def _each(items: Sequence[Record | bytes]) -> AsyncIterator[Record | bytes]:
    for item in items:
        yield item


async def _batches(source: AsyncIterable[Record | bytes], frames: Frames) -> AsyncIterator[bytes]:
    """What is ready, as few writes as sensible."""
    ready: list[bytes] = []
    size = 0
    async for item in source:
        data = _translated(item, frames)
        if data:
            ready.append(data)
            size += len(data)
        if size > BATCH_BYTES:
            yield b"".join(ready)
            ready, size = [], 0
        if frames.ended:
            break
    if ready:
        yield b"".join(ready)


def _translated(item: Record | bytes, frames: Frames) -> bytes:
    if isinstance(item, Record):
        made = frames.fact(item) if item.seq > frames.seq else []
    elif item is BEAT:
        return HEARTBEAT
    elif item is STOP:
        raise Stopped
    else:
        preview = _decoded(item)
        made = frames.preview(preview) if preview else []
    return b"".join([frame.encoded() for frame in made])


def _decoded(raw: bytes) -> Preview | Progress | None:
    try:
        return decode(raw)
    except msgspec.DecodeError as error:
        log.debug("not a preview", error=str(error))
        return None


async def _stored(live: Live, run_id: str) -> list[Preview | Progress]:
    """The previews of a run that are still kept, from the last message on. None, if the memory stream is gone."""
    bus = live.services.bus
    subject = f"$JS.API.DIRECT.GET.{bus.names.stream('tok')}"
    found: list[Preview | Progress] = []
    seq = 1
    try:
        while True:
            ask = msgspec.json.encode({"seq": seq, "batch": STORED_PAGE, "next_by_subj": bus.names.tok(run_id)})
            async with bus.ask_many(subject, ask) as replies:
                page, more = await _page(replies)
            found += [preview for _, raw in page if (preview := _decoded(raw))]
            if not more or not page:
                break
            seq = page[-1][0] + 1
    except (Unavailable, TimeoutError) as error:
        log.debug("no stored previews", error=str(error))
    return _of_last_message(found)


async def _page(replies: asyncio.Queue[Msg]) -> tuple[list[tuple[int, bytes]], bool]:
    page: list[tuple[int, bytes]] = []
    while True:
        async with asyncio.timeout(ASK_SECONDS):
            msg = await replies.get()
        headers = msg.headers or {}
        if status := headers.get("Status"):
            return page, status == "204" and headers.get("Nats-Num-Pending", "0") != "0"
        page.append((int(headers["Nats-Sequence"]), msg.data))


def _of_last_message(found: list[Preview | Progress]) -> list[Preview | Progress]:
    """What came before the newest beginning of a message belongs to messages that are finished or were given up."""
    begin = max((i for i, item in enumerate(found) if isinstance(item, Preview) and not item.offset), default=0)
    return [item for i, item in enumerate(found) if i >= begin or isinstance(item, Progress)]
