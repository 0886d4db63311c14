"""The run that a request is about: on the thread it names, or wherever the run is."""

from __future__ import annotations

from aiohttp import web

from channels.http import live as alive
from channels.http.langgraph.runs import known
from core.errors import NotFound
from core.state import Run, ThreadState


async def run(request: web.Request) -> tuple[str, ThreadState, Run]:
    """Raises `NotFound` also for somebody else's run, and for one that is not shown any more."""
    run_id = alive.run_id(request)
    if "thread_id" in request.match_info:
        thread_id, state = await alive.owned(request)
        return thread_id, state, known(state, run_id)
    found = await _thread_of(request, run_id)
    if found is not None:
        state = await alive.of(request).services.threads.load(found)
        if state.user == alive.user(request):
            return found, state, known(state, run_id)
    raise NotFound(f"Run {run_id} not found")


async def _thread_of(request: web.Request, run_id: str) -> str | None:
    """The views are a moment behind the log: what they do not know, they are asked again once they have caught up."""
    services = alive.of(request).services
    found = await services.views.thread_of(run_id)
    if found is None:
        await services.views.current()
        found = await services.views.thread_of(run_id)
    return found
