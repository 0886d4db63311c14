"""Runs: asked for, watched, joined, stopped; on a thread of the client's, or on one of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import structlog
from aiohttp import web

from channels.http import live as alive
from channels.http import shapes
from channels.http.bodies import action, flag, names, number, plain
from channels.http.langgraph import stream, wait
from channels.http.langgraph.asked import Asked, RunBody, modes, parse
from channels.http.langgraph.assistants import ASSISTANTS
from channels.http.langgraph.frames import Frames
from channels.http.langgraph.modes import wants_previews
from channels.http.live import Ear, Live
from channels.http.routes import SSE, Param, Route
from core.errors import NotFound, SikaError
from core.events import Json, Record
from core.ids import safe_id, uuid7
from core.state import Run, ThreadState

log = structlog.get_logger("sika.http")


# ── on a thread ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def create(request: web.Request) -> web.StreamResponse:
    thread_id, asked = alive.thread_id(request), await _asked(request)
    return await _create(request, thread_id, asked)


async def create_stream(request: web.Request) -> web.StreamResponse:
    thread_id, asked = alive.thread_id(request), await _asked(request)
    return await _create_stream(request, thread_id, asked)


async def create_wait(request: web.Request) -> web.StreamResponse:
    thread_id, asked = alive.thread_id(request), await _asked(request)
    return await _create_wait(request, thread_id, asked)


async def get_list(request: web.Request) -> web.Response:
    thread_id, state = await alive.owned(request)
    limit, offset = number(request, "limit", 10, least=1, most=1000), number(request, "offset", 0)
    status, select = request.query.get("status"), names(request, "select")
    found = [run for run in reversed(state.runs.values()) if _visible(run) and status in (None, run.status)]
    shown = [run_object(request, thread_id, run) for run in found[offset : offset + limit]]
    if select:
        shown = [{key: run[key] for key in select if key in run} for run in shown]
    return plain(shown)


async def get(request: web.Request) -> web.Response:
    _, run = await _run(request)
    return plain(run_object(request, alive.thread_id(request), run))


async def join(request: web.Request) -> web.StreamResponse:
    if "text/event-stream" in request.headers.get("Accept", ""):
        return await join_stream(request)
    live, thread_id = alive.of(request), alive.thread_id(request)
    _, run = await _run(request)
    async with live.hearing(thread_id, run.id) as ear:
        return await wait.result(request, live, ear, thread_id, run.id, cancel=flag(request, "cancel_on_disconnect"))


async def join_stream(request: web.Request) -> web.StreamResponse:
    """GET or POST `…/stream`; with `action` the run is cancelled first."""
    live, thread_id = alive.of(request), alive.thread_id(request)
    _, run = await _run(request)
    wanted = modes(names(request, "stream_mode") or list(run.request.stream_modes))
    async with live.hearing(thread_id, run.id, previews=run.open and wants_previews(wanted)) as ear:
        if request.query.get("action") and run.open:
            await live.services.intake.cancel(thread_id, run.id, action(request))
            if flag(request, "wait"):
                await wait.ended(live, ear, thread_id, run.id)
                return web.Response(status=204)
        frames, missed = await stream.late(live, thread_id, run, wanted, request.headers.get("Last-Event-ID"))
        cancel = flag(request, "cancel_on_disconnect")
        return await stream.play(request, live, ear, thread_id, frames, missed, cancel=cancel)


async def cancel(request: web.Request) -> web.Response:
    live, thread_id, run_id = alive.of(request), alive.thread_id(request), alive.run_id(request)
    async with live.hearing(thread_id, run_id) as ear:
        await live.services.intake.cancel(thread_id, run_id, action(request), user=alive.user(request))
        if not flag(request, "wait"):
            return web.Response(status=202)
        await wait.ended(live, ear, thread_id, run_id)
        return web.Response(status=204)


# ── without a thread ─────────────────────────────────────────────────────────────────────────────────────────────────


async def create_alone(request: web.Request) -> web.StreamResponse:
    asked = await _asked(request)
    return await _create(request, _own_thread(asked), asked._replace(create=True), own=True)


async def create_stream_alone(request: web.Request) -> web.StreamResponse:
    asked = await _asked(request)
    return await _create_stream(request, _own_thread(asked), asked._replace(create=True), own=True)


async def create_wait_alone(request: web.Request) -> web.StreamResponse:
    asked = await _asked(request)
    return await _create_wait(request, _own_thread(asked), asked._replace(create=True), own=True)


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _create(request: web.Request, thread_id: str, asked: Asked, *, own: bool = False) -> web.Response:
    live, run_id = alive.of(request), uuid7()
    state, _ = await _admit(request, thread_id, run_id, asked)
    if own and not asked.keep and asked.thread_id is None:
        live.background(_erase_at_end(live, thread_id, run_id, alive.user(request)))
    response = plain(run_object(request, thread_id, state.runs[run_id]))
    response.headers["Content-Location"] = f"/threads/{thread_id}/runs/{run_id}"
    return response


async def _create_stream(
    request: web.Request, thread_id: str, asked: Asked, *, own: bool = False
) -> web.StreamResponse:
    live, run_id = alive.of(request), uuid7()
    async with _admitted(request, thread_id, run_id, asked, own=own, previews=wants_previews(asked.modes)) as (
        ear,
        state,
        record,
    ):
        frames = Frames(state, thread_id, run_id, asked.modes)
        return await stream.play(
            request, live, ear, thread_id, frames, stream.begun(frames, record), cancel=asked.cancel
        )


async def _create_wait(request: web.Request, thread_id: str, asked: Asked, *, own: bool = False) -> web.StreamResponse:
    live, run_id = alive.of(request), uuid7()
    async with _admitted(request, thread_id, run_id, asked, own=own) as (ear, _, record):
        return await wait.result(request, live, ear, thread_id, run_id, cancel=asked.cancel, heard_after=record.seq)


@asynccontextmanager
async def _admitted(
    request: web.Request, thread_id: str, run_id: str, asked: Asked, *, own: bool, previews: bool = False
) -> AsyncIterator[tuple[Ear, ThreadState, Record]]:
    """A run that was requested while its thread was already being heard: nothing of it can be missed."""
    live = alive.of(request)
    async with live.hearing(thread_id, run_id, previews=previews) as ear:
        state, record = await _admit(request, thread_id, run_id, asked)
        try:
            yield ear, state, record
        finally:
            if own and not asked.keep and asked.thread_id is None:
                live.background(_erase_at_end(live, thread_id, run_id, alive.user(request)))


async def _admit(request: web.Request, thread_id: str, run_id: str, asked: Asked) -> tuple[ThreadState, Record]:
    live, user = alive.of(request), alive.user(request)
    services = live.services
    if asked.create and not (await services.threads.load(thread_id, at_least=0)).exists:
        made, _ = await services.intake.create_thread(thread_id, user=user, metadata=asked.metadata)
        live.written = max(live.written, made.seq)
    return await services.intake.request_run(thread_id, run_id, asked.request, user=user)


async def _erase_at_end(live: Live, thread_id: str, run_id: str, user: str) -> None:
    """The thread of a stateless run is nobody's: it goes when the run is over."""
    while True:
        try:
            async with live.hearing(thread_id, run_id) as ear:
                await wait.ended(live, ear, thread_id, run_id)
            await live.services.intake.erase(thread_id, by=user)
            return
        except SikaError as error:
            if live.stopping:
                return
            log.warning("temporary thread not erased yet", thread=thread_id, error=str(error))
            await asyncio.sleep(5)


