"""Runs: asked for, watched, joined, stopped; on a thread of the client's, or on one of their own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal, get_args

import msgspec
from aiohttp import web

from channels.http import access, inputs, shapes
from channels.http import live as alive
from channels.http.asked import Asked, RunBody, check_options, checked, model_names, modes
from channels.http.bodies import action, body, flag, names, number, plain
from channels.http.errors import BadRequest
from channels.http.langgraph import stream, wait
from channels.http.langgraph.frames import Frames
from channels.http.langgraph.modes import wants_previews
from channels.http.listings import selected
from channels.http.routes import LOCATION, LOCATIONS, SSE, Param, Route
from channels.http.traces import traced
from core.egress import check_url
from core.errors import Invalid, NotFound, Refused, SikaError
from core.events import Json, Record
from core.ids import safe_id, uuid7
from core.thread.runs import run_object, shown_run
from core.thread.state import Run, ThreadState

Status = Literal["pending", "running", "success", "error", "timeout", "interrupted"]
STATUSES: tuple[str, ...] = get_args(Status)
MOST_AT_ONCE = 100
"""Runs in one batch."""


# ── on a thread ──────────────────────────────────────────────────────────────────────────────────────────────────────


class CancelBody(msgspec.Struct):
    thread_id: str | None = None
    run_ids: list[str] | None = None
    status: Literal["pending", "running", "all"] | None = None


class SteerBody(msgspec.Struct):
    message: str | dict[str, Any]


class Steered(msgspec.Struct):
    run_id: str
    message_id: str


async def create(request: web.Request) -> web.StreamResponse:
    """Start a run in the background."""
    thread_id, asked = alive.thread_id(request), await _asked(request)
    return await _create(request, thread_id, asked)


async def create_stream(request: web.Request) -> web.StreamResponse:
    """Start a run, and follow it as server-sent events."""
    thread_id, asked = alive.thread_id(request), await _asked(request)
    return await _create_stream(request, thread_id, asked)


async def create_wait(request: web.Request) -> web.StreamResponse:
    """Start a run, and wait for the values at its end (or `__error__`)."""
    thread_id, asked = alive.thread_id(request), await _asked(request)
    return await _create_wait(request, thread_id, asked)


async def get_list(request: web.Request) -> web.Response:
    """The runs of a thread, newest first."""
    thread_id, state = await alive.owned(request)
    limit, offset = number(request, "limit", 10, least=1, most=1000), number(request, "offset", 0)
    status, select = request.query.get("status"), names(request, "select")
    if status is not None and status not in STATUSES:
        raise Invalid(f"status: one of {', '.join(STATUSES)}, got {status[:40]!r}")
    found = [run for run in reversed(state.runs.values()) if run.shown and status in (None, run.status)]
    return plain([selected(run_object(thread_id, run, state), select) for run in found[offset : offset + limit]])


async def get(request: web.Request) -> web.Response:
    """A run."""
    return plain(run_object(*await _run(request)))


async def join(request: web.Request) -> web.StreamResponse:
    """Wait for the values at a run's end, also after it; as server-sent events to who accepts only these."""
    if "text/event-stream" in request.headers.get("Accept", ""):
        return await join_stream(request)
    if flag(request, "cancel_on_disconnect"):
        access.demand(alive.principal(request), "runs:cancel")
    live = alive.of(request)
    thread_id, run, _ = await _run(request)
    async with live.follow(thread_id) as follower:
        return await wait.result(
            request, live, follower, thread_id, run.id, cancel=flag(request, "cancel_on_disconnect")
        )


