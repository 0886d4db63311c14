"""Crons: runs by a cron expression, on one thread or each on its own; the LangGraph Platform's face of schedules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from channels.http import live as alive
from channels.http.bodies import body, plain, within
from channels.http.listings import has_all, page, selected, sort
from channels.http.live import ACTOR
from channels.http.plans import planned, shown_assistant
from channels.http.routes import PAGING, Route
from core.errors import NotFound
from core.events import Json
from core.ids import stamp
from core.user import schedules
from core.user.schedules import Plan, Schedule, Timing

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
    live, wanted = alive.of(request), await body(request, CreateBody)
    plan, enabled = await _plan(request, wanted, thread_id), wanted.enabled is not False
    one = await live.services.launch.add(alive.user(request), plan, enabled=enabled, actor=ACTOR)
    return plain(_object(request, one))


async def search(request: web.Request) -> web.Response:
    """Find crons, newest first unless `sort_by` says otherwise."""
    wanted = await body(request, SearchBody)
    limit, offset = within("limit", wanted.limit, 1, 1000), within("offset", wanted.offset, 0, 2**31)
    found = await _found(request, wanted)
    sort(found, wanted.sort_by or "created_at", "cron_id", sortable=SORTABLE, order=wanted.sort_order)
    now = stamp(datetime.now(UTC))
    some = found[offset : offset + limit]
    return page(
        [selected({**one, "now": now}, wanted.select) if wanted.select else one for one in some], len(found), offset
    )


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
    launch = alive.of(request).services.launch
    after = await launch.change(alive.user(request), one, plan, enabled=wanted.enabled, actor=ACTOR)
    return plain(_object(request, after))


async def delete(request: web.Request) -> web.Response:
    """Remove a cron. A run that it has asked for goes on."""
    one, launch = await _one(request), alive.of(request).services.launch
    await launch.remove(alive.user(request), one.id, actor=ACTOR)
    return web.Response(status=204)


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
        run_input=said.get("input", before.job.input if before else None),
        metadata=said.get("metadata", before.job.metadata if before else {}),
        overlap=before.overlap if before else "allow",
        title=before.title if before else None,
    )


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
    found = (await alive.of(request).services.launch.all_of(alive.user(request))).get(identity)
    if found is None or found.plan.timing.cron is None:
        raise NotFound(f"Cron {identity[:80]!r} not found")
    return found


async def _found(request: web.Request, wanted: CountBody) -> list[Json]:
    services = alive.of(request).services
    by_name = services.assistants.find(wanted.assistant_id or "")
    assistant = by_name.id if by_name else wanted.assistant_id
    schedules = (await services.launch.all_of(alive.user(request))).values()
    found = [_object(request, one) for one in schedules if one.plan.timing.cron is not None]
    return [
        one
        for one in found
        if assistant in (None, one["assistant_id"])
        and wanted.thread_id in (None, one["thread_id"])
        and wanted.enabled in (None, one["enabled"])
        and has_all(one["metadata"], wanted.metadata)
    ]


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