async def _asked(request: web.Request) -> Asked:
    return parse(await request.read(), request.app[ASSISTANTS], alive.user(request))


def _own_thread(asked: Asked) -> str:
    return safe_id(asked.thread_id, "config.configurable.thread_id") if asked.thread_id else uuid7()


async def _run(request: web.Request) -> tuple[ThreadState, Run]:
    run_id = alive.run_id(request)
    _, state = await alive.owned(request)
    run = state.runs.get(run_id)
    if run is None or not _visible(run):
        raise NotFound(f"Run {run_id} not found")
    return state, run


def _visible(run: Run) -> bool:
    return run.status != "rolled_back"


def run_object(request: web.Request, thread_id: str, run: Run) -> Json:
    asked = run.request
    return {
        "run_id": run.id,
        "thread_id": thread_id,
        "assistant_id": request.app[ASSISTANTS].id_of(asked.assistant),
        "status": run.status,
        "metadata": asked.metadata,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "multitask_strategy": asked.multitask,
        "kwargs": {"input": asked.input, "config": asked.config, "context": asked.context},
    }


_T, _R = "/threads/{thread_id}", "/threads/{thread_id}/runs/{run_id}"
_CANCEL_ON_DISCONNECT = Param("cancel_on_disconnect", bool, "Cancel the run if this client goes")
_ACTION = Param("action", Literal["interrupt", "rollback"], "What to do with what the run did")
_WAIT = Param("wait", bool, "Answer when the run has ended")
_MODES = Param("stream_mode", list[str], "Repeated, one JSON list, or one mode; default: those of the run")
_RESUME = Param("Last-Event-ID", str, "Send what came after this frame; -1: everything", "header")
_CREATE: Any = {"body": RunBody, "errors": (400, 404, 409), "scope": "runs:create"}
_SSE: Any = {200: SSE}
ROUTES = (
    Route("POST", f"{_T}/runs/stream", create_stream, _SSE, **_CREATE),
    Route("POST", f"{_T}/runs/wait", create_wait, {200: Json}, **_CREATE),
    Route("POST", f"{_T}/runs", create, {200: shapes.Run}, **_CREATE),
    Route(
        "GET",
        f"{_T}/runs",
        get_list,
        {200: list[Json]},
        query=(Param("limit", int), Param("offset", int), Param("status"), Param("select", list[str])),
        errors=(404,),
        scope="runs:read",
    ),
    Route("GET", _R, get, {200: shapes.Run}, errors=(404,), scope="runs:read"),
    Route(
        "GET", f"{_R}/join", join, {200: (Json, SSE)}, query=(_CANCEL_ON_DISCONNECT,), errors=(404,), scope="runs:read"
    ),
    Route(
        "GET",
        f"{_R}/stream",
        join_stream,
        {**_SSE, 204: None},
        query=(_MODES, _RESUME, _CANCEL_ON_DISCONNECT, _ACTION, _WAIT),
        errors=(404, 409),
        scope="runs:read",
    ),
    Route(
        "POST",
        f"{_R}/stream",
        join_stream,
        {**_SSE, 204: None},
        query=(_MODES, _RESUME, _CANCEL_ON_DISCONNECT, _ACTION, _WAIT),
        errors=(404, 409),
        scope="runs:cancel",
    ),
    Route(
        "POST", f"{_R}/cancel", cancel, {202: None, 204: None}, None, (_WAIT, _ACTION), (404, 409), scope="runs:cancel"
    ),
    Route("POST", "/runs", create_alone, {200: shapes.Run}, **_CREATE),
    Route("POST", "/runs/stream", create_stream_alone, _SSE, **_CREATE),
    Route("POST", "/runs/wait", create_wait_alone, {200: Json}, **_CREATE),
)
