"""Our own routes: the log of a thread as it is, and the rebuilding of read models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec
from aiohttp import web

from channels.http import sse
from channels.http.call import Call, OwnedThread
from channels.http.endpoint import Accepted, Endless, Header, Routes
from channels.http.live import Outlet
from channels.http.routes import SSE
from core.events import Json, Record, thread
from core.thread.follow import Stopping
from core.thread.previews import RunPreview

ROUTES = Routes()


@ROUTES("GET", "/threads/{thread_id}/log", "threads:read")
async def get_log(
    call: Call,
    owned: OwnedThread,
    *,
    after: Annotated[int, msgspec.Meta(ge=0), "Only events after this sequence"] = 0,
    follow: Annotated[bool, "Without end, as SSE", Endless("it follows the thread")] = False,
    last: Annotated[str, Header("Last-Event-ID"), "Of SSE: the same as `after`, if it is a number"] = "",
) -> Annotated[web.StreamResponse, list[Json], SSE]:
    """A thread's raw events: a JSON array (each with its `seq`), or SSE with that as id; `follow=1`: without end."""
    if not follow and SSE not in call.request.headers.get("Accept", ""):
        return await _array(call, owned.id, after)
    known = last.isascii() and last.isdigit() and len(last) < 19
    return await _stream(call, owned.id, int(last) if known else after, follow)


@ROUTES("POST", "/projections/rebuild", role="admin")
async def rebuild(call: Call) -> Accepted[Json]:
    """Have the search index built again from the log."""
    await call.services.views.rebuild()
    return {"status": "rebuilding"}


async def _array(call: Call, thread_id: str, after: int) -> web.StreamResponse:
    """Sends the array in pieces: a thread may hold more than is good to have in memory."""
    outlet = Outlet(call.request, "application/json", {})
    records = call.live.reading.read(thread(thread_id), after=after)
    first = await anext(records, None)  # what fails before it is an error of the request
    async with sse.sending(outlet, "log", thread=thread_id):
        await outlet.write(b"[" + (_item(first) if first else b""))
        async for piece in sse.gathered(b"," + _item(record) async for record in records):
            await outlet.write(piece)
        await outlet.write(b"]")
    return outlet.response


def _item(record: Record) -> bytes:
    return b'{"seq":%d,' % record.seq + record.raw[1:]


async def _stream(call: Call, thread_id: str, after: int, follow: bool) -> web.StreamResponse:
    outlet = Outlet(call.request, sse.CONTENT_TYPE, {})
    async with sse.sending(outlet, "log stream", thread=thread_id), call.live.follow(thread_id) as follower:
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
