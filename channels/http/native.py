"""Our own routes: the log of a thread as it is, and the rebuilding of read models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from aiohttp import web

from channels.http import live as alive
from channels.http import sse
from channels.http.bodies import flag, number
from channels.http.live import Live, Outlet
from channels.http.routes import SSE, Param, Route
from core.events import Json, Record, thread
from core.thread.follow import Stopping
from core.thread.previews import RunPreview


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
    outlet = Outlet(request, sse.CONTENT_TYPE, {})
    async with sse.sending(outlet, "log stream", thread=thread_id), live.follow(thread_id) as follower:
        with suppress(Stopping):  # clients go on after the last id
            await sse.play(outlet, _Log(), follower.since(after) if follow else follower.past(after))
    return outlet.response


class _Event(NamedTuple):
    record: Record

    def encoded(self) -> bytes:
        record = self.record
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (record.seq, record.type.encode(), record.raw)


class _Log:
    """The log as it is."""

    ended = False

    def fact(self, record: Record) -> Sequence[_Event]:
        return [_Event(record)]

    def run_preview(self, item: RunPreview) -> Sequence[_Event]:
        return []


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