async def join_stream(request: web.Request) -> web.StreamResponse:
    """Follow a run as server-sent events, from a frame on. With `action` the run is cancelled first."""
    live = alive.of(request)
    stop = action(request) if request.query.get("action") else None
    waits, cancel = flag(request, "wait"), flag(request, "cancel_on_disconnect")
    if stop is not None or cancel:
        access.demand(alive.principal(request), "runs:cancel")
    thread_id, run, state = await _run(request)
    wanted = modes(names(request, "stream_mode") or list(run.request.stream_modes))
    async with live.follow(thread_id) as follower:
        if stop is not None and run.open:
            await live.services.intake.cancel(thread_id, run.id, stop)
            if waits:
                await wait.ended(live, follower, thread_id, run.id)
                return web.Response(status=204)
        last_id = request.headers.get("Last-Event-ID")
        frames, missed = await stream.late(live, thread_id, state, run, wanted, last_id)
        return await stream.play(request, live, follower, thread_id, frames, missed, cancel=cancel)


async def cancel(request: web.Request) -> web.Response:
    """Cancel a run: keep what it did, or undo it. Asking twice is fine."""
    live, thread_id, run_id = alive.of(request), alive.thread_id(request), alive.run_id(request)
    async with live.follow(thread_id) as follower:
        await live.services.intake.cancel(thread_id, run_id, action(request), user=alive.user(request))
        if not flag(request, "wait"):
            return web.Response(status=202)
        await wait.ended(live, follower, thread_id, run_id)
        return web.Response(status=204)


async def cancel_many(request: web.Request) -> web.Response:
    """Cancel some runs of a thread, or all of one's runs that are pending or running."""
    wanted = await body(request, CancelBody)
    live, user, how = alive.of(request), alive.user(request), action(request)
    if wanted.status is not None and (wanted.thread_id is not None or wanted.run_ids is not None):
        raise Invalid("status: cancels by status are over all threads; name a thread with run_ids, or only a status")
    if wanted.status is not None:
        await live.services.views.current()
        statuses = ("pending", "running") if wanted.status == "all" else (wanted.status,)
        for thread_id, run_id in await live.services.views.open_runs(user, statuses):
            with suppress(NotFound, Refused):  # it ended meanwhile
                await live.services.intake.cancel(thread_id, run_id, how, user=user)
        return web.Response(status=204)
    if wanted.thread_id is None or not wanted.run_ids:
        raise Invalid("expected thread_id with run_ids, or status")
    thread_id = safe_id(wanted.thread_id, "thread_id")
    state = await live.services.commands.state(user, thread_id)
    if unknown := [run_id for run_id in wanted.run_ids if run_id not in state.runs]:
        raise NotFound(f"Run {unknown[0][:80]} not found")
    for run_id in wanted.run_ids:
        with suppress(Refused):  # it has ended
            await live.services.intake.cancel(thread_id, run_id, how, user=user)
    return web.Response(status=204)


async def delete(request: web.Request) -> web.Response:
    """Show a run's record no more. What it did to the state stays; a run that is at work must be cancelled first."""
    thread_id, run, _ = await _run(request)
    await alive.of(request).services.intake.remove_run(thread_id, run.id, user=alive.user(request))
    return web.Response(status=204)


async def steer(request: web.Request) -> web.Response:
    """Tell the agent something while it is at work: it sees the message before its next model call, and a run that was
    about to end goes on. A message id that was sent before is not added again.
    """
    wanted = await body(request, SteerBody)
    live, run_id = alive.of(request), alive.run_id(request)
    given = inputs.messages(wanted.message, "message")
    if len(given) != 1 or given[0]["type"] not in ("human", "system"):
        raise Invalid("message: one message of the user (or system) is expected")
    await live.services.intake.steer(alive.thread_id(request), run_id, given[0], user=alive.user(request))
    response = plain({"run_id": run_id, "message_id": given[0]["id"]})
    response.set_status(202)
    return response


# ── without a thread ─────────────────────────────────────────────────────────────────────────────────────────────────


async def create_alone(request: web.Request) -> web.StreamResponse:
    """Start a run on a thread of its own, which goes some time after it unless `on_completion` is `keep`."""
    return await _create(request, *_alone(await _asked(request)))


async def create_stream_alone(request: web.Request) -> web.StreamResponse:
    """Start a run on a thread of its own, and follow it as server-sent events."""
    return await _create_stream(request, *_alone(await _asked(request)))


