"""Runs: asked for, watched, joined, stopped; on a thread of the client's, or on one of their own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from channels.http.accounts import access
from channels.http.endpoints import shapes
from channels.http.endpoints.call import Call, ListedThread, OwnedRun, OwnedThread
from channels.http.endpoints.endpoint import Accepted, Changes, LastEventId, Limit, Offset, Reply, Routes
from channels.http.endpoints.listings import selected
from channels.http.protocols.langgraph import branches, stream
from channels.http.protocols.langgraph import wait as waiting
from channels.http.protocols.langgraph.frames import Frames
from channels.http.protocols.langgraph.modes import wants_previews
from channels.http.protocols.langgraph.run_object import run_object
from channels.http.runs import inputs
from channels.http.runs.idempotency import new_id, repeated
from channels.http.runs.run_request import RunBody, RunSpec, check_options, check_skills, model_names, modes, run_spec
from channels.http.server.errors import BadRequest
from channels.http.server.routes import LOCATION, LOCATIONS, SSE
from channels.http.streams import sse
from core.egress import check_url
from core.errors import Invalid, NotFound, Refused, SikaError
from core.events import Json, Record, thread
from core.ids import safe_id
from core.runs.run import not_yet
from core.thread.state import Run, ThreadState

Batch = Annotated[list[RunBody], msgspec.Meta(min_length=1, max_length=100)]


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


ROUTES = Routes()
_T = "/threads/{thread_id}"
_ONE = f"{_T}/runs/{{run_id}}"
_READ, _CREATE, _CANCEL = "runs:read", "runs:create", "runs:cancel"
_STARTED: Any = {"scope": _CREATE, "errors": (400, 404, 409)}
Shown = Annotated[Json, shapes.Run]
Located = Annotated[Reply[Json], shapes.Run]
Stream = Annotated[web.StreamResponse, SSE]
Values = Annotated[web.StreamResponse, Json]
Action = Annotated[Literal["interrupt", "rollback"], "What to do with what the run did", Changes()]
Wait = Annotated[bool, "Answer when the run has ended"]
CancelOnDisconnect = Annotated[bool, "Cancel the run if this client goes", Changes()]


@ROUTES("POST", f"{_T}/runs", **_STARTED, headers=LOCATION)
async def create(call: Call, body: RunBody) -> Located:
    """Start a run in the background."""
    return await _create(call, call.thread_id, await permitted(call, await again(call, body)))


@ROUTES("POST", f"{_T}/runs/stream", **_STARTED, headers=LOCATIONS)
async def create_stream(call: Call, body: RunBody) -> Stream:
    """Start a run, and follow it as server-sent events."""
    return await _create_stream(call, call.thread_id, await permitted(call, await again(call, body)))


@ROUTES("POST", f"{_T}/runs/wait", **_STARTED, headers=LOCATIONS)
async def create_wait(call: Call, body: RunBody) -> Values:
    """Start a run, and wait for the values at its end (or `__error__`)."""
    return await _create_wait(call, call.thread_id, await permitted(call, await again(call, body)))


@ROUTES("GET", f"{_T}/runs", _READ)
async def get_list(
    call: Call,
    thread: ListedThread,
    *,
    limit: Limit = 10,
    offset: Offset = 0,
    status: shapes.RunStatus | None = None,
    select: Sequence[str] = (),
) -> list[Json]:
    """The runs of a thread, newest first."""
    runs = (run for run in reversed(thread.state.runs.values()) if run.shown and status in (None, run.status))
    shown = islice(runs, offset, offset + limit)
    return [selected(_placed(call, thread.id, run, thread.state), select) for run in shown]


@ROUTES("GET", _ONE, _READ)
async def get(call: Call, of: OwnedRun) -> Shown:
    """A run. While it waits for a place, `queue` says how many start `ahead` of it, and `since` when it waits."""
    return _placed(call, of.thread_id, of.run, of.state)


def _placed(call: Call, thread_id: str, run: Run, state: ThreadState) -> Json:
    """Returns the run object, with the run's place in the queue if it waits there."""
    shown = run_object(thread_id, run, state)
    following = next((one for one in state.queued if not_yet(one) is None), None) if state.active is None else None
    if following is run and (ahead := call.services.ahead(thread(thread_id))) is not None:
        shown["queue"] = {"ahead": ahead, "since": run.created_at}
    return shown


