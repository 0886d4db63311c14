"""Refuses changes to a file unless its current version was read, or written, in this thread."""

from __future__ import annotations

from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.lead.loop.attempt import Attempt, ToolHandler, ToolResult, error_result, no_progress
from actors.lead.messages.content import messages_of, with_messages
from core.errors import Internal, Invalid, Unavailable
from core.paths import join, parse

READS = ("read_file",)
WRITES = ("write_file", "str_replace")
FILE = "file"
"""Key in a result's artifact: `{path, sha256}` of the version that the model knows from then on."""


class ReadBeforeWrite(AgentMiddleware[Any, Attempt, Any]):
    """Contract runtime §23.1. Takes the version before a read and after a write.

    So a change in between costs one more read, and is never overwritten.
    """

    name = "read_before_write"

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        call = request.tool_call
        path = _path(call["args"].get("path")) if call["name"] in (*READS, *WRITES) else None
        if path is None:
            return await handler(request)
        attempt, call_id = cast(Attempt, request.runtime.context), str(call["id"])
        if call["name"] in READS:
            version = await _version(attempt, path)
            return _stamped(await handler(request), path, version)
        if problem := await _problem(attempt, call_id, path):
            attempt.decide(self.name, "blocked", problem, call_id=call_id)
            return error_result(call, f"{problem}, then change it.")
        result = await handler(request)
        if not any(map(_is_success, messages_of(result))):
            return result
        return _stamped(result, path, await _version(attempt, path))


async def _problem(attempt: Attempt, call_id: str, path: str) -> str | None:
    """Returns the reason to refuse a write, or None. A call begun before a crash may have written already."""
    if attempt.begun(call_id):
        return None
    current = await _version(attempt, path)
    expected = known_version(attempt, path) if current else None
    if current == expected:
        return None
    if expected is None:
        return f"{path} exists and was not read in this conversation; read it with read_file first"
    return f"{path} has changed since it was last read or written here; read it again with read_file"


def known_version(attempt: Attempt, path: str) -> str | None:
    """Returns the version of a file in the newest result about it."""
    for message in reversed(attempt.state.messages):
        if message["type"] == "tool" and isinstance(artifact := message.get("artifact"), dict):
            file = artifact.get(FILE)
            if isinstance(file, dict) and file.get("path") == path and message.get("name") in (*READS, *WRITES):
                return cast(str, file["sha256"])
    return None


async def _version(attempt: Attempt, path: str) -> str | None:
    """Returns the current version; None if there is no file, or on an error, which the tool itself will report."""
    request = {"op": "version", "user": attempt.user, "thread": attempt.thread, "path": path}
    try:
        return cast(str | None, await attempt.call("sandbox", request, no_progress))
    except (Internal, Invalid, Unavailable):
        return None


def _path(argument: Any) -> str | None:
    try:
        return join(parse(argument)) if isinstance(argument, str) else None
    except Invalid:
        return None


def _is_success(message: BaseMessage) -> bool:
    return isinstance(message, ToolMessage) and message.status != "error"


def _stamped(result: ToolResult, path: str, version: str | None) -> ToolResult:
    if version is None:
        return result
    messages, file = messages_of(result), {"path": path, "sha256": version}
    stamped = [_with_file(message, file) if _is_success(message) else message for message in messages]
    return with_messages(result, messages, stamped)


def _with_file(message: BaseMessage, file: dict[str, str]) -> BaseMessage:
    artifact = getattr(message, "artifact", None)
    fields = artifact if isinstance(artifact, dict) else {}
    return message.model_copy(update={"artifact": {**fields, FILE: file}})
