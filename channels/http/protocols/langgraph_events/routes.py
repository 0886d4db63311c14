"""A thread's events and commands, for `threads.stream()` of LangGraph's clients and for `@langchain/react`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web

from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import LastEventId, Routes
from channels.http.protocols.langgraph_events.commands import Command, Failure, Success, envelope, execute
from channels.http.protocols.langgraph_events.filters import Filter, SubscribeParams
from channels.http.protocols.langgraph_events.transports import Socket, play
from channels.http.server.errors import BadRequest
from channels.http.server.routes import SSE
from core.events import Json

ROUTES = Routes(tag="thread_events")
_T = "/threads/{thread_id}"


@ROUTES("POST", f"{_T}/commands", "runs:create", errors=(400, 404), body=Command)
async def command(call: Call) -> Annotated[Json, Success | Failure]:
    """Carry out a command: `run.start`, `input.respond` or `agent.getTree`.

    `run.start` takes the fields of a run (`assistant_id`, `input`, `config`, `metadata`, …), makes the thread if there
    is none, and answers `{"run_id"}`. If the thread waits for answers, the input is the answer. `input.respond` takes
    `interrupt_id` and `response`, or a list `responses` of both. `agent.getTree` takes a `run_id`. A command that
    cannot be carried out is answered with status 200 and `error`; only what is no command at all gets 400.
    """
    _ = call.thread_id  # is checked first
    return await execute(call, envelope(await call.request.read()))


@ROUTES("POST", f"{_T}/stream/events", "runs:read", errors=(400,), endless="it follows the thread")
async def events(
    call: Call, thread: OwnedThread, body: SubscribeParams, *, last_event_id: LastEventId = None
) -> Annotated[web.StreamResponse, SSE]:
    """Follow a thread over all its runs. Everything is sent again from the beginning, or after `since`, after
    `since_event_id`, or after the event that `Last-Event-ID` names by its `id` or its `event_id`.

    The stream stays open. `seq` numbers the events of the whole thread, so a filtered stream has gaps; what a message
    says before it is finished has no number. The same event has the same `event_id` on every connection.
    """
    if last_event_id and body.since is None and body.since_event_id is None:
        number = last_event_id if last_event_id.isascii() and last_event_id.isdigit() else ""
        last = {"since": int(number)} if 0 < len(number) < 17 else {"since_event_id": last_event_id}
        body = msgspec.structs.replace(body, **last)
    return await play(call, thread.id, Filter(body))


@ROUTES(
    "GET",
    f"{_T}/stream/events",
    "runs:read",
    answers={101: None},
    errors=(400,),
    endless="it follows the thread",
)
async def socket(call: Call) -> web.StreamResponse:
    """Follow a thread on a WebSocket, with commands on the same connection.

    Besides those of `POST …/commands` there are `subscription.subscribe` (the body of `POST …/stream/events` as
    `params`) and `subscription.unsubscribe` (`subscription_id`). There need not be a thread yet.
    """
    thread_id = call.thread_id
    if call.request.headers.get("Upgrade", "").lower() != "websocket":
        raise BadRequest("this is a WebSocket; for server-sent events use POST")
    return await Socket(call, thread_id).run()
