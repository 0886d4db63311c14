"""The run that a request is about: on the thread it names, or wherever the run is."""

from __future__ import annotations

from aiohttp import web

from channels.http import live as alive
from core.errors import NotFound
from core.thread.runs import shown_run
from core.thread.state import Run, ThreadState


async def run(request: web.Request) -> tuple[str, ThreadState, Run]:
    """Raises `NotFound` also for somebody else's run, and for one that is not shown any more."""
    run_id = alive.run_id(request)
    if "thread_id" in request.match_info:
        thread_id, state = await alive.owned(request)
        return thread_id, state, shown_run(state, run_id)
    try:
        thread_id = await _thread_of(request, run_id)
        state = await alive.of(request).services.commands.state(alive.user(request), thread_id)
    except NotFound:
        raise NotFound(f"Run {run_id} not found") from None
    return thread_id, state, shown_run(state, run_id)


async def _thread_of(request: web.Request, run_id: str) -> str:
    """The thread of a run. The views are a moment behind the log: they are asked again once they have caught up."""
    views = alive.of(request).services.views
    thread_id = await views.thread_of(run_id)
    if thread_id is None:
        await views.current()
        thread_id = await views.thread_of(run_id)
    if thread_id is None:
        raise NotFound(f"Run {run_id} not found")
    return thread_id
