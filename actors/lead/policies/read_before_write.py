"""Whether the agent knows the file that it is about to change: only as it was read, or written, in this thread."""

from __future__ import annotations

from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.lead.loop.turn import ToolHandler, ToolResult, Turn, unseen
from actors.lead.messages.content import messages_of, with_messages
from core.errors import Internal, Invalid, Unavailable
from core.paths import join, parse

READS = ("read_file",)
WRITES = ("write_file", "str_replace")
FILE = "file"
"""In a result's artifact: `{path, sha256}` of the file as the model knows it from then on."""


class ReadBeforeWrite(AgentMiddleware[Any, Turn, Any]):
    """Contract runtime §23.1. The version that a reader knows is asked for before it reads, the one that a writer
    knows after it wrote: a change in between costs one reading more, and is never overwritten unseen.
    """

    name = "read_before_write"

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        call = request.tool_call
        path = _path(call["args"].get("path")) if call["name"] in (*READS, *WRITES) else None
        if path is None:
            return await handler(request)
        turn, call_id = cast(Turn, request.runtime.context), str(call["id"])
        if call["name"] in READS:
            version = await _version(turn, path)
            return _stamped(await handler(request), path, version)
        if problem := await _problem(turn, call_id, path):
            turn.decide(self.name, "blocked", problem, call_id=call_id)
            text = f"Error: {problem}, then change it."
            return ToolMessage(text, tool_call_id=call_id, name=call["name"], status="error")
        result = await handler(request)
        if not any(map(_is_success, messages_of(result))):
            return result
        return _stamped(result, path, await _version(turn, path))


async def _problem(turn: Turn, call_id: str, path: str) -> str | None:
    """Why a file must not be written yet. A call that was begun before a crash may already have written it."""
    if turn.begun(call_id):
        return None
    current = await _version(turn, path)
    known = known_version(turn, path) if current else None
    if current == known:
        return None
    if known is None:
        return f"{path} exists and was not read in this conversation; read it with read_file first"
    return f"{path} has changed since it was last read or written here; read it again with read_file"


def known_version(turn: Turn, path: str) -> str | None:
    """What the newest outcome about a file says of it."""
    for message in reversed(turn.state.messages):
        if message["type"] == "tool" and isinstance(artifact := message.get("artifact"), dict):
            file = artifact.get(FILE)
            if isinstance(file, dict) and file.get("path") == path and message.get("name") in (*READS, *WRITES):
                return cast(str, file["sha256"])
    return None


async def _version(turn: Turn, path: str) -> str | None:
    """Of the file as it is now; None if there is none, or the sandbox cannot tell: then the tool says what is wrong."""
    asked = {"op": "version", "user": turn.user, "thread": turn.thread, "path": path}
    try:
        return cast(str | None, await turn.call("sandbox", asked, unseen))
    except (Internal, Invalid, Unavailable):
        return None


def _path(given: Any) -> str | None:
    try:
        return join(parse(given)) if isinstance(given, str) else None
    except Invalid:
        return None


def _is_success(message: BaseMessage) -> bool:
    return isinstance(message, ToolMessage) and message.status != "error"


def _stamped(result: ToolResult, path: str, version: str | None) -> ToolResult:
    if version is None:
        return result
    messages, file = messages_of(result), {"path": path, "sha256": version}
    stamped = [_with_file(one, file) if _is_success(one) else one for one in messages]
    return with_messages(result, messages, stamped)


def _with_file(message: BaseMessage, file: dict[str, str]) -> BaseMessage:
    artifact = getattr(message, "artifact", None)
    known = artifact if isinstance(artifact, dict) else {}
    return message.model_copy(update={"artifact": {**known, FILE: file}})
