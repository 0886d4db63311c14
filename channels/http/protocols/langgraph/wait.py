"""Waiting for a run's end: JSON that begins at once and is kept alive by newlines."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
from aiohttp import web

from channels.http.endpoints.call import Call
from channels.http.protocols.langgraph import dumps
from channels.http.protocols.langgraph.stream import locations
from channels.http.server.live import Live, Outlet
from channels.http.streams.sse import sending
from core.events import Json, Record
from core.lifecycle import LAST_TYPES
from core.runs.follow import Beat, Follower
from core.thread.state import ThreadState


async def ended(
    live: Live,
    follower: Follower,
    thread_id: str,
    run_id: str,
    outlet: Outlet | None = None,
    *,
    heard_after: int | None = None,
) -> ThreadState:
    """The thread's state once the run has ended. Raises `Stopping` if the process goes down before.

    `heard_after`: what came after this sequence is followed, so nothing newer needs to be read.
    """
    state = await live.services.threads.load(thread_id, at_least=heard_after)
    async with aclosing(follower.since(state.seq, heard=True)) as batches:
        while (run := state.runs.get(run_id)) is not None and run.open:
            for item in await anext(batches):
                if isinstance(item, Beat) and outlet is not None:
                    await outlet.write(b"\n")
                elif isinstance(item, Record) and item.type in LAST_TYPES and item.run in (run_id, None):
                    state = await live.services.threads.load(thread_id, at_least=item.seq)
    return state


async def result(
    call: Call,
    follower: Follower,
    thread_id: str,
    run_id: str,
    *,
    cancel: bool,
    heard_after: int | None = None,
) -> web.StreamResponse:
    """The values after the run, or `__error__`. The status is 200 in any case: it is sent before the end is known."""
    outlet = Outlet(call.request, "application/json", locations(thread_id, run_id, "join"))
    over = False

    def gone() -> None:
        if cancel and not over:
            call.live.left(thread_id, run_id)

    async with sending(outlet, "wait", gone, run=run_id):
        await outlet.write(b"\n")
        state = await ended(call.live, follower, thread_id, run_id, outlet, heard_after=heard_after)
        over = True
        await outlet.write(msgspec.json.encode(outcome(state, run_id)))
    return outlet.response


def outcome(state: ThreadState, run_id: str) -> Json:
    run = state.runs.get(run_id)
    if run is not None and run.status == "error":
        error = run.error
        return {"__error__": {"error": error.error if error else "Error", "message": error.text if error else ""}}
    values = dumps.timed_values(state.values, state, state.head)
    if state.paused is not None and run is not None and run.status == "success":
        values["__interrupt__"] = [question for questions in state.interrupts.values() for question in questions]
    return values
