"""Crons: runs by a cron expression, on one thread or each on its own; the LangGraph Platform's face of schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from channels.http import live as alive
from channels.http.bodies import body, plain, within
from channels.http.kept import Kept, storable
from channels.http.langgraph import assistants
from channels.http.langgraph.asked import RunBody, checked
from channels.http.langgraph.assistants import ASSISTANTS, DEFAULT, paged
from channels.http.routes import PAGING, Route
from core import schedules
from core.egress import check_url
from core.errors import Invalid, NotFound, Refused
from core.events import Event, Json, Message
from core.ids import assistant_id, stamp, uuid7
from core.launch import Launch
from core.schedules import Job, Plan, Schedule, Schedules, Timing

LAUNCH = Kept(lambda services: Launch(services.log, services.threads, services.intake))
"""The users' schedules, and what fires them."""
SORTABLE = ("cron_id", "assistant_id", "thread_id", "created_at", "updated_at", "next_run_date", "end_time")
_UNASKED = ("input", "metadata", "schedule", "timezone", "end_time", "enabled")
"""Fields of a request that are kept elsewhere than in `Plan.asked`."""


class Cron(msgspec.Struct):
    """`payload` is what a run is asked for with; of its `webhook` the query string is not shown."""

    cron_id: str
    assistant_id: str
    thread_id: str | None
    on_run_completed: Literal["delete", "keep"] | None
    end_time: str | None
    schedule: str
    timezone: str | None
    created_at: str
    updated_at: str
    payload: Json
    user_id: str
    next_run_date: str | None
    metadata: Json
    enabled: bool


class PatchBody(msgspec.Struct, kw_only=True):
    """What is left out stays as it is. `end_time`: null takes it away."""

    schedule: str | None = None
    timezone: str | None = None
    end_time: str | UnsetType | None = UNSET
    enabled: bool | None = None
    assistant_id: str | None = None
    input: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    webhook: str | None = None
    interrupt_before: str | list[str] | None = None
    interrupt_after: str | list[str] | None = None
    multitask_strategy: Literal["reject", "enqueue", "interrupt", "rollback"] | None = None
    stream_mode: str | list[str] | None = None
    stream_subgraphs: bool | None = None
    feedback_keys: list[str] | None = None
    on_run_completed: Literal["delete", "keep"] | None = None


_NOTHING = {"end_time": UNSET}


class CreateBody(PatchBody, kw_only=True):
    """`schedule`: minute, hour, day, month, weekday. `timezone`: an IANA name; UTC if none is given."""

    schedule: str


class CountBody(msgspec.Struct):
    """`assistant_id`: an id or the name of an agent. `metadata`: what a cron's must have, key by key."""

    assistant_id: str | None = None
    thread_id: str | None = None
    enabled: bool | None = None
    metadata: dict[str, Any] | None = None


class SearchBody(CountBody):
    limit: int = 10
    offset: int = 0
    sort_by: str | None = None
    sort_order: Literal["asc", "desc", "ASC", "DESC"] | None = None
    select: list[str] | None = None


async def create(request: web.Request) -> web.Response:
    """Ask for runs by a cron expression, each on a thread of its own, which goes with its run unless
    `on_run_completed` is `keep`. What comes due while nothing is running here comes once, afterwards.
    """
    return await _create(request, None)


async def create_on_thread(request: web.Request) -> web.Response:
    """Ask for runs on a thread by a cron expression. If the thread is busy, `multitask_strategy` says what happens;
    without one the run waits. A cron whose thread is gone pauses.
    """
    thread_id, _ = await alive.owned(request)
    return await _create(request, thread_id)


async def _create(request: web.Request, thread_id: str | None) -> web.Response:
    wanted = await body(request, CreateBody)
    plan = await _plan(request, wanted, thread_id)
    return plain(_object(request, await add(request, plan, enabled=wanted.enabled is not False)))


async def search(request: web.Request) -> web.Response:
    """Find crons, newest first unless `sort_by` says otherwise."""
    wanted = await body(request, SearchBody)
    limit, offset = within("limit", wanted.limit, 1, 1000), within("offset", wanted.offset, 0, 2**31)
    key = wanted.sort_by or "created_at"
    if key not in SORTABLE:
        raise Invalid(f"sort_by: one of {', '.join(SORTABLE)}, got {key[:40]!r}")
    descending = (wanted.sort_order or "desc").lower() == "desc"
    found = await _found(request, wanted)
    found.sort(key=lambda one: (one[key] is not None, one[key] or "", one["cron_id"]), reverse=descending)
    return paged([_selected(one, wanted.select) for one in found], limit, offset)


async def count(request: web.Request) -> web.Response:
    """How many crons there are of the kind that is asked for."""
    return plain(len(await _found(request, await body(request, CountBody))))


