"""Commands of the protocol: start a run, answer its questions, look at it. The answer says what cannot be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from channels.http.endpoints.call import Call, OwnedThread, ReadableThread
from channels.http.protocols.langgraph import runs
from channels.http.protocols.langgraph_events.wire import failure, place
from channels.http.runs.idempotency import new_id
from channels.http.runs.run_request import RunBody, RunSpec
from channels.http.server.errors import BadRequest
from channels.http.server.parsing import convert, decode
from core.errors import Invalid, NotFound, Refused
from core.events import Json
from core.thread.state import Run, ThreadState

STRATEGY = "interrupt"
"""The fate of an open run if `run.start` names none: clients that know of no other run do not."""

Code = Literal[
    "invalid_argument",
    "unknown_command",
    "no_such_run",
    "no_such_interrupt",
    "no_such_subscription",
    "unsupported",
    "permission_denied",
    "unknown_error",
]


class Command(msgspec.Struct):
    """A command as clients send it."""

    id: int
    """Chosen by the client; the answer has it too."""
    method: str
    """`run.start`, `input.respond` or `agent.getTree`."""
    params: dict[str, Any] | None = None


class Meta(msgspec.Struct):
    applied_through_seq: int
    """The number of the last event before what the command did."""


class Success(msgspec.Struct, tag_field="type", tag="success"):
    """The command was carried out."""

    id: int
    result: Json
    meta: Meta


class Failure(msgspec.Struct, tag_field="type", tag="error"):
    """The command was not carried out."""

    id: int
    error: Code
    message: str


class Failed(Exception):
    """Why a command is not carried out."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Response(msgspec.Struct):
    interrupt_id: str | None = None
    response: Any = None


class _Respond(_Response):
    responses: list[_Response] | None = None
    update: Any = None
    goto: Any = None
    config: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


def envelope(raw: bytes) -> Command:
    """A command. Raises `BadRequest` unless it has an integer `id` and a `method`."""
    try:
        return decode(raw, Command)
    except Invalid as error:
        raise BadRequest(f"a command needs an integer id, a method, and params if any: {error}") from None


async def execute(call: Call, command: Command) -> Json:
    """Do it; the answer. Raises only what is no fault of the command: no such thread, a part that does not answer."""
    params = command.params or {}
    try:
        match command.method:
            case "run.start":
                return await _start(call, command.id, params)
            case "input.respond":
                return await _respond(call, command.id, params)
            case "agent.getTree":
                return await _tree(call, command.id, params)
            case "subscription.subscribe" | "subscription.unsubscribe":
                raise Failed("unsupported", f"{command.method}: only on a WebSocket")
            case other:
                raise Failed("unknown_command", f"Unknown protocol command: {other[:80]}")
    except Failed as error:
        return failure(command.id, error.code, str(error))
    except Invalid as error:
        return failure(command.id, "invalid_argument", str(error))
    except Refused as error:
        return failure(command.id, "unknown_error", str(error))


def success(identity: int, result: Json, through: int = 0) -> Json:
    return {"type": "success", "id": identity, "result": result, "meta": {"applied_through_seq": through}}


async def _start(call: Call, identity: int, params: Mapping[str, Any]) -> Json:
    """Start a run, or (where questions are open) go on with the input as the answer."""
    if not params.get("assistant_id"):
        raise Failed("invalid_argument", "run.start requires an assistant_id.")
    state = (await ReadableThread.of_call(call)).state
    body = {name: value for name, value in params.items() if name in RunBody.__struct_fields__}
    body["if_not_exists"] = "create"
    body["multitask_strategy"] = params.get("multitask_strategy") or params.get("multitaskStrategy") or STRATEGY
    if _questions(state) and body.get("input") is not None and "command" not in body:
        body["command"] = {"resume": body.pop("input")}
    return await _requested(call, identity, await _spec(call, body))


async def _respond(call: Call, identity: int, params: Mapping[str, Any]) -> Json:
    """Answer questions; the run goes on as it was asked for, but from where the thread is."""
    state = (await OwnedThread.of_call(call)).state
    input = convert(params, _Respond)
    responses = input.responses if input.responses is not None else [input]
    questions = _questions(state)
    if not responses or any(response.interrupt_id is None for response in responses):
        raise Failed("invalid_argument", "input.respond requires an interrupt_id.")
    for response in responses:
        if response.interrupt_id not in questions:
            raise Failed(
                "no_such_interrupt", f"Unknown or already-consumed interrupt: {str(response.interrupt_id)[:80]}"
            )
    paused = _last(state).request
    command = {"resume": {response.interrupt_id: response.response for response in responses}}
    command |= {name: value for name, value in (("update", input.update), ("goto", input.goto)) if value is not None}
    config = {name: value for name, value in paused.config.items() if name != "configurable"}
    body = {
        "assistant_id": paused.assistant,
        "command": command,
        "config": input.config if input.config is not None else config,
        "context": paused.context,
        "metadata": input.metadata if input.metadata is not None else paused.metadata,
        "multitask_strategy": "reject",
    }
    try:
        return await _requested(call, identity, await _spec(call, body), with_run=False)
    except Refused:  # somebody else was first
        names = ", ".join(str(response.interrupt_id) for response in responses)
        raise Failed("no_such_interrupt", f"Unknown or already-consumed interrupt: {names[:200]}") from None


async def _requested(call: Call, identity: int, spec: RunSpec, *, with_run: bool = True) -> Json:
    run_id = new_id(call, call.thread_id)
    _, record = await runs.admit(call, call.thread_id, run_id, spec)
    return success(identity, {"run_id": run_id} if with_run else {}, place(record.seq))


async def _tree(call: Call, identity: int, params: Mapping[str, Any]) -> Json:
    """One node: the agent of a run, by default of the last."""
    state = (await OwnedThread.of_call(call)).state
    named = params.get("run_id")
    run = state.runs.get(str(named)) if named is not None else next(reversed(state.runs.values()), None)
    if run is None or not run.shown:
        raise Failed("no_such_run", "There is no such run on this thread.")
    status = "interrupted" if state.paused and run is _last(state) and not run.open else _STATUS[run.status]
    node = {"namespace": [], "status": status, "graph_name": run.request.assistant, "children": []}
    return success(identity, {"tree": node})


_STATUS: Mapping[str, str] = {
    "pending": "started",
    "running": "running",
    "success": "completed",
    "error": "failed",
    "timeout": "failed",
    "interrupted": "interrupted",
}


async def _spec(call: Call, body: Json) -> RunSpec:
    try:
        return await runs.permitted(call, convert(body, RunBody))
    except NotFound as error:  # the assistant; that a thread is not there is said by the status
        raise Failed("invalid_argument", str(error)) from None


def _questions(state: ThreadState) -> frozenset[str]:
    """Returns the interrupts that the thread waits on."""
    if state.paused is None or any(state.runs.open()):
        return frozenset()
    return frozenset(interrupt.id for interrupt in state.paused.interrupts)


def _last(state: ThreadState) -> Run:
    """The run that is paused, if any is."""
    return next(run for run in reversed(state.runs.values()) if run.status == "success")
