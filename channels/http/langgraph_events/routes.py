"""A thread's events and commands, for `threads.stream()` of LangGraph's clients and for `@langchain/react`."""

from __future__ import annotations

from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain
from channels.http.errors import BadRequest
from channels.http.langgraph_events.commands import Command, Failure, Success, envelope, execute
from channels.http.langgraph_events.filters import Filter, Wanted
from channels.http.langgraph_events.transports import Socket, play
from channels.http.routes import SSE, Route


async def command(request: web.Request) -> web.Response:
    """Carry out a command: `run.start`, `input.respond` or `agent.getTree`.

    `run.start` takes the fields of a run (`assistant_id`, `input`, `config`, `metadata`, …), makes the thread if there
    is none, and answers `{"run_id"}`. If the thread waits for answers, the input is the answer. `input.respond` takes
    `interrupt_id` and `response`, or a list `responses` of both. `agent.getTree` takes a `run_id`. A command that
    cannot be carried out is answered with status 200 and `error`; only what is no command at all gets 400.
    """
    alive.thread_id(request)
    return plain(await execute(request, envelope(await request.read())))


async def events(request: web.Request) -> web.StreamResponse:
    """Follow a thread over all its runs. Everything is told again from the beginning, or after `since`.

    The stream stays open. `seq` numbers the events of the whole thread, so a filtered stream has gaps; what a message
    says before it is finished has no number. The same event has the same `event_id` on every connection.
    """
    thread_id, _ = await alive.owned(request)
    wanted = Filter(await body(request, Wanted))
    return await play(request, thread_id, wanted)


async def socket(request: web.Request) -> web.StreamResponse:
    """Follow a thread on a WebSocket, with commands on the same connection.

    Besides those of `POST …/commands` there are `subscription.subscribe` (the body of `POST …/stream/events` as
    `params`) and `subscription.unsubscribe` (`subscription_id`). There need not be a thread yet.
    """
    thread_id = alive.thread_id(request)
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise BadRequest("this is a WebSocket; for server-sent events use POST")
    return await Socket(request, thread_id).run()


_T = "/threads/{thread_id}"
ROUTES = (
    Route(
        "POST",
        f"{_T}/commands",
        command,
        {200: Success | Failure},
        Command,
        errors=(400, 404),
        scope="runs:create",
        tag="thread_events",
    ),
    Route(
        "POST",
        f"{_T}/stream/events",
        events,
        {200: SSE},
        Wanted,
        errors=(400, 404),
        scope="runs:read",
        tag="thread_events",
        endless="it follows the thread",
    ),
    Route(
        "GET",
        f"{_T}/stream/events",
        socket,
        {101: None},
        errors=(400,),
        scope="runs:read",
        tag="thread_events",
        endless="it follows the thread",
    ),
)
