"""Reminds the agent, once, of files that it wrote for the person and shows to nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage

from actors.agent.messages.convert import dump
from actors.agent.policies.interaction.todos import is_final
from actors.agent.policies.safety.read_before_write import EDITS, WRITES
from actors.agent.run.attempt import Attempt, ModelHandler
from core.events import Json, Message
from core.files.paths import OUTPUTS
from core.thread.messages import text_of
from core.thread.state import ThreadState
from core.thread.subagents import TOOL
from core.thread.usage import steps_of

PRESENT = "present_files"
FILES = (*WRITES, EDITS)
NOTE = "delivery_reminder"
"""Name of the hidden message."""
MOST_NAMED = 20
_NAME = r"((?:[\w-][\w.-]*/)*[\w-][\w.-]*\.\w+)"
_PATH = re.compile(rf"(?:/mnt/user-data|\.\.)/outputs/{_NAME}")
"""A file in the outputs; relative paths begin in the workspace."""
_REPORTED = re.compile(rf"(?<![\w-])outputs/{_NAME}")
_WRITES = re.compile(
    r">|\b(?:tee|cp|mv|zip|tar|convert|pandoc|touch|python3?|node|(?:ba)?sh|make|\w+\.sh)\b|\s-o\b|--out"
)
"""What a command has that may write files; one that only lists or reads them has none of it."""


class Delivery(AgentMiddleware[Any, Attempt, Any]):
    """Asks for `present_files`, or for an answer without it, if a run that wrote files to the outputs wants to end
    without showing any. What was written is read from the calls in the log; what subagents wrote, from their reports.
    """

    name = "delivery"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        response = await handler(request)
        answer, attempt = response.result[-1], request.runtime.context
        is_end = isinstance(answer, AIMessage) and is_final(dump(answer))
        if is_end and (paths := undelivered(attempt.state, attempt.run)):
            listed = "\n".join(f"- {path}" for path in paths[:MOST_NAMED])
            note = (
                f"You wrote these files in this run and showed none to the person:\n{listed}\n"
                f"Show those that are finished with `{PRESENT}`, and answer again. If none is meant for the person, "
                "answer again without it."
            )
            reason = "1 file was not shown" if len(paths) == 1 else f"{len(paths)} files were not shown"
            attempt.decide(self.name, "continued", reason, note=note, name=NOTE, again=True)
        return response


def undelivered(state: ThreadState, run: str) -> list[str]:
    """Returns the files that a run wrote to the outputs since its last answer, or message of a person, if it showed
    none since.
    """
    known = state.values.get("artifacts")
    shown = set(known) if isinstance(known, list) else set[str]()
    results: dict[str, Message] = {}
    paths: list[str] = []
    for commit in takewhile(lambda commit: commit.source == "loop", reversed(list(steps_of(state, state.runs[run])))):
        for message in reversed(commit.patch.get("messages") or ()):
            if message["type"] == "tool":
                results[str(message.get("tool_call_id"))] = message
            elif message["type"] == "ai" and is_final(message):
                return _new(paths, shown)
            for call in message.get("tool_calls") or ():
                result = results.get(str(call.get("id")))
                if result is None or result.get("status") == "error":
                    continue
                if call["name"] == PRESENT:
                    return []
                paths += _written(call, result)
    return _new(paths, shown)


def _new(paths: list[str], shown: set[str]) -> list[str]:
    return [path for path in reversed(list(dict.fromkeys(paths))) if path not in shown]


def _written(call: Json, result: Message) -> Iterator[str]:
    """Yields the files in the outputs that a call wrote, as far as it or its result names them."""
    name, args, text = call["name"], call["args"], text_of(result.get("content", ""))
    if name in FILES:
        edits = args.get("edits")
        for edit in (args, *(edits if isinstance(edits, list) else ())):
            path = edit.get("path") if isinstance(edit, dict) else None
            if isinstance(path, str) and path.startswith(f"{OUTPUTS}/"):
                yield path
    elif name == TOOL or (name == "bash" and _WRITES.search(command := str(args.get("command", "")))):
        found = _REPORTED.finditer(text) if name == TOOL else _PATH.finditer(f"{command}\n{text}")
        for match in found:
            yield f"{OUTPUTS}/{match[1]}"
