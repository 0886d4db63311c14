"""The subagents of a thread: their tasks, what they do, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from channels.http.deerflow import journal
from channels.http.deerflow.journal import Cursor
from channels.http.deerflow.messages import After, Before, Limit, Page
from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Accepted, Routes
from channels.http.runs import inputs
from channels.http.server.routes import API
from core.errors import Invalid, NotFound
from core.events import StopReason
from core.ids import safe_id
from core.phrases import counted
from core.thread.entries import Delegation
from core.thread.state import Run, ThreadState
from core.thread.subagents import of_item, outcome
from core.thread.tokens import usage_of

Status = Literal["running", "completed", "failed", "cancelled", "timed_out"]


class Used(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class Subagent(msgspec.Struct, kw_only=True):
    """A subagent. `run_id` and `tool_call_id`: the call it answers. `message_count`: how often its model answered."""

    subagent_id: str
    run_id: str
    tool_call_id: str
    name: str
    description: str
    status: Status
    model_name: str | None
    message_count: int
    usage: Used


class SubagentState(Subagent, kw_only=True):
    """A subagent as it stands. `subagents`: those that it called in turn."""

    prompt: str
    result: str | None
    error: str | None
    stop_reason: StopReason | None
    """The limit at which it ended with what it had."""
    created_at: str
    updated_at: str
    subagents: list[Subagent]


class MessageBody(msgspec.Struct):
    message: str | dict[str, Any]


class Steered(msgspec.Struct):
    subagent_id: str
    message_id: str


@dataclass(frozen=True, slots=True)
class OwnedSubagent:
    """The path's subagent of the path's thread. `NotFound` also if it is somebody else's."""

    id: str
    state: ThreadState
    of: Subagent
    errors: ClassVar = (404,)

    @classmethod
    async def of_call(cls, call: Call) -> OwnedSubagent:
        thread = await OwnedThread.of_call(call)
        subagent = safe_id(call.request.match_info["subagent_id"], "subagent_id")
        subagents = call.services.subagents.threads
        state = await subagents.load(subagent)
        about = state.metadata
        if not state.exists or (state.user, about.get("thread")) != (call.user, thread.id):
            raise NotFound(f"Subagent {subagent} not found")
        caller = thread.state if about["caller"] is None else await subagents.load(about["caller"])
        run = caller.runs[about["run"]]
        return cls(subagent, state, _subagent(run, subagent, run.subagents.get(subagent) or of_item(state, subagent)))


ROUTES = Routes(mounts=API)
_ALL = "/threads/{thread_id}/subagents"
_ONE = f"{_ALL}/{{subagent_id}}"


@ROUTES("GET", _ALL, "runs:read")
async def get_list(
    thread: OwnedThread, *, run_id: Annotated[str | None, "Only those of this run"] = None
) -> list[Subagent]:
    """The subagents that the runs of a thread called, oldest first."""
    return [called for run in thread.state.runs.values() if run_id in (None, run.id) for called in _called_by(run)]


@ROUTES("GET", _ONE, "runs:read")
async def get(subagent: OwnedSubagent) -> SubagentState:
    """A subagent as it stands."""
    state = subagent.state
    run = state.runs.get(subagent.id)
    ended = outcome(state, subagent.id, subagent.of.tool_call_id) if run and not run.open else None
    return SubagentState(
        **msgspec.structs.asdict(subagent.of),
        prompt=_prompt(run) if run else "",
        result=ended.result if ended and ended.status == "completed" else None,
        error=ended.error if ended else None,
        stop_reason=ended.stop_reason if ended else None,
        created_at=state.created_at,
        updated_at=state.updated_at,
        subagents=_called_by(run) if run else [],
    )


@ROUTES("GET", f"{_ONE}/messages", "runs:read")
async def messages(
    call: Call, subagent: OwnedSubagent, *, limit: Limit = 50, before_seq: Before = None, after_seq: After = None
) -> Page:
    """Messages of a subagent, ascending, as those of a run. The `thread_id` and `run_id` of a row are the subagent's
    id.
    """
    threads, state = call.services.subagents.threads, subagent.state
    if (run := state.runs.get(subagent.id)) is None:
        return Page([], False)
    cursor = Cursor(limit, before_seq, after_seq)
    steps = journal.of_run(state, run)
    data, more = await journal.page(call.live.reading.read, threads.aggregate(subagent.id), state, steps, cursor)
    return Page(data, more)


@ROUTES("POST", f"{_ONE}/message", "runs:create", errors=(400, 409))
async def message(call: Call, subagent: OwnedSubagent, body: MessageBody) -> Accepted[Steered]:
    """Tell a subagent something while it is at work: it sees the message before its next model call."""
    sent = inputs.messages(body.message, "message")
    if len(sent) != 1 or sent[0]["type"] not in ("human", "system"):
        raise Invalid("message: one message of the user (or system) is expected")
    await call.services.subagents.steer(subagent.id, subagent.id, sent[0], user=call.user)
    return Steered(subagent.id, sent[0]["id"])


@ROUTES("POST", f"{_ONE}/cancel", "runs:cancel", errors=(409,))
async def cancel(call: Call, subagent: OwnedSubagent) -> Accepted[None]:
    """Cancel a subagent. Its caller goes on, and is told that it was cancelled. Sending it twice is fine."""
    await call.services.subagents.cancel(subagent.id, subagent.id, user=call.user)


def _prompt(run: Run) -> str:
    if run.batch is not None:
        return f"{counted(len(run.batch), 'prompt')}; results: {run.request.batch_table}"
    return str(run.request.input["messages"][0]["content"]) if run.request.input else ""


def _called_by(run: Run) -> list[Subagent]:
    return [_subagent(run, subagent, part) for subagent, part in run.subagents.items()]


def _subagent(run: Run, subagent: str, part: Delegation) -> Subagent:
    return Subagent(
        subagent_id=subagent,
        run_id=run.id,
        tool_call_id=part.call_id,
        name=part.name,
        description=part.description,
        status=msgspec.convert(part.ended or "running", Status),
        model_name=part.model or run.model,
        message_count=part.messages,
        usage=Used(**usage_of(part.tokens)),
    )