@ROUTES("GET", f"{_ONE}/join", _READ, headers=LOCATIONS, answers={204: None})
async def join(
    call: Call, of: OwnedRun, *, cancel_on_disconnect: CancelOnDisconnect = False
) -> Annotated[web.StreamResponse, Json, SSE]:
    """Wait for the values at a run's end, also after it; as server-sent events to who accepts only these."""
    if SSE in call.request.headers.get("Accept", ""):
        last_event_id = call.request.headers.get("Last-Event-ID")
        return await join_stream(call, of, cancel_on_disconnect=cancel_on_disconnect, last_event_id=last_event_id)
    if cancel_on_disconnect:
        access.demand(call.principal, _CANCEL)
    async with call.live.follow(of.thread_id) as follower:
        return await waiting.result(call, follower, of.thread_id, of.run.id, cancel=cancel_on_disconnect)


@ROUTES("GET", f"{_ONE}/stream", _READ, headers=LOCATIONS, answers={204: None}, errors=(409,))
@ROUTES("POST", f"{_ONE}/stream", _CANCEL, headers=LOCATIONS, answers={204: None}, errors=(409,))
async def join_stream(
    call: Call,
    of: OwnedRun,
    *,
    stream_mode: Annotated[Sequence[str], "Repeated, one JSON list, or one mode; default: those of the run"] = (),
    last_event_id: LastEventId = None,
    cancel_on_disconnect: CancelOnDisconnect = False,
    action: Action | None = None,
    wait: Wait = False,
) -> Stream:
    """Follow a run as server-sent events, from a frame on. With `action` the run is cancelled first.

    204 after the last frame of an ended run, to clients that accept `text/event-stream`: there is nothing to come back
    for.
    """
    if action is not None or cancel_on_disconnect:
        access.demand(call.principal, _CANCEL)
    thread_id, run = of.thread_id, of.run
    chosen = modes(list(stream_mode) or list(run.request.stream_modes))
    if action is None and (answer := stream.seen_all(call.request, run, last_event_id)) is not None:
        return answer
    async with call.live.follow(thread_id) as follower:
        if action is not None and run.open:
            await call.services.intake.cancel(thread_id, run.id, action)
            if wait:
                await waiting.ended(call.live, follower, thread_id, run.id)
                return web.Response(status=204)
        frames, behind = await stream.late(call.live, thread_id, of.state, run, chosen, last_event_id)
        missed = follower.past(frames.seq) if behind else None
        batches = follower.since(None if behind else frames.seq, frames.audible, heard=True)
        return await stream.play(
            call, thread_id, frames, batches, missed, request=run.request, cancel=cancel_on_disconnect
        )


@ROUTES("POST", f"{_ONE}/cancel", _CANCEL, errors=(404, 409), answers={204: None})
async def cancel(call: Call, *, wait: Wait = False, action: Action = "interrupt") -> Accepted[Reply[None]]:
    """Cancel a run: keep what it did, or undo it. Asking twice is fine."""
    live, thread_id, run_id = call.live, call.thread_id, call.run_id
    async with live.follow(thread_id) as follower:
        await live.services.intake.cancel(thread_id, run_id, action, user=call.user)
        if not wait:
            return Reply(None)
        await waiting.ended(live, follower, thread_id, run_id)
        return Reply(None, 204)