async def get(request: web.Request) -> web.Response:
    """One cron, with the time it is due next."""
    return plain(_object(request, await _one(request)))


async def patch(request: web.Request) -> web.Response:
    """Change a cron, pause it (`enabled: false`), or resume it. What came due while it was paused does not come."""
    one, wanted = await _one(request), await body(request, PatchBody)
    said = [name for name in wanted.__struct_fields__ if getattr(wanted, name) is not _NOTHING.get(name)]
    plan = await _plan(request, wanted, one.plan.thread, one.plan) if said not in ([], ["enabled"]) else None
    return plain(_object(request, await change(request, one, plan, enabled=wanted.enabled)))


async def delete(request: web.Request) -> web.Response:
    """Remove a cron. A run that it has asked for goes on."""
    await remove(request, (await _one(request)).id)
    return web.Response(status=204)


# ── schedules, for this and for DeerFlow's scheduled tasks ───────────────────────────────────────────────────────────


async def all_of(request: web.Request) -> Schedules:
    return await LAUNCH.of(request).schedules.load(alive.user(request))


async def add(request: web.Request, plan: Plan, *, enabled: bool = True) -> Schedule:
    """Raises `Refused` if there are too many."""
    identity = uuid7()

    def decide(state: Schedules) -> Sequence[Event]:
        if len(state) >= schedules.MOST_SCHEDULES:
            raise Refused(f"at most {schedules.MOST_SCHEDULES} schedules")
        return [schedules.ScheduleCreated(schedule=identity, plan=plan, enabled=enabled)]

    return (await _decide(request, decide))[identity]


async def change(
    request: web.Request, before: Schedule, plan: Plan | None = None, *, enabled: bool | None = None
) -> Schedule:
    """Give it another plan than before, pause it, resume it.

    Raises `NotFound`, or `Refused` if somebody else gave it another plan meanwhile.
    """
    identity = before.id

    def decide(state: Schedules) -> Sequence[Event]:
        one = state.get(identity)
        if one is None:
            raise _missing(identity)
        if plan is not None and one.plan != before.plan:
            raise Refused(f"Schedule {identity} was changed by another request; try again")
        events: list[Event] = []
        if plan is not None and plan != one.plan:
            events.append(schedules.ScheduleRevised(schedule=identity, plan=plan))
        if enabled is not None and enabled != one.enabled:
            kind = schedules.ScheduleResumed if enabled else schedules.SchedulePaused
            events.append(kind(schedule=identity))
        return events

    return (await _decide(request, decide))[identity]


async def remove(request: web.Request, identity: str) -> None:
    await _decide(request, lambda state: [schedules.ScheduleRemoved(schedule=identity)] if identity in state else [])


async def _decide(request: web.Request, decision: Callable[[Schedules], Sequence[Event]]) -> Schedules:
    state, _ = await LAUNCH.of(request).schedules.decide(alive.user(request), decision, actor="http")
    return state


def shown_assistant(plan: Plan) -> str:
    """The id of the assistant whose runs are asked for."""
    return assistant_id(plan.assistant or plan.job.assistant)


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _plan(request: web.Request, wanted: PatchBody, thread_id: str | None, before: Plan | None = None) -> Plan:
    """The plan that a request makes, or makes of the one before."""
    said = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name)) is not None}
    return await planned(
        request,
        timing=_timing(wanted, before.timing if before else None),
        thread_id=thread_id,
        asked={
            **(before.asked if before else {}),
            **{name: value for name, value in said.items() if name not in _UNASKED},
        },
        given=said.get("input", before.job.input if before else None),
        metadata=said.get("metadata", before.job.metadata if before else {}),
        overlap=before.overlap if before else "allow",
        title=before.title if before else None,
    )


async def planned(
    request: web.Request,
    *,
    timing: Timing,
    thread_id: str | None,
    asked: Json,
    given: Json | None,
    metadata: Json,
    overlap: Literal["skip", "allow"],
    title: str | None,
) -> Plan:
    """A plan with a run as it is asked for (`asked`: what a client sent but the input and metadata, `given`), checked
    as if it were asked for now.

    The settings of a user's own assistant come in when it is due, as they are then. A custom agent is named at once.
    """
    for what, name in ((given, "input"), (metadata, "metadata"), (asked, "the run")):
        storable(what, name)
    assistant = await assistants.resolve(request, asked.get("assistant_id"))
    fields = {name: value for name, value in asked.items() if name in RunBody.__struct_fields__}
    body = RunBody(**{**fields, "assistant_id": DEFAULT, "input": given, "metadata": metadata})
    run = checked(body, request.app[ASSISTANTS].resolve(None), alive.user(request)).request
    if run.webhook is not None:
        check_url(run.webhook, "webhook", private=alive.of(request).services.config().webhooks.allow_private)
    job = Job(**{name: getattr(run, name) for name in Job.__struct_fields__})
    return Plan(
        timing=timing,
        job=msgspec.structs.replace(
            job,
            assistant=assistant.graph_id if assistant.own else assistant.name,
            input=_unnamed(run.input),
            context={**({} if assistant.own else assistant.settings.context), **run.context},
            multitask=body.multitask_strategy or "enqueue",
            on_completion="delete" if thread_id is None and asked.get("on_run_completed") != "keep" else "keep",
        ),
        thread=thread_id,
        assistant=assistant.id if assistant.own else None,
        overlap=overlap,
        title=title,
        asked=asked,
    )


