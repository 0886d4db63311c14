"""News of all of a user's threads, as server-sent events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import LastEventId, Routes
from channels.http.page.news.hub import HUB, Hub, ThreadNews
from channels.http.server.errors import Forbidden
from channels.http.server.live import Outlet
from channels.http.server.routes import API, SSE
from channels.http.streams import sse
from channels.http.streams.sse import Frame

ROUTES = Routes(mounts=API, tag="news", endless="there can always be more news")
MOST_DIGITS = 18


@ROUTES("GET", "/events", "threads:read")
async def follow(
    call: Call,
    *,
    all_users: Annotated[bool, "Of everybody's threads; only for administrators"] = False,
    last_event_id: LastEventId = None,
) -> Annotated[web.StreamResponse, SSE]:
    """Follow all of one's threads: what lists, badges and notifications need, and no more.

    Begins with `ready`, whose `seq` is contained in all lists that are fetched afterwards; or with `gap`, if what came
    after `Last-Event-ID` is too much to be sent: then fetch the lists again. A `gap` may also come later, to a client
    that reads too slowly. Each other event is about one thread: `thread.created`, `thread.titled`, `thread.renamed`,
    `thread.annotated`, `thread.deleted`, `run.requested`, `run.started`, `run.ended`, `approval.waiting`,
    `approval.answered`, `question.waiting`, `question.answered`, `file.presented`. Heartbeats carry an id, too.
    """
    if all_users and not call.principal.is_admin:
        raise Forbidden("all_users: only an administrator may follow everybody's threads")
    outlet = Outlet(call.request, sse.CONTENT_TYPE, sse.rhythm(call.config.http))
    user = None if all_users else call.user
    async with sse.sending(outlet, "news"):
        await _play(call, outlet, user, _sequence(last_event_id))
    return outlet.response


def _sequence(last_event_id: str | None) -> int | None:
    text = (last_event_id or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


async def _play(call: Call, outlet: Outlet, user: str | None, after: int | None) -> None:
    hub = call.request.app[HUB]
    with hub.subscribed(user) as subscription:
        seq = await hub.position()
        missed = await _missed(call, hub, user, after, seq)
        if after is not None and missed:
            seq, begin = missed[-1].seq, after
        else:
            begin = seq = seq if missed is None else max(seq, after or 0)
        await outlet.write(_opening("gap" if missed is None else "ready", begin) + _encoded(missed or (), user))
        while True:
            news, gap = await subscription.take(call.config.http.heartbeat_seconds)
            new = [item for item in news if item.seq > seq]
            if gap:
                await outlet.write(_opening("gap", new[0].seq - 1 if new else hub.seq))
            if new:
                seq = new[-1].seq
                await outlet.write(_encoded(new, user))
            elif not news and not gap:
                seq = max(seq, hub.seq)
                await outlet.write(b"id: %d\n%b" % (seq, sse.HEARTBEAT))


async def _missed(call: Call, hub: Hub, user: str | None, after: int | None, seq: int) -> Sequence[ThreadNews] | None:
    """Returns the news between the client's position and the stream's; None if they cannot be sent."""
    if after is None:
        return []
    if after > seq:  # from a process that is ahead of this one, or from another log
        return [] if after <= await call.services.log.last() else None
    return await hub.missed(user, after, seq)


def _opening(event: str, seq: int) -> bytes:
    return Frame(event, b'{"seq":%d}' % seq, str(seq)).encoded()


def _encoded(every: Sequence[ThreadNews], user: str | None) -> bytes:
    """The frames of some facts. Only the last of each has an id: the point up to which all was seen."""
    frames = []
    for item in every:
        owner = b"" if user is not None else b'"user":%b,' % msgspec.json.encode(item.user)
        for place, (kind, data) in enumerate(item.news, 1):
            identity = str(item.seq) if place == len(item.news) else ""
            frames.append(Frame(kind, b"{%b%b" % (owner, data[1:]), identity))
    return sse.encoded(frames)
