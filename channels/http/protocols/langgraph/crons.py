"""Crons: runs by a cron expression, on one thread or each on its own; the LangGraph Platform's face of schedules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Depends, Limit, Offset, Page, Routes
from channels.http.endpoints.listings import Order, has_all, page, sort
from channels.http.runs.plans import planned, shown_assistant
from channels.http.runs.run_request import RunFields
from channels.http.server.live import ACTOR
from core.errors import NotFound
from core.events import Json
from core.ids import stamp
from core.user import schedules
from core.user.schedules import Plan, Schedule, Timing

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


class PatchBody(RunFields, kw_only=True):
    """Changes of a cron. Fields that are left out stay as they are. `end_time`: null removes it."""

    schedule: str | None = None
    timezone: str | None = None
    end_time: str | UnsetType | None = UNSET
    enabled: bool | None = None
    multitask_strategy: Literal["reject", "enqueue", "interrupt", "rollback"] | None = None
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
    limit: Limit = 10
    offset: Offset = 0
    sort_by: (
        Literal["cron_id", "assistant_id", "thread_id", "created_at", "updated_at", "next_run_date", "end_time"] | None
    ) = None
    sort_order: Order | None = None
    select: list[str] | None = None


async def _own(call: Call) -> Schedule:
    identity = call.request.match_info["cron_id"]
    cron = (await call.services.launch.all_of(call.user)).get(identity)
    if cron is None or cron.plan.timing.cron is None:
        raise NotFound(f"Cron {identity[:80]!r} not found")
    return cron


OwnCron = Annotated[Schedule, Depends(_own)]
ROUTES = Routes()
_ONE = "/runs/crons/{cron_id}"
_READ, _WRITE, _PLAN = "crons:read", "crons:write", "crons:write runs:create"
Shown = Annotated[Json, Cron]


@ROUTES("POST", "/runs/crons", _PLAN, errors=(400, 404, 409))
async def create(call: Call, body: CreateBody) -> Shown:
    """Ask for runs by a cron expression, each on a thread of its own, which goes with its run unless
    `on_run_completed` is `keep`. What comes due while nothing is running here comes once, afterwards.
    """
    return await _create(call, body, None)


@ROUTES("POST", "/threads/{thread_id}/runs/crons", _PLAN, errors=(400, 409))
async def create_on_thread(call: Call, thread: OwnedThread, body: CreateBody) -> Shown:
    """Ask for runs on a thread by a cron expression. If the thread is busy, `multitask_strategy` says what happens;
    without one the run waits. A cron whose thread is gone pauses.
    """
    return await _create(call, body, thread.id)


async def _create(call: Call, body: CreateBody, thread_id: str | None) -> Json:
    plan, enabled = await _plan(call, body, thread_id), body.enabled is not False
    return _object(call.user, await call.services.launch.add(call.user, plan, enabled=enabled, actor=ACTOR))


@ROUTES("POST", "/runs/crons/search", _READ)
async def search(call: Call, body: SearchBody) -> Page[Json]:
    """Find crons, newest first unless `sort_by` says otherwise."""
    crons = await _matching(call, body)
    sort(crons, body.sort_by or "created_at", "cron_id", body)
    now = stamp(datetime.now(UTC))
    return page([{**cron, "now": now} for cron in crons] if body.select else crons, body)


@ROUTES("POST", "/runs/crons/count", _READ)
async def count(call: Call, body: CountBody) -> int:
    """Count the crons that match."""
    return len(await _matching(call, body))


@ROUTES("GET", _ONE, _READ)
async def get(call: Call, cron: OwnCron) -> Shown:
    """One cron, with the time it is due next."""
    return _object(call.user, cron)


@ROUTES("PATCH", _ONE, _PLAN, errors=(400, 409))
async def patch(call: Call, cron: OwnCron, body: PatchBody) -> Shown:
    """Change a cron, pause it (`enabled: false`), or resume it. What came due while it was paused does not come."""
    names = [name for name in body.__struct_fields__ if getattr(body, name) is not _NOTHING.get(name)]
    plan = await _plan(call, body, cron.plan.thread, cron.plan) if names not in ([], ["enabled"]) else None
    after = await call.services.launch.change(call.user, cron, plan, enabled=body.enabled, actor=ACTOR)
    return _object(call.user, after)


@ROUTES("DELETE", _ONE, _WRITE)
async def delete(call: Call, cron: OwnCron) -> None:
    """Remove a cron. A run that it has asked for goes on."""
    await call.services.launch.remove(call.user, cron.id, actor=ACTOR)


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _plan(call: Call, body: PatchBody, thread_id: str | None, before: Plan | None = None) -> Plan:
    """The plan that a request makes, or makes of the one before."""
    sent = msgspec.structs.asdict(body)
    return await planned(
        call,
        before,
        timing=_timing(body, before.timing if before else None),
        thread_id=thread_id,
        options={name: value for name, value in sent.items() if value is not None and name not in _UNASKED},
        run_input=body.input,
        metadata=body.metadata,
        overlap="allow",
    )


def _timing(body: PatchBody, before: Timing | None) -> Timing:
    timezone = body.timezone or (before.timezone if before else "UTC")
    schedules.zone(timezone)
    expression = body.schedule if body.schedule is not None else (before.cron if before else None) or ""
    end = before.end if before else None
    if body.end_time is not UNSET:
        end = schedules.when(body.end_time, timezone, "end_time") if body.end_time else None
    return Timing(cron=schedules.check_cron(expression, timezone), timezone=timezone, end=end)


async def _matching(call: Call, filters: CountBody) -> list[Json]:
    services = call.services
    by_name = services.assistants.find(filters.assistant_id or "")
    assistant = by_name.id if by_name else filters.assistant_id
    schedules = (await services.launch.all_of(call.user)).values()
    crons = [_object(call.user, each) for each in schedules if each.plan.timing.cron is not None]
    return [
        cron
        for cron in crons
        if assistant in (None, cron["assistant_id"])
        and filters.thread_id in (None, cron["thread_id"])
        and filters.enabled in (None, cron["enabled"])
        and has_all(cron["metadata"], filters.metadata)
    ]


def _object(user: str, schedule: Schedule) -> Json:
    plan, due = schedule.plan, schedule.next
    payload: Json = {**plan.asked, "assistant_id": shown_assistant(plan), "input": plan.job.input}
    if plan.job.webhook is not None:
        payload["webhook"] = urlsplit(plan.job.webhook)._replace(query="").geturl()
    return {
        "cron_id": schedule.id,
        "assistant_id": shown_assistant(plan),
        "thread_id": plan.thread,
        "on_run_completed": plan.job.on_completion if plan.thread is None else None,
        "end_time": plan.timing.end,
        "schedule": plan.timing.cron,
        "timezone": plan.timing.timezone,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
        "payload": payload,
        "user_id": user,
        "next_run_date": stamp(due) if due is not None else None,
        "metadata": plan.job.metadata,
        "enabled": schedule.enabled,
    }
