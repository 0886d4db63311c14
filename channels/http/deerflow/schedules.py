"""Scheduled tasks: prompts at times a person set; DeerFlow's face of the same schedules that crons are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Depends, Offset, Routes
from channels.http.runs.idempotency import new_id
from channels.http.runs.plans import planned, shown_assistant
from channels.http.server.errors import HttpError
from channels.http.server.live import ACTOR
from channels.http.server.routes import API
from core.errors import Invalid, NotFound
from core.events import Json
from core.ids import safe_id, stamp
from core.thread.messages import text_of
from core.thread.state import Run
from core.user import schedules
from core.user.launch import Launch, concurrently
from core.user.schedules import Firing, Plan, Schedule, Timing

MOST_TITLE = 200
MOST_PROMPT = 32_000
GRACE_SECONDS = 60
"""Tolerance for single times in the past: clocks of clients that mean now."""
_ASKED: Json = {"context": {"non_interactive": True}, "on_run_completed": "keep"}
"""The options of every task: nobody is there to answer questions, and the conversation stays."""
_ENDED = {"success": "success", "error": "failed", "timeout": "failed"}
"""A run's status to a task run's; every other end is `interrupted`."""

TaskStatus = Literal["enabled", "paused", "running", "completed", "failed"]
RunStatus = Literal["queued", "running", "success", "failed", "skipped", "interrupted"]


class Task(msgspec.Struct):
    """A schedule. Crons are shown too; their `prompt` is the last message of their input."""

    id: str
    user_id: str
    thread_id: str | None
    context_mode: Literal["fresh_thread_per_run", "reuse_thread"]
    assistant_id: str
    title: str
    prompt: str
    schedule_type: Literal["cron", "once"]
    schedule_spec: Json
    timezone: str
    status: TaskStatus
    overlap_policy: Literal["skip", "allow"]
    next_run_at: str | None
    last_run_at: str | None
    last_run_id: str | None
    last_thread_id: str | None
    last_error: str | None
    run_count: int
    created_at: str
    updated_at: str


class TaskRun(msgspec.Struct):
    """One time that a task was due, or was triggered; `status` and the times are the run's."""

    id: str
    task_id: str
    thread_id: str | None
    run_id: str | None
    scheduled_for: str
    trigger: Literal["scheduled", "manual"]
    status: RunStatus
    error: str | None
    started_at: str | None
    finished_at: str | None
    created_at: str


class Triggered(msgspec.Struct):
    id: str
    triggered: bool
    run_id: str
    thread_id: str


class Deleted(msgspec.Struct):
    id: str
    deleted: bool


class PatchBody(msgspec.Struct, kw_only=True):
    """Changes of a task. Fields that are null or left out stay as they are. `schedule_spec`: `{"cron": "0 9 * * *"}`,
    or `{"run_at": a time}`.
    """

    thread_id: str | None = None
    context_mode: Literal["fresh_thread_per_run", "reuse_thread"] | None = None
    assistant_id: str | None = None
    title: Annotated[str, msgspec.Meta(max_length=MOST_TITLE)] | None = None
    prompt: Annotated[str, msgspec.Meta(max_length=MOST_PROMPT)] | None = None
    schedule_type: Literal["cron", "once"] | None = None
    schedule_spec: dict[str, Any] | None = None
    timezone: str | None = None


class CreateBody(PatchBody, kw_only=True):
    title: Annotated[str, msgspec.Meta(max_length=MOST_TITLE)]
    prompt: Annotated[str, msgspec.Meta(max_length=MOST_PROMPT)]
    schedule_type: Literal["cron", "once"]
    schedule_spec: dict[str, Any]


async def _own(call: Call) -> Schedule:
    identity = call.request.match_info["task_id"]
    task = (await call.services.launch.all_of(call.user)).get(identity)
    if task is None:
        raise NotFound(f"Scheduled task {identity[:80]!r} not found")
    return task


OwnTask = Annotated[Schedule, Depends(_own)]
ROUTES = Routes(mounts=API)
_ALL, _ONE = "/scheduled-tasks", "/scheduled-tasks/{task_id}"
_READ, _WRITE, _PLAN = "crons:read", "crons:write", "crons:write runs:create"


@ROUTES("GET", _ALL, _READ)
async def get_all(call: Call) -> list[Task]:
    """Your tasks, newest first."""
    return await _tasks(call, (await call.services.launch.all_of(call.user)).values())


