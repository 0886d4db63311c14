"""Refuses changes to a file unless its current version was read, or written, in this thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        call, attempt = request.tool_call, cast(Attempt, request.runtime.context)
        call_id, paths = str(call["id"]), _paths(call["name"], call["args"], attempt.start)
        if not paths:
            return await handler(request)
        if call["name"] in READS:
            files = await _versions(attempt, paths)
            return _stamped(await handler(request), files)
        for path in paths:
            if problem := await _problem(attempt, call_id, path):
                attempt.decide(self.name, "blocked", problem, call_id=call_id)
                return error_result(call, f"{problem}, then change it.")
        result = await handler(request)
        if not any(map(_is_success, messages_of(result))):
            return result
        return _stamped(result, await _versions(attempt, paths), several=call["name"] == EDITS)


def _paths(tool: str, arguments: Mapping[str, Any], start: str) -> list[str]:
    """Returns the files that a call reads or changes."""
    if tool in (*READS, *WRITES):
        named = [arguments.get("path")]
    elif tool == EDITS and isinstance(edits := arguments.get("edits"), list):
        named = [edit.get("path") for edit in edits if isinstance(edit, dict)]
    else:
        return []
    paths = [_path(path, start) for path in named]
    return [path for path in dict.fromkeys(paths) if path is not None]


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


async def _versions(attempt: Attempt, paths: Sequence[str]) -> list[dict[str, str]]:
    versions = [(path, await _version(attempt, path)) for path in paths]
    return [{"path": path, "sha256": version} for path, version in versions if version is not None]


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


def _stamped(result: ToolResult, files: Sequence[dict[str, str]], *, several: bool = False) -> ToolResult:
    """Returns the result with the versions that the model knows from now on."""
    if not files:
        return result
    stamp: dict[str, Any] = {FILES: files} if several else {FILE: files[0]}
    messages = messages_of(result)
    stamped = [_with_artifact(message, stamp) if _is_success(message) else message for message in messages]
    return with_messages(result, messages, stamped)


def _with_artifact(message: BaseMessage, stamp: dict[str, Any]) -> BaseMessage:
    artifact = getattr(message, "artifact", None)
    fields = artifact if isinstance(artifact, dict) else {}
    return message.model_copy(update={"artifact": {**fields, **stamp}})