async def create_wait_alone(request: web.Request) -> web.StreamResponse:
    """Start a run on a thread of its own, and wait for the values at its end."""
    return await _create_wait(request, *_alone(await _asked(request)))


async def create_batch(request: web.Request) -> web.Response:
    """Start several runs, each on a thread of its own. If one of them is wrong, none is started."""
    bodies = await body(request, list[RunBody])
    if not 0 < len(bodies) <= MOST_AT_ONCE:
        raise Invalid(f"expected 1 to {MOST_AT_ONCE} runs, got {len(bodies)}")
    asked = []
    for index, one in enumerate(bodies):
        try:
            asked.append(_alone(await permitted(request, one)))
        except SikaError as error:
            raise type(error)(f"[{index}]: {error}") from error
    started = []
    for thread_id, wanted in asked:
        run_id = uuid7()
        state, _ = await admit(request, thread_id, run_id, wanted)
        started.append(run_object(thread_id, state.runs[run_id], state))
    return plain(started)


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _create(request: web.Request, thread_id: str, asked: Asked) -> web.Response:
    run_id = uuid7()
    state, _ = await admit(request, thread_id, run_id, asked)
    response = plain(run_object(thread_id, state.runs[run_id], state))
    response.headers["Content-Location"] = f"/threads/{thread_id}/runs/{run_id}"
    return response


async def _create_stream(request: web.Request, thread_id: str, asked: Asked) -> web.StreamResponse:
    live, run_id = alive.of(request), uuid7()
    async with live.follow(thread_id) as follower:
        if wants_previews(asked.modes):
            await follower.hear(run_id)
        state, record = await admit(request, thread_id, run_id, asked)
        frames = Frames(state, thread_id, run_id, asked.modes)
        return await stream.play(request, live, follower, thread_id, frames, [record], cancel=asked.cancel)


async def _create_wait(request: web.Request, thread_id: str, asked: Asked) -> web.StreamResponse:
    live, run_id = alive.of(request), uuid7()
    async with live.follow(thread_id) as follower:
        _, record = await admit(request, thread_id, run_id, asked)
        return await wait.result(
            request, live, follower, thread_id, run_id, cancel=asked.cancel, heard_after=record.seq
        )


async def admit(request: web.Request, thread_id: str, run_id: str, asked: Asked) -> tuple[ThreadState, Record]:
    """Ask for the run. Call it while following the thread: nothing of the run can be missed then."""
    live, user = alive.of(request), alive.user(request)
    services = live.services
    if asked.create and not (await services.commands.state_or_empty(user, thread_id, at_least=0)).exists:
        await services.intake.create_thread(thread_id, user=user, metadata=asked.metadata)
    replaces = asked.request.multitask in ("interrupt", "rollback")
    async with access.limits(request).admitted(alive.principal(request), thread_id, run_id, replaces=replaces):
        return await services.intake.request_run(thread_id, run_id, traced(request, asked.request), user=user)


async def _asked(request: web.Request) -> Asked:
    return await permitted(request, await body(request, RunBody))


async def permitted(request: web.Request, wanted: RunBody) -> Asked:
    """The run as it is wanted, of an assistant that the user has, and as far as the configuration allows it."""
    services, user = alive.of(request).services, alive.user(request)
    config = services.config()
    assistant = await services.assistants.resolve(user, wanted.assistant_id)
    check_options(wanted.config, wanted.context, model_names(config))
    asked = checked(wanted, assistant, user)
    if asked.request.webhook is not None:
        check_url(asked.request.webhook, "webhook", private=config.webhooks.allow_private)
    return asked


def _alone(asked: Asked) -> tuple[str, Asked]:
    """The thread of a run that came without one: the one it names, or one that is made for it and goes with it."""
    if asked.request.resume is not None:
        raise BadRequest("command.resume: a run without a thread has nothing to resume")
    if asked.thread_id is not None:
        return safe_id(asked.thread_id, "config.configurable.thread_id"), asked._replace(create=True)
    request = asked.request
    if not asked.keep:
        request = msgspec.structs.replace(request, on_completion="delete")
    return uuid7(), asked._replace(create=True, request=request)