@ROUTES("POST", _ALL, _PLAN, errors=(400, 404, 409))
async def create(call: Call, body: CreateBody) -> Task:
    """Schedule a prompt: by a cron expression, or once. A single time must lie ahead; without a zone of its own it is
    in `timezone`. While a run of the task is going on, what comes due is skipped.
    """
    plan = await _plan(call, body, None)
    return await _task(call, await call.services.launch.add(call.user, plan, actor=ACTOR))


@ROUTES("GET", _ONE, _READ)
async def get(call: Call, task: OwnTask) -> Task:
    """One task, with the time it is due next and what became of it last."""
    return await _task(call, task)


@ROUTES("PATCH", _ONE, _PLAN, errors=(400, 409))
async def patch(call: Call, task: OwnTask, body: PatchBody) -> Task:
    """Change a task."""
    plan = await _plan(call, body, task.plan)
    return await _task(call, await call.services.launch.change(call.user, task, plan, actor=ACTOR))


@ROUTES("DELETE", _ONE, _WRITE)
async def delete(call: Call, task: OwnTask) -> Deleted:
    """Remove a task. A run of it that is going on goes on."""
    await call.services.launch.remove(call.user, task.id, actor=ACTOR)
    return Deleted(task.id, True)


@ROUTES("POST", f"{_ONE}/pause", _WRITE)
async def pause(call: Call, task: OwnTask) -> Task:
    """Pause a task: nothing is due until it is resumed. Pausing twice is fine."""
    return await _enable(call, task, False)


@ROUTES("POST", f"{_ONE}/resume", _PLAN)
async def resume(call: Call, task: OwnTask) -> Task:
    """Resume a task. What a cron expression made due meanwhile does not come; a single time that has passed comes."""
    return await _enable(call, task, True)


@ROUTES("POST", f"{_ONE}/trigger", _PLAN, errors=(409, 502))
async def trigger(call: Call, task: OwnTask) -> Triggered:
    """Run a task now, paused or not. Refused while a run of it is going on; when it is due next stays as it is."""
    fired = await call.services.launch.trigger(call.user, task.id, new_id(call, task.id), actor=ACTOR)
    if fired.failed is not None:
        raise HttpError(502, fired.failed, "not_launched")
    return Triggered(task.id, True, str(fired.run), str(fired.thread))


@ROUTES("GET", f"{_ONE}/runs", _READ)
async def runs(
    call: Call, task: OwnTask, *, limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50, offset: Offset = 0
) -> list[TaskRun]:
    """The last times that a task was due or was triggered, newest first, at most 100; skipped ones among them."""
    shown = task.firings[::-1][offset : offset + limit]
    return await concurrently(partial(_run, call.services.launch, task), shown)


@ROUTES("GET", "/threads/{thread_id}/scheduled-tasks", _READ)
async def of_thread(call: Call, thread: OwnedThread) -> list[Task]:
    """The tasks whose runs are on a thread, newest first: on purpose, or because it was made for one of the last."""
    schedules = await call.services.launch.all_of(call.user)
    of = [
        schedule
        for schedule in schedules.values()
        if thread.id in (schedule.plan.thread, *(f.thread for f in schedule.firings))
    ]
    return await _tasks(call, of)


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _tasks(call: Call, schedules: Iterable[Schedule]) -> list[Task]:
    """As they are shown, newest first."""
    return await concurrently(partial(_task, call), list(schedules)[::-1])


async def _enable(call: Call, task: OwnTask, enabled: bool) -> Task:
    after = await call.services.launch.change(call.user, task, enabled=enabled, actor=ACTOR)
    return await _task(call, after)


async def _plan(call: Call, body: PatchBody, before: Plan | None) -> Plan:
    title = body.title if body.title is not None else before.title if before else None
    if body.title is not None and not body.title.strip():
        raise Invalid("title: must not be blank")
    if body.prompt is not None and not body.prompt.strip():
        raise Invalid("prompt: must not be blank")
    timing = _timing(body, before.timing if before else None)
    thread_id = await _thread(call, body, before.thread if before else None)
    if before is not None and body.prompt is None and body.assistant_id is None:
        return msgspec.structs.replace(before, title=title, timing=timing, thread=thread_id)
    options = {"assistant_id": body.assistant_id} if body.assistant_id else {}
    return await planned(
        call,
        before,
        timing=timing,
        thread_id=thread_id,
        options=options if before else {**_ASKED, **options},
        run_input={"messages": [{"type": "human", "content": body.prompt}]} if body.prompt is not None else None,
        overlap="skip",
        title=title,
    )


