"""Our own routes: the log of a thread as it is, and the rebuilding of read models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import flag, number
from channels.http.langgraph.stream import HEARTBEAT, sending
from channels.http.live import BEAT, STOP, Ear, Live, Outlet
from channels.http.routes import SSE, Param, Route
from core.events import Json, Record, thread

BATCH = 256


async def get_log(request: web.Request) -> web.StreamResponse:
    """A thread's raw events: a JSON array (each with its `seq`), or SSE with that as id; `follow=1`: without end."""
    live, after = alive.of(request), number(request, "after", 0)
    thread_id, _ = await alive.owned(request)
    follow = flag(request, "follow")
    if not follow and "text/event-stream" not in request.headers.get("Accept", ""):
        records = live.services.log.read(thread(thread_id), after=after)
        body = b",".join([b'{"seq":%d,' % record.seq + record.raw[1:] async for record in records])
        return web.Response(body=b"[%b]" % body, content_type="application/json")
    last = request.headers.get("Last-Event-ID", "")
    known = last.isascii() and last.isdigit() and len(last) < 19
    return await _stream(request, live, thread_id, int(last) if known else after, follow)


async def rebuild(request: web.Request) -> web.Response:
    """Have the search index built again from the log."""
    live = alive.of(request)
    await live.services.views.rebuild()
    return web.json_response({"status": "rebuilding"}, status=202)


async def _stream(request: web.Request, live: Live, thread_id: str, after: int, follow: bool) -> web.StreamResponse:
    outlet = Outlet(request, "text/event-stream; charset=utf-8", {})
    async with sending(outlet, "log stream", thread=thread_id), live.hearing(thread_id, thread_id) as ear:
        async for data in _events(live, ear, thread_id, after, follow):
            await outlet.write(data)
    return outlet.response


async def _events(live: Live, ear: Ear, thread_id: str, after: int, follow: bool) -> AsyncIterator[bytes]:
    yield HEARTBEAT
    behind = True
    while True:
        batch: list[Record] = []
        if behind:
            async for record in live.services.log.read(thread(thread_id), after=after):
                batch.append(record)
                after = record.seq
                if len(batch) == BATCH:
                    yield _framed(batch)
                    batch = []
            yield _framed(batch)
            if not follow:
                return
        items, behind = await ear.take()
        if STOP in items:
            return
        batch = [item for item in items if isinstance(item, Record) and item.seq > after]
        after = batch[-1].seq if batch else after
        yield _framed(batch) + (HEARTBEAT if BEAT in items else b"")


def _framed(records: Sequence[Record]) -> bytes:
    return b"".join(b"id: %d\nevent: %b\ndata: %b\n\n" % (r.seq, r.type.encode(), r.raw) for r in records)


ROUTES = (
    Route(
        "GET",
        "/threads/{thread_id}/log",
        get_log,
        {200: (list[Json], SSE)},
        query=(
            Param("after", int, "Only events after this sequence"),
            Param("follow", bool, "Without end, as SSE", endless="it follows the thread"),
            Param("Last-Event-ID", str, "Of SSE: the same as `after`, if it is a number", "header"),
        ),
        errors=(404,),
        scope="threads:read",
    ),
    Route("POST", "/projections/rebuild", rebuild, {202: Json}, role="admin"),
)