@ROUTES("POST", "/runs/cancel", _CANCEL, errors=(404,))
async def cancel_many(call: Call, body: CancelBody, *, action: Action = "interrupt") -> None:
    """Cancel some runs of a thread, or all of one's runs that are pending or running."""
    services, user = call.services, call.user
    if body.status is not None and (body.thread_id is not None or body.run_ids is not None):
        raise Invalid("status: cancels by status are over all threads; name a thread with run_ids, or only a status")
    if body.status is not None:
        await services.views.current()
        statuses = ("pending", "running") if body.status == "all" else (body.status,)
        for thread_id, run_id in await services.views.open_runs(user, statuses):
            with suppress(NotFound, Refused):  # it ended meanwhile
                await services.intake.cancel(thread_id, run_id, action, user=user)
        return
    if body.thread_id is None or not body.run_ids:
        raise Invalid("expected thread_id with run_ids, or status")
    thread_id = safe_id(body.thread_id, "thread_id")
    state = await services.commands.state(user, thread_id)
    if unknown := [run_id for run_id in body.run_ids if run_id not in state.runs]:
        raise NotFound(f"Run {unknown[0][:80]} not found")
    for run_id in body.run_ids:
        with suppress(Refused):  # it has ended
            await services.intake.cancel(thread_id, run_id, action, user=user)


@ROUTES("DELETE", _ONE, _CANCEL, errors=(409,))
async def delete(call: Call, of: OwnedRun) -> None:
    """Show a run's record no more. What it did to the state stays; a run that is at work must be cancelled first."""
    await call.services.intake.remove_run(of.thread_id, of.run.id, user=call.user)


@ROUTES("POST", f"{_ONE}/steer", _CREATE, errors=(400, 404, 409))
async def steer(call: Call, body: SteerBody) -> Accepted[Steered]:
    """Tell the agent something while it is at work: it sees the message before its next model call, and a run that was
    about to end goes on. A message id that was sent before is not added again.
    """
    messages = inputs.messages(body.message, "message")
    if len(messages) != 1 or messages[0]["type"] not in ("human", "system"):
        raise Invalid("message: one message of the user (or system) is expected")
    await call.services.intake.steer(call.thread_id, call.run_id, messages[0], user=call.user)
    return Steered(call.run_id, messages[0]["id"])


# ── without a thread ─────────────────────────────────────────────────────────────────────────────────────────────────


@ROUTES("POST", "/runs", **_STARTED, headers=LOCATION)
async def create_alone(call: Call, body: RunBody) -> Located:
    """Start a run on a thread of its own, which goes some time after it unless `on_completion` is `keep`."""
    return await _create(call, *_alone(call, await permitted(call, body)))


@ROUTES("POST", "/runs/stream", **_STARTED, headers=LOCATIONS)
async def create_stream_alone(call: Call, body: RunBody) -> Stream:
    """Start a run on a thread of its own, and follow it as server-sent events."""
    return await _create_stream(call, *_alone(call, await permitted(call, body)))


@ROUTES("POST", "/runs/wait", **_STARTED, headers=LOCATIONS)
async def create_waitalone(call: Call, body: RunBody) -> Values:
    """Start a run on a thread of its own, and wait for the values at its end."""
    return await _create_wait(call, *_alone(call, await permitted(call, body)))


@ROUTES("POST", "/runs/batch", **_STARTED)
async def create_batch(call: Call, body: Batch) -> Annotated[list[Json], list[shapes.Run]]:
    """Start several runs, each on a thread of its own. If one of them is wrong, none is started."""
    specs = []
    for index, fields in enumerate(body):
        try:
            specs.append(_alone(call, await permitted(call, fields), str(index)))
        except SikaError as error:
            raise type(error)(f"[{index}]: {error}") from error
    started = []
    for thread_id, spec in specs:
        run_id = new_id(call, thread_id)
        state, _ = await admit(call, thread_id, run_id, spec)
        started.append(run_object(thread_id, state.runs[run_id], state))
    return started


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _create(call: Call, thread_id: str, spec: RunSpec) -> Reply[Json]:
    run_id = new_id(call, thread_id)
    state, _ = await admit(call, thread_id, run_id, spec)
    location = {"Content-Location": f"/threads/{thread_id}/runs/{run_id}"}
    return Reply(run_object(thread_id, state.runs[run_id], state), headers=location)