async def _thread(call: Call, body: PatchBody, before: str | None) -> str | None:
    """The thread to be reused. Raises `NotFound` if there is none such."""
    mode = body.context_mode or ("reuse_thread" if body.thread_id or before else "fresh_thread_per_run")
    if mode == "fresh_thread_per_run":
        return None
    thread_id = body.thread_id or before
    if not thread_id:
        raise Invalid("thread_id: reuse_thread needs the thread to reuse")
    await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    return thread_id


def _timing(body: PatchBody, before: Timing | None) -> Timing:
    timezone = body.timezone or (before.timezone if before else "UTC")
    zone = schedules.zone(timezone)
    spec = body.schedule_spec
    kind = body.schedule_type or ("once" if before and before.at is not None else "cron")
    if spec is None and before is not None and body.schedule_type in (None, "once" if before.at else "cron"):
        if before.cron is not None:
            schedules.check_cron(before.cron, timezone)
        return msgspec.structs.replace(before, timezone=timezone)
    value = (spec or {}).get("cron" if kind == "cron" else "run_at")
    if not isinstance(value, str):
        raise Invalid(f"schedule_spec.{'cron' if kind == 'cron' else 'run_at'}: expected a string")
    if kind == "cron":
        cron = schedules.check_cron(value, timezone, "schedule_spec.cron")
        return Timing(cron=cron, timezone=timezone, end=before.end if before else None)
    at = schedules.when(value, timezone, "schedule_spec.run_at")
    if (datetime.now(zone) - datetime.fromisoformat(at)).total_seconds() > GRACE_SECONDS:
        raise Invalid(f"schedule_spec.run_at: {value[:40]} has passed")
    return Timing(at=at, timezone=timezone)


async def _task(call: Call, schedule: Schedule) -> Task:
    plan, due, last = schedule.plan, schedule.next, schedule.last
    outcome = await _run(call.services.launch, schedule, last) if last is not None else None
    newest = schedule.firings[-1] if schedule.firings else None
    return Task(
        id=schedule.id,
        user_id=call.user,
        thread_id=plan.thread,
        context_mode="fresh_thread_per_run" if plan.thread is None else "reuse_thread",
        assistant_id=shown_assistant(plan),
        title=plan.title or _spec(plan.timing)[1],
        prompt=_prompt(plan),
        schedule_type="cron" if plan.timing.at is None else "once",
        schedule_spec=dict([_spec(plan.timing)]),
        timezone=plan.timing.timezone,
        status=_status(schedule, due, outcome),
        overlap_policy=plan.overlap,
        next_run_at=stamp(due) if due is not None else None,
        last_run_at=last.at if last is not None else None,
        last_run_id=last.run if last is not None else None,
        last_thread_id=last.thread if last is not None else None,
        last_error=(newest.failed if newest else None) or (outcome.error if outcome else None),
        run_count=schedule.runs,
        created_at=schedule.created_at,
        updated_at=schedule.updated_at,
    )


def _status(schedule: Schedule, due: datetime | None, outcome: TaskRun | None) -> TaskStatus:
    if not schedule.enabled:
        return "paused"
    if outcome is not None and outcome.status in ("queued", "running"):
        return "running"
    if due is not None:
        return "enabled"
    return "failed" if outcome is not None and outcome.status == "failed" else "completed"


async def _run(launch: Launch, schedule: Schedule, firing: Firing) -> TaskRun:
    kind, run = await launch.outcome(firing)
    return TaskRun(
        id=firing.id,
        task_id=schedule.id,
        thread_id=firing.thread,
        run_id=firing.run,
        scheduled_for=firing.due,
        trigger="manual" if firing.manual else "scheduled",
        status=_run_status(kind, run),
        error=firing.failed or _error(kind, run),
        started_at=run.created_at if run is not None and run.attempt else None,
        finished_at=run.updated_at if run is not None and not run.open else None,
        created_at=firing.at,
    )


def _run_status(kind: str, run: Run | None) -> RunStatus:
    match kind:
        case "skipped":
            return "skipped"
        case "failed":
            return "failed"
        case "queued":
            return "queued"
    if run is None:
        return "interrupted"
    if run.open:
        return "queued" if run.status == "pending" else "running"
    return _ENDED.get(run.status, "interrupted")  # type: ignore[return-value]


def _error(kind: str, run: Run | None) -> str | None:
    if run is not None:
        return run.error.text if run.error is not None else None
    return "Its thread is gone" if kind == "gone" else None


def _spec(timing: Timing) -> tuple[str, str]:
    return ("cron", timing.cron or "") if timing.at is None else ("run_at", timing.at)


def _prompt(plan: Plan) -> str:
    messages: Sequence[Json] = (plan.job.input or {}).get("messages") or ()
    return text_of(messages[-1].get("content", "")) if messages else ""
