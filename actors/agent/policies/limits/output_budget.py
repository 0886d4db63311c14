"""Limits results of tools: a longer one goes to a file, and the model gets its head, tail and a description."""

from __future__ import annotations

from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.agent.messages.content import messages_of, text_by_line, with_messages, with_text
from actors.agent.messages.excerpt import Ends, how_to_read, kind_of, shortened, size_of
from actors.agent.run.attempt import Attempt, ToolHandler, ToolResult, no_progress
from actors.excerpt import errors
from core.config.settings import ToolOutput
from core.control import sendable
from core.errors import Internal, Invalid, Unavailable
from core.ports.sandbox import result_path
from core.runs.journal import CallRef

PIECE = 100_000
"""Characters in one write: they fit a message of the bus even if all are escaped."""
AROUND = 1500
"""Upper bound of the characters between head and tail."""


class OutputBudget(AgentMiddleware[Any, Attempt, Any]):
    """Contract runtime §23.1 (ToolOutputBudget). A result that names the call's own file is in that file already."""

    name = "output_budget"

    def __init__(self, settings: ToolOutput) -> None:
        super().__init__()
        self._settings = settings
        self._fallback = Ends(settings.fallback_head_chars, settings.fallback_tail_chars).within(
            max(0, settings.fallback_max_chars - AROUND)
        )

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        result = await handler(request)
        least = self._least(request.tool_call["name"])
        messages = messages_of(result) if least else []
        if not any(_is_long(message, least) for message in messages):
            return result
        attempt = cast(Attempt, request.runtime.context)
        fit = [await self._fit(attempt, request, message, least) for message in messages]
        return with_messages(result, messages, fit)

    def _least(self, tool: str) -> int:
        """Returns the length from which a tool's result is shortened; 0 means never."""
        settings = self._settings
        if not settings.enabled or tool in settings.exempt_tools:
            return 0
        return settings.overrides.get(tool, settings.externalize_min_chars)

    async def _fit(self, attempt: Attempt, request: ToolCallRequest, message: BaseMessage, least: int) -> BaseMessage:
        call_id, text = str(request.tool_call["id"]), text_by_line(message.content)
        call = attempt.call_ref(call_id)
        path = result_path(request.tool_call["name"], call.key)
        if not _is_long(message, least):
            return message
        ends = Ends(self._settings.preview_head_chars, self._settings.preview_tail_chars).within(least)
        if path in text:
            if len(text) <= ends.head + ends.tail + AROUND:
                return message
            return _with(
                message, shortened(text, ends, f"The rest is left out. All of it is in {path}. {how_to_read(text)}")
            )
        try:
            await _write(attempt, call, path, text)
        except (Internal, Invalid, Unavailable) as error:
            return self._cut(attempt, call_id, message, path, str(error))
        attempt.decide(self.name, "externalised", path, call_id=call_id)
        return _with(message, shortened(text, ends, _about(text, ends, path)))

    def _cut(self, attempt: Attempt, call_id: str, message: BaseMessage, path: str, why: str) -> BaseMessage:
        text = text_by_line(message.content)
        if len(text) <= self._settings.fallback_max_chars:
            return message
        attempt.decide(self.name, "cut", why, call_id=call_id)
        return _with(message, shortened(text, self._fallback, f"{_left(text, self._fallback)}; {path} was not written"))


async def _write(attempt: Attempt, call: CallRef, path: str, text: str) -> None:
    """Writes a text of any length. Repeating it changes nothing."""
    whole = sendable(text)
    pieces = [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]
    common = {"op": "write", "user": attempt.user, "thread": attempt.thread, "run": call.run, "path": path}
    for number, piece in enumerate(pieces):
        request = {"call_id": f"{call.key}-result-{number}", "content": piece, "append": len(pieces) > 1}
        await attempt.call("sandbox", common | request, no_progress)


def _about(text: str, ends: Ends, path: str) -> str:
    middle = text[ends.head : len(text) - ends.tail]
    speak = errors(middle, text.count("\n", 0, ends.head) + 1)
    kind = f"The result is {kind_of(text)}: {size_of(text)}"
    return f"{_left(text, ends)}. {kind}. It is in {path}. {how_to_read(text)}{speak}"


def _left(text: str, ends: Ends) -> str:
    return f"{max(0, len(text) - ends.head - ends.tail)} characters are left out"


def _is_long(message: BaseMessage, least: int) -> bool:
    return isinstance(message, ToolMessage) and len(text_by_line(message.content)) >= least


def _with(message: BaseMessage, text: str) -> BaseMessage:
    return message.model_copy(update={"content": with_text(message.content, text)})