async def _run(request: web.Request) -> tuple[str, Run, ThreadState]:
    run_id = alive.run_id(request)
    thread_id, state = await alive.owned(request)
    return thread_id, shown_run(state, run_id), state


_T, _R = "/threads/{thread_id}", "/threads/{thread_id}/runs/{run_id}"
_CANCEL_ON_DISCONNECT = Param("cancel_on_disconnect", bool, "Cancel the run if this client goes")
_ACTION = Param("action", Literal["interrupt", "rollback"], "What to do with what the run did")
_WAIT = Param("wait", bool, "Answer when the run has ended")
_MODES = Param("stream_mode", list[str], "Repeated, one JSON list, or one mode; default: those of the run")
_RESUME = Param("Last-Event-ID", str, "Send what came after this frame; -1: everything", "header")
_CREATE: Any = {"body": RunBody, "errors": (400, 404, 409), "scope": "runs:create"}
_SSE: Any = {200: SSE}
ROUTES = (
    Route("POST", f"{_T}/runs/stream", create_stream, _SSE, **_CREATE, headers=LOCATIONS),
    Route("POST", f"{_T}/runs/wait", create_wait, {200: Json}, **_CREATE, headers=LOCATIONS),
    Route("POST", f"{_T}/runs", create, {200: shapes.Run}, **_CREATE, headers=LOCATION),
    Route(
        "GET",
        f"{_T}/runs",
        get_list,
        {200: list[Json]},
        query=(Param("limit", int), Param("offset", int), Param("status", Status), Param("select", list[str])),
        errors=(404,),
        scope="runs:read",
    ),
    Route("GET", _R, get, {200: shapes.Run}, errors=(404,), scope="runs:read"),
    Route(
        "GET",
        f"{_R}/join",
        join,
        {200: (Json, SSE)},
        query=(_CANCEL_ON_DISCONNECT,),
        errors=(404,),
        scope="runs:read",
        headers=LOCATIONS,
    ),
    Route(
        "GET",
        f"{_R}/stream",
        join_stream,
        {**_SSE, 204: None},
        query=(_MODES, _RESUME, _CANCEL_ON_DISCONNECT, _ACTION, _WAIT),
        errors=(404, 409),
        scope="runs:read",
        headers=LOCATIONS,
    ),
    Route(
        "POST",
        f"{_R}/stream",
        join_stream,
        {**_SSE, 204: None},
        query=(_MODES, _RESUME, _CANCEL_ON_DISCONNECT, _ACTION, _WAIT),
        errors=(404, 409),
        scope="runs:cancel",
        headers=LOCATIONS,
    ),
    Route(
        "POST", f"{_R}/cancel", cancel, {202: None, 204: None}, None, (_WAIT, _ACTION), (404, 409), scope="runs:cancel"
    ),
    Route("DELETE", _R, delete, {204: None}, errors=(404, 409), scope="runs:cancel"),
    Route("POST", f"{_R}/steer", steer, {202: Steered}, SteerBody, errors=(400, 404, 409), scope="runs:create"),
    Route("POST", "/runs/cancel", cancel_many, {204: None}, CancelBody, (_ACTION,), (404,), scope="runs:cancel"),
    Route("POST", "/runs/batch", create_batch, {200: list[shapes.Run]}, **{**_CREATE, "body": list[RunBody]}),
    Route("POST", "/runs", create_alone, {200: shapes.Run}, **_CREATE, headers=LOCATION),
    Route("POST", "/runs/stream", create_stream_alone, _SSE, **_CREATE, headers=LOCATIONS),
    Route("POST", "/runs/wait", create_wait_alone, {200: Json}, **_CREATE, headers=LOCATIONS),
)
