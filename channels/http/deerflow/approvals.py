"""Tool calls that wait for a person: listed, shown, decided."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from channels.http import access
from channels.http import live as alive
from channels.http.bodies import body, plain
from channels.http.routes import API, Param, Route
from channels.http.traces import traced
from core.errors import Invalid, NotFound, Refused
from core.events import Json
from core.ids import now, uuid7
from core.thread import approvals, state
from core.thread.state import ThreadState


class Decision(msgspec.Struct):
    """`args`: all arguments of the call as it is to be made, only to `edit` it. `message` is for the agent."""

    decision: Literal["approve", "edit", "reject"]
    args: dict[str, Any] | None = None
    message: Annotated[str, msgspec.Meta(max_length=10_000)] = ""


class Approval(msgspec.Struct):
    """`args` are those that were asked for; `edited_args` those that the call was made with instead. `abandoned`: the
    conversation went on without a decision.
    """

    approval_id: str
    thread_id: str
    run_id: str
    tool_call_id: str
    tool: str
    args: Json
    text: str
    allowed_decisions: list[str]
    requested_at: str
    deadline: str | None
    status: approvals.Status
    decided_by: str | None
    decided_at: str | None
    edited_args: Json | None
    message: str


class Decided(msgspec.Struct):
    """`run_id`: the run that goes on with the decision."""

    approval: Approval
    run_id: str


async def get_list(request: web.Request) -> web.Response:
    """The approvals of a thread, newest first."""
    wanted = request.query.get("status")
    if wanted not in (None, "pending", "resolved"):
        raise Invalid(f"status: pending or resolved, got {wanted[:40]!r}")
    thread_id, current = await alive.owned(request)
    shown = [_object(thread_id, current, one) for one in list(current.approvals.values())[::-1]]
    return plain([one for one in shown if wanted is None or (one.status == "pending") == (wanted == "pending")])


async def get(request: web.Request) -> web.Response:
    """An approval."""
    thread_id, current = await alive.owned(request)
    return plain(_object(thread_id, current, _of(request, current)))


async def decide(request: web.Request) -> web.Response:
    """Approve, edit or reject a call; the agent goes on in a new run. Repeating the same decision is fine."""
    answer = _answer(await body(request, Decision))
    thread_id, current = await alive.owned(request)
    approval = _of(request, current)
    identity = approval.request.approval
    if (earlier := _earlier(current, approval, answer)) is not None:
        return plain(Decided(_object(thread_id, current, approval), earlier))
    _check(thread_id, current, approval, answer["decision"])
    run_id, wanted = uuid7(), traced(request, approvals.resuming(current, {identity: answer}))
    intake = alive.of(request).services.intake
    async with access.limits(request).admitted(alive.principal(request), thread_id, run_id):
        after, _ = await intake.request_run(thread_id, run_id, wanted, user=alive.user(request))
    response = plain(Decided(_object(thread_id, after, after.approvals.get(identity, approval)), run_id))
    response.set_status(202)
    return response


def _answer(wanted: Decision) -> Json:
    """What the run that goes on is told. Raises `Invalid`."""
    if (wanted.decision == "edit") != (wanted.args is not None):
        raise Invalid("args: all arguments of the call, with the decision edit, and only then")
    answer: Json = {"decision": wanted.decision}
    if wanted.args is not None:
        answer["args"] = wanted.args
    if wanted.message:
        answer["message"] = wanted.message
    return answer


def _earlier(current: ThreadState, approval: state.Approval, answer: Json) -> str | None:
    """The run that was asked for with the very same decision, if it counts."""
    run = approvals.answering(current, approval.request.approval)
    if run is None or not (run.open or approvals.settled(current, approval)):
        return None
    return run.id if approvals.answer_in(run, approval.request.approval, current) == answer else None


def _check(thread_id: str, current: ThreadState, approval: state.Approval, decision: str) -> None:
    """Raises `Refused` if it cannot be decided (so, or any more)."""
    asked, status = approval.request, approvals.status(current, approval)
    if status == "abandoned":
        raise Refused(f"Thread {thread_id} does not wait for approval {asked.approval} any more")
    if status != "pending":
        raise Refused(f"Approval {asked.approval} is decided already: {status}")
    if current.status == "busy":
        raise Refused(f"Thread {thread_id} has an active run; decide when it has paused")
    if approvals.over(asked, now()):
        raise Refused(f"The deadline of approval {asked.approval} is over: {asked.deadline}")
    if decision not in asked.allowed:
        raise Refused(f"Approval {asked.approval}: {decision} is not allowed, but {', '.join(asked.allowed)}")


def _of(request: web.Request, current: ThreadState) -> state.Approval:
    identity = request.match_info["approval_id"]
    if identity not in current.approvals:
        raise NotFound(f"Approval {identity[:80]} not found")
    return current.approvals[identity]


def _object(thread_id: str, current: ThreadState, approval: state.Approval) -> Approval:
    asked, resolved = approval.request, approvals.settled(current, approval)
    decided_in = approvals.answering(current, asked.approval) if resolved else None
    return Approval(
        approval_id=asked.approval,
        thread_id=thread_id,
        run_id=approval.run,
        tool_call_id=asked.call_id,
        tool=asked.tool,
        args=asked.args,
        text=asked.text,
        allowed_decisions=list(asked.allowed),
        requested_at=approval.at,
        deadline=asked.deadline,
        status=approvals.status(current, approval),
        decided_by=resolved.by if resolved else None,
        decided_at=decided_in.created_at if decided_in else None,
        edited_args=resolved.args if resolved else None,
        message=resolved.message if resolved else "",
    )


_A = "/threads/{thread_id}/approvals"
_READ: Any = {"errors": (404,), "scope": "threads:read", "mounts": API}
_STATUS = Param("status", Literal["pending", "resolved"], "Only those that wait, or only those that do not")
ROUTES = (
    Route("GET", _A, get_list, {200: list[Approval]}, query=(_STATUS,), **_READ),
    Route("GET", f"{_A}/{{approval_id}}", get, {200: Approval}, **_READ),
    Route(
        "POST",
        f"{_A}/{{approval_id}}",
        decide,
        {200: Decided, 202: Decided},
        Decision,
        errors=(404, 409),
        scope="runs:create",
        mounts=API,
    ),
)
