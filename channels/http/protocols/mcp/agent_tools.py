"""The agent's own tools over `/mcp` (`mcp_server.tools`): each call is a run that makes this call only.

So the approvals, guardrails, limits and facts of runs apply. No model is asked: the run's input is the answer that
calls the tool, and the run pauses after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mcp.types as protocol
import msgspec
import structlog
from mcp.server.lowlevel import Server

from channels.http.accounts.access import demand
from channels.http.endpoints.call import Call
from channels.http.protocols.mcp import tools as mcp_tools
from channels.http.runs.idempotency import new_id
from channels.http.server.live import ToolListing
from core.config.redaction import redactor
from core.errors import Invalid, SikaError
from core.events import Json, RunRequested
from core.ids import assistant_id, safe_id, uuid7
from core.thread.messages import text_of
from core.thread.state import ThreadState
from core.user.assistants import DEFAULT

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


def install(server: Server[Any, Any], wrong: Callable[[protocol.CallToolRequestParams], str | None]) -> None:
    """Adds the tools of each request's configuration to those of a server. `wrong` says what is wrong with a call of
    one of these.
    """
    handlers = server.request_handlers
    own_list, own_call = handlers[protocol.ListToolsRequest], handlers[protocol.CallToolRequest]

    async def list_tools(request: protocol.ListToolsRequest) -> protocol.ServerResult:
        result = await own_list(request)
        assert isinstance(result.root, protocol.ListToolsResult)
        more = [_described(tool) for tool in offered(mcp_tools.current_call()).values()]
        return protocol.ServerResult(result.root.model_copy(update={"tools": [*result.root.tools, *more]}))

    async def call_tool(request: protocol.CallToolRequest) -> protocol.ServerResult:
        call = mcp_tools.current_call()
        tool = offered(call).get(request.params.name)
        if tool is None:
            problem = wrong(request.params)
            return await own_call(request) if problem is None else protocol.ServerResult(_text(problem, failed=True))
        try:
            demand(call.principal, "runs:create")
            return protocol.ServerResult(await _called(call, tool, dict(request.params.arguments or {})))
        except SikaError as error:
            return protocol.ServerResult(_text(redactor.text(str(error)), failed=True))

    handlers[protocol.ListToolsRequest] = list_tools
    handlers[protocol.CallToolRequest] = call_tool


def _described(tool: ToolListing) -> protocol.Tool:
    properties = {**tool.schema.get("properties", {}), THREAD: _THREAD_SCHEMA}
    hints = protocol.ToolAnnotations(readOnlyHint=tool.effect == "pure", idempotentHint=tool.effect != "once")
    schema = {"type": "object", **tool.schema, "properties": properties}
    return protocol.Tool(name=tool.name, description=tool.description, inputSchema=schema, annotations=hints)


async def _called(call: Call, tool: ToolListing, arguments: dict[str, Any]) -> protocol.CallToolResult:
    """Makes a call in a run, and waits for its result or its question."""
    thread_id = await _thread(call, arguments.pop(THREAD, None))
    call_id = f"call-{new_id(call, thread_id, 'call')}"
    body = msgspec.json.encode([tool.name, arguments], order="deterministic")
    request = RunRequested(
        input={"messages": _messages(tool.name, arguments, call_id)},
        context={"user_id": call.user},
        interrupt_after=["tools"],
    )
    turn = await mcp_tools.run_turn(call, thread_id, request, mcp_tools.MOST_WAIT_SECONDS, body)
    about = {"thread_id": thread_id, "run_id": turn.run_id}
    message = _result(await call.services.commands.state(call.user, thread_id), call_id)
    if message is not None:
        return _text(text_of(message.get("content", "")), failed=message.get("status") == "error", about=about)
    questions = "".join(f"\n{question.value}" for question in turn.questions)
    return _text(f"{turn.advice or f'The run {turn.status}.'}{questions}", failed=not turn.questions, about=about)


async def _thread(call: Call, thread_id: Any) -> str:
    if thread_id is not None:
        if not isinstance(thread_id, str):
            raise Invalid(f"{THREAD}: a text is expected")
        await call.services.commands.state(call.user, safe_id(thread_id, THREAD))
        return thread_id
    made = new_id(call, "", "thread")
    metadata = {"graph_id": DEFAULT, "assistant_id": assistant_id(DEFAULT), "client": "mcp"}
    await call.services.intake.create_thread(made, user=call.user, metadata=metadata)
    return made


def _messages(name: str, arguments: Json, call_id: str) -> Sequence[Json]:
    calls = [{"id": call_id, "name": name, "args": arguments, "type": "tool_call"}]
    return [
        {"type": "human", "id": uuid7(), "content": f"Call the tool {name}."},
        {"type": "ai", "id": uuid7(), "content": "", "tool_calls": calls},
    ]


def _result(state: ThreadState, call_id: str) -> Json | None:
    return next((message for message in state.messages if message.get("tool_call_id") == call_id), None)


def _text(text: str, *, failed: bool = False, about: Mapping[str, str] | None = None) -> protocol.CallToolResult:
    content: Any = [protocol.TextContent(type="text", text=text)]
    if about:
        content.append(protocol.TextContent(type="text", text=f"[{THREAD}: {about[THREAD]}]"))
    return protocol.CallToolResult.model_validate({"content": content, "isError": failed, "_meta": about})
