"""Tool calls that wait for a person: listed, shown, decided."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from channels.http.accounts.access import request_run
from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Reply, Routes
from channels.http.runs.idempotency import new_id, repeated
from channels.http.server.routes import API
from core.errors import Invalid, NotFound, Refused
from core.events import Json
from core.ids import now
from core.thread import approvals, state
from core.thread.state import ThreadState


class Decision(msgspec.Struct):
    """`args`: all arguments of the call as it is to be made, only to `edit` it. `message` is for the agent."""

    decision: Literal["approve", "edit", "reject"]
    args: dict[str, Any] | None = None
    message: Annotated[str, msgspec.Meta(max_length=10_000)] = ""


class Approval(msgspec.Struct):
    """`args` are those that were asked for; `edited_args` those that the call was made with instead. `abandoned`: the
    conversation went on without a decision. `form` (JSON schema): the person fills in these fields, as `args` of the
    decision `edit`.
    """

    approval_id: str
    thread_id: str
    run_id: str
    tool_call_id: str
    tool: str
    args: Json
    text: str
    allowed_decisions: list[str]
    form: Json | None
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


ROUTES = Routes(mounts=API)
_ALL = "/threads/{thread_id}/approvals"
_ONE = f"{_ALL}/{{approval_id}}"


@ROUTES("GET", _ALL, "threads:read")
async def get_list(
    thread: OwnedThread,
    *,
    status: Annotated[Literal["pending", "resolved"] | None, "Only those that wait, or only those that do not"] = None,
) -> list[Approval]:
    """The approvals of a thread, newest first."""
    shown = [approval_object(thread.id, thread.state, entry) for entry in list(thread.state.approvals.values())[::-1]]
    return [entry for entry in shown if status is None or (entry.status == "pending") == (status == "pending")]


@ROUTES("GET", _ONE, "threads:read")
async def get(thread: OwnedThread, approval_id: str) -> Approval:
    """An approval."""
    return approval_object(thread.id, thread.state, _of(thread.state, approval_id))


@ROUTES("POST", _ONE, "runs:create", errors=(409,), answers={202: Decided})
async def decide(call: Call, thread: OwnedThread, approval_id: str, body: Decision) -> Reply[Decided]:
    """Approve, edit or reject a call; the agent goes on in a new run. Repeating the same decision is fine."""
    answer = _answer(body)
    thread_id, current = thread.id, thread.state
    approval = _of(current, approval_id)
    await repeated(call, thread_id, current)  # the same decision is found below
    if (earlier := _earlier(current, approval, answer)) is not None:
        return Reply(Decided(approval_object(thread_id, current, approval), earlier))
    _check(thread_id, current, approval, answer["decision"])
    approvals.read(answer, approval.request)
    run_id = new_id(call, thread_id)
    after, _ = await request_run(call, thread_id, run_id, approvals.resuming(current, {approval_id: answer}))
    return Reply(Decided(approval_object(thread_id, after, after.approvals.get(approval_id, approval)), run_id), 202)


def _answer(decision: Decision) -> Json:
    """Returns the answer for the run that goes on. Raises `Invalid`."""
    if (decision.decision == "edit") != (decision.args is not None):
        raise Invalid("args: all arguments of the call, with the decision edit, and only then")
    answer: Json = {"decision": decision.decision}
    if decision.args is not None:
        answer["args"] = decision.args
    if decision.message:
        answer["message"] = decision.message
    return answer


def _earlier(current: ThreadState, approval: state.Approval, answer: Json) -> str | None:
    """The run that was asked for with the very same decision, if it counts."""
    run = approvals.answering(current, approval.request.approval)
    if run is None or not (run.open or approvals.settled(current, approval)):
        return None
    return run.id if approvals.answer_in(run, approval.request.approval, current) == answer else None


def _check(thread_id: str, current: ThreadState, approval: state.Approval, decision: str) -> None:
    """Raises `Refused` if it cannot be decided (so, or any more)."""
    request, status = approval.request, approvals.status(current, approval)
    if status == "abandoned":
        raise Refused(f"Thread {thread_id} does not wait for approval {request.approval} any more")
    if status != "pending":
        raise Refused(f"Approval {request.approval} is decided already: {status}")
    if current.status == "busy":
        raise Refused(f"Thread {thread_id} has an active run; decide when it has paused")
    if approvals.over(request, now()):
        raise Refused(f"The deadline of approval {request.approval} is over: {request.deadline}")
    if decision not in request.allowed:
        raise Refused(f"Approval {request.approval}: {decision} is not allowed, but {', '.join(request.allowed)}")


def _of(current: ThreadState, identity: str) -> state.Approval:
    if identity not in current.approvals:
        raise NotFound(f"Approval {identity[:80]} not found")
    return current.approvals[identity]


def approval_object(thread_id: str, current: ThreadState, approval: state.Approval) -> Approval:
    request, resolved = approval.request, approvals.settled(current, approval)
    decided_in = approvals.answering(current, request.approval) if resolved else None
    return Approval(
        approval_id=request.approval,
        thread_id=thread_id,
        run_id=approval.run,
        tool_call_id=request.call_id,
        tool=request.tool,
        args=request.args,
        text=request.text,
        allowed_decisions=list(request.allowed),
        form=request.form,
        requested_at=approval.at,
        deadline=request.deadline,
        status=approvals.status(current, approval),
        decided_by=resolved.by if resolved else None,
        decided_at=decided_in.created_at if decided_in else None,
        edited_args=resolved.args if resolved else None,
        message=resolved.message if resolved else "",
    )