async def _create_stream(call: Call, thread_id: str, spec: RunSpec) -> web.StreamResponse:
    run_id = new_id(call, thread_id)
    async with call.live.follow(thread_id) as follower:
        if wants_previews(spec.modes):
            await follower.hear(run_id)
        state, record = await admit(call, thread_id, run_id, spec)
        if state.seq != record.seq:  # the request was repeated, and things have happened since
            frames, _ = await stream.late(call.live, thread_id, state, state.runs[run_id], spec.modes, "-1")
            batches, missed = follower.since(None, frames.audible, heard=True), follower.past(frames.seq)
            return await stream.play(call, thread_id, frames, batches, missed, request=spec.request, cancel=spec.cancel)
        frames = Frames(state, thread_id, run_id, spec.modes)
        batches = follower.since(record.seq, frames.audible, heard=True)
        return await stream.play(
            call, thread_id, frames, batches, sse.single(record), request=spec.request, cancel=spec.cancel
        )


async def _create_wait(call: Call, thread_id: str, spec: RunSpec) -> web.StreamResponse:
    run_id = new_id(call, thread_id)
    async with call.live.follow(thread_id) as follower:
        state, record = await admit(call, thread_id, run_id, spec)
        heard_after = record.seq if state.seq == record.seq else None  # None: the request was repeated
        return await waiting.result(call, follower, thread_id, run_id, cancel=spec.cancel, heard_after=heard_after)


async def admit(call: Call, thread_id: str, run_id: str, spec: RunSpec) -> tuple[ThreadState, Record]:
    """Ask for the run. Call it while following the thread: nothing of the run can be missed then."""
    if spec.create:
        await call.services.commands.ensure(call.user, thread_id, spec.metadata)
    replaces = spec.request.multitask in ("interrupt", "rollback")
    return await access.request_run(call, thread_id, run_id, spec.request, replaces=replaces)


async def again(call: Call, body: RunBody) -> RunBody:
    """The run of a body that gives an answer again, or asks in other words, with what it starts with."""
    chosen = [name for name in ("regenerate", "edit") if getattr(body, name) is not None]
    if not chosen:
        return body
    others = [name for name in ("input", "command", "checkpoint", "checkpoint_id") if getattr(body, name) is not None]
    if taken := [*chosen[1:], *others]:
        raise Invalid(f"{chosen[0]}: takes the place of {taken[0]}; send one of them")
    thread = await OwnedThread.of_call(call)
    if await repeated(call, thread.id, thread.state):
        return msgspec.structs.replace(body, regenerate=None, edit=None)
    if body.edit is not None:
        prepared = branches.asked_otherwise(thread.id, thread.state, body.edit.message_id, body.edit.text)
    else:
        assert body.regenerate is not None
        prepared = branches.answered_again(thread.id, thread.state, body.regenerate.message_id)
    return msgspec.structs.replace(
        body,
        regenerate=None,
        edit=None,
        input=prepared.input,
        checkpoint_id=prepared.checkpoint.checkpoint_id,
        metadata={**(body.metadata or {}), **prepared.metadata},
    )


async def permitted(call: Call, body: RunBody) -> RunSpec:
    """The run as it is wanted, of an assistant that the user has, and as far as the configuration allows it."""
    for name in ("regenerate", "edit"):
        if getattr(body, name) is not None:
            raise BadRequest(f"{name}: a run without a thread has no answer to give again")
    config = call.config
    assistant = await call.services.assistants.resolve(call.user, body.assistant_id)
    check_options(body.config, body.context, body.metadata, model_names(config))
    await check_skills(call.services.skills, call.user, body.config, body.context)
    spec = run_spec(body, assistant, call.user, config.runs.multitask_strategy)
    if spec.request.webhook is not None:
        check_url(spec.request.webhook, "webhook", private=config.webhooks.allow_private)
    return spec


def _alone(call: Call, spec: RunSpec, part: str = "") -> tuple[str, RunSpec]:
    """The thread of a run that came without one: the one it names, or one that is made for it and goes with it."""
    if spec.request.resume is not None:
        raise BadRequest("command.resume: a run without a thread has nothing to resume")
    if spec.thread_id is not None:
        return safe_id(spec.thread_id, "config.configurable.thread_id"), spec._replace(create=True)
    request = spec.request
    if not spec.keep:
        request = msgspec.structs.replace(request, on_completion="delete")
    return new_id(call, "", f"thread {part}"), spec._replace(create=True, request=request)
