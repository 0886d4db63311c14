"""The agent's own tools over `/mcp` (`mcp_server.tools`): each call is a run that makes this call only.

So the approvals, guardrails, limits and facts of runs apply. No model is asked: the run's input is the answer that
calls the tool, and the run pauses after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mcp.types as protocol
import msgspec
import structlog

from channels.http.accounts.access import demand
from channels.http.endpoints.call import Call
from channels.http.protocols.mcp.registry import failure
from channels.http.protocols.mcp.turns import METADATA, MOST_WAIT_SECONDS, run_turn
from channels.http.runs.idempotency import new_id
from channels.http.server.live import ToolListing
from core.config.redaction import redactor
from core.errors import Invalid, SikaError
from core.events import Json, RunRequested
from core.ids import safe_id, uuid7
from core.thread.messages import text_of
from core.thread.state import ThreadState

log = structlog.get_logger("sika.mcp")

THREAD = "thread_id"
"""Argument that every tool gets besides its own."""
_THREAD_SCHEMA = {
    "type": "string",
    "description": "The conversation whose files and sandbox it works with; a new one by default. Results name it.",
}


def offered(call: Call) -> Mapping[str, ToolListing]:
    """Returns the tools of the configuration's list, by name. A name without a tool is logged."""
    chosen = call.config.mcp_server.tools
    if not chosen:
        return {}
    there = {tool.name: tool for tool in call.services.tools()}
    for name in chosen:
        if name not in there or THREAD in there[name].schema.get("properties", {}):
            log.warning("mcp_server.tools: no such tool can be offered", tool=name)
    return {n: there[n] for n in chosen if n in there and THREAD not in there[n].schema.get("properties", {})}


def described(tool: ToolListing) -> protocol.Tool:
    properties = {**tool.schema.get("properties", {}), THREAD: _THREAD_SCHEMA}
    hints = protocol.ToolAnnotations(readOnlyHint=tool.effect == "pure", idempotentHint=tool.effect != "once")
    schema = {"type": "object", **tool.schema, "properties": properties}
    return protocol.Tool(name=tool.name, description=tool.description, inputSchema=schema, annotations=hints)


async def call_tool(call: Call, tool: ToolListing, arguments: dict[str, Any]) -> protocol.CallToolResult:
    """Makes a call in a run, and waits for its result or its question. Errors are without secrets."""
    try:
        demand(call.principal, "runs:create")
        return await _called(call, tool, arguments)
    except SikaError as error:
        return failure(redactor.text(str(error)))


async def _called(call: Call, tool: ToolListing, arguments: dict[str, Any]) -> protocol.CallToolResult:
    thread_id = await _thread(call, arguments.pop(THREAD, None))
    call_id = f"call-{new_id(call, thread_id, 'call')}"
    body = msgspec.json.encode([tool.name, arguments], order="deterministic")
    request = RunRequested(
        input={"messages": _messages(tool.name, arguments, call_id)},
        context={"user_id": call.user},
        interrupt_after=["tools"],
    )
    turn = await run_turn(call, thread_id, request, MOST_WAIT_SECONDS, body)
    about = {"thread_id": thread_id, "run_id": turn.run_id}
    message = _result(await call.services.commands.state(call.user, thread_id), call_id)
    if message is not None:
        return _about(text_of(message.get("content", "")), about, failed=message.get("status") == "error")
    questions = "".join(f"\n{question.value}" for question in turn.questions)
    return _about(f"{turn.advice or f'The run {turn.status}.'}{questions}", about, failed=not turn.questions)


async def _thread(call: Call, thread_id: Any) -> str:
    if thread_id is not None:
        if not isinstance(thread_id, str):
            raise Invalid(f"{THREAD}: a text is expected")
        await call.services.commands.state(call.user, safe_id(thread_id, THREAD))
        return thread_id
    made = new_id(call, "", "thread")
    await call.services.commands.ensure(call.user, made, METADATA)
    return made


def _messages(name: str, arguments: Json, call_id: str) -> Sequence[Json]:
    calls = [{"id": call_id, "name": name, "args": arguments, "type": "tool_call"}]
    return [
        {"type": "human", "id": uuid7(), "content": f"Call the tool {name}."},
        {"type": "ai", "id": uuid7(), "content": "", "tool_calls": calls},
    ]


def _result(state: ThreadState, call_id: str) -> Json | None:
    return next((message for message in state.messages if message.get("tool_call_id") == call_id), None)


def _about(text: str, about: Mapping[str, str], *, failed: bool) -> protocol.CallToolResult:
    """Returns a result that names its thread and run."""
    texts = (text, f"[{THREAD}: {about[THREAD]}]")
    content = [protocol.TextContent(type="text", text=each) for each in texts]
    return protocol.CallToolResult.model_validate({"content": content, "isError": failed, "_meta": about})
