"""Refuses changes to a file unless its current version was read, or written, in this thread."""

from __future__ import annotations

from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.agent.messages.content import messages_of, with_messages
from actors.agent.run.attempt import Attempt, ToolHandler, ToolResult, error_result, no_progress
from core.errors import Internal, Invalid, Unavailable
from core.files.paths import join, parse

READS = ("read_file",)
WRITES = ("write_file", "str_replace")
FILE = "file"
"""Key in a result's artifact: `{path, sha256}` of the version that the model knows from then on."""
EDITS, FILES = "edit_files", "edited"
"""The tool that changes several files, and the key of the list of their versions."""


class ReadBeforeWrite(AgentMiddleware[Any, Attempt, Any]):
    """Contract runtime §23.1. Takes the version before a read and after a write.

    So a change in between costs one more read, and is never overwritten.
    """

    name = "read_before_write"

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        call = request.tool_call
        if call["name"] == EDITS:
            return await self._edited(request, handler)
        attempt, call_id = cast(Attempt, request.runtime.context), str(call["id"])
        path = _path(call["args"].get("path"), attempt.start) if call["name"] in (*READS, *WRITES) else None
        if path is None:
            return await handler(request)
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

    async def _edited(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        """Does the same for each file of a call that changes several."""
        call, attempt = request.tool_call, cast(Attempt, request.runtime.context)
        edits, call_id = call["args"].get("edits"), str(call["id"])
        named = (
            [_path(edit.get("path"), attempt.start) for edit in edits if isinstance(edit, dict)]
            if isinstance(edits, list)
            else []
        )
        paths = [path for path in dict.fromkeys(named) if path is not None]
        for path in paths:
            if problem := await _problem(attempt, call_id, path):
                attempt.decide(self.name, "blocked", problem, call_id=call_id)
                return error_result(call, f"{problem}, then change it.")
        result = await handler(request)
        if not any(map(_is_success, messages_of(result))):
            return result
        versions = [(path, await _version(attempt, path)) for path in paths]
        files = [{"path": path, "sha256": version} for path, version in versions if version is not None]
        return _with(result, {FILES: files})


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
            named = message.get("name") in (*READS, *WRITES, EDITS)
            for file in (artifact.get(FILE), *(artifact.get(FILES) or ())) if named else ():
                if isinstance(file, dict) and file.get("path") == path:
                    return cast(str, file["sha256"])
    return None


async def _version(attempt: Attempt, path: str) -> str | None:
    """Returns the current version; None if there is no file, or on an error, which the tool itself will report."""
    request = {"op": "version", "user": attempt.user, "thread": attempt.thread, "path": path}
    try:
        return cast(str | None, await attempt.call("sandbox", request, no_progress))
    except (Internal, Invalid, Unavailable):
        return None


def _path(argument: Any, start: str) -> str | None:
    try:
        return join(parse(argument, start)) if isinstance(argument, str) else None
    except Invalid:
        return None


def _is_success(message: BaseMessage) -> bool:
    return isinstance(message, ToolMessage) and message.status != "error"


def _stamped(result: ToolResult, path: str, version: str | None) -> ToolResult:
    return result if version is None else _with(result, {FILE: {"path": path, "sha256": version}})


def _with(result: ToolResult, stamp: dict[str, Any]) -> ToolResult:
    messages = messages_of(result)
    stamped = [_with_artifact(message, stamp) if _is_success(message) else message for message in messages]
    return with_messages(result, messages, stamped)


def _with_artifact(message: BaseMessage, stamp: dict[str, Any]) -> BaseMessage:
    artifact = getattr(message, "artifact", None)
    fields = artifact if isinstance(artifact, dict) else {}
    return message.model_copy(update={"artifact": {**fields, **stamp}})