def _unnamed(given: Json | None) -> Json | None:
    """The input with messages without ids: each time they are new ones. What removes a message needs its id."""
    if given is None or "messages" not in given:
        return given
    messages: Sequence[Message] = given["messages"]
    return {**given, "messages": [m if m["type"] == "remove" else _without(m, "id") for m in messages]}


def _without(value: Json, key: str) -> Json:
    return {name: inner for name, inner in value.items() if name != key}


def _timing(wanted: PatchBody, before: Timing | None) -> Timing:
    timezone = wanted.timezone or (before.timezone if before else "UTC")
    schedules.zone(timezone)
    expression = wanted.schedule if wanted.schedule is not None else (before.cron if before else None) or ""
    end = before.end if before else None
    if wanted.end_time is not UNSET:
        end = schedules.when(wanted.end_time, timezone, "end_time") if wanted.end_time else None
    return Timing(cron=schedules.check_cron(expression, timezone), timezone=timezone, end=end)


async def _one(request: web.Request) -> Schedule:
    identity = request.match_info["cron_id"]
    found = (await all_of(request)).get(identity)
    if found is None or found.plan.timing.cron is None:
        raise _missing(identity)
    return found


def _missing(identity: str) -> NotFound:
    return NotFound(f"Cron {identity[:80]!r} not found")


async def _found(request: web.Request, wanted: CountBody) -> list[Json]:
    by_name = request.app[ASSISTANTS].find(wanted.assistant_id or "")
    assistant = by_name.id if by_name else wanted.assistant_id
    found = [_object(request, one) for one in (await all_of(request)).values() if one.plan.timing.cron is not None]
    return [
        one
        for one in found
        if assistant in (None, one["assistant_id"])
        and wanted.thread_id in (None, one["thread_id"])
        and wanted.enabled in (None, one["enabled"])
        and _has(one["metadata"], wanted.metadata)
    ]


def _has(metadata: Json, wanted: Mapping[str, Any] | None) -> bool:
    return all(key in metadata and metadata[key] == value for key, value in (wanted or {}).items())


def _object(request: web.Request, one: Schedule) -> Json:
    plan, due = one.plan, one.next
    payload: Json = {**plan.asked, "assistant_id": shown_assistant(plan), "input": plan.job.input}
    if plan.job.webhook is not None:
        payload["webhook"] = urlsplit(plan.job.webhook)._replace(query="").geturl()
    return {
        "cron_id": one.id,
        "assistant_id": shown_assistant(plan),
        "thread_id": plan.thread,
        "on_run_completed": plan.job.on_completion if plan.thread is None else None,
        "end_time": plan.timing.end,
        "schedule": plan.timing.cron,
        "timezone": plan.timing.timezone,
        "created_at": one.created_at,
        "updated_at": one.updated_at,
        "payload": payload,
        "user_id": alive.user(request),
        "next_run_date": stamp(due) if due is not None else None,
        "metadata": plan.job.metadata,
        "enabled": one.enabled,
    }


def _selected(found: Json, select: Sequence[str] | None) -> Json:
    if not select:
        return found
    known = {**found, "now": stamp(datetime.now(UTC))}
    return {key: known[key] for key in select if key in known}


_C = "/runs/crons/{cron_id}"
_MADE: Any = {"errors": (400, 404, 409), "scope": "crons:write"}
ROUTES = (
    Route("POST", "/runs/crons", create, {200: Cron}, CreateBody, **_MADE),
    Route("POST", "/threads/{thread_id}/runs/crons", create_on_thread, {200: Cron}, CreateBody, **_MADE),
    Route("POST", "/runs/crons/search", search, {200: list[Json]}, SearchBody, headers=PAGING, scope="crons:read"),
    Route("POST", "/runs/crons/count", count, {200: int}, CountBody, scope="crons:read"),
    Route("GET", _C, get, {200: Cron}, errors=(404,), scope="crons:read"),
    Route("PATCH", _C, patch, {200: Cron}, PatchBody, errors=(400, 404, 409), scope="crons:write"),
    Route("DELETE", _C, delete, {204: None}, errors=(404,), scope="crons:write"),
)
