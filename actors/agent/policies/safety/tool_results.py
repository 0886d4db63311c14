"""Neutralises control tags in results of tools before they are recorded (DeerFlow's ToolResultSanitization)."""

from __future__ import annotations

from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.agent.messages.content import messages_of, rewritten, with_messages
from actors.agent.run.attempt import Attempt, ToolHandler, ToolResult
from core.control import neutralised


class ToolResults(AgentMiddleware[Any, Attempt, Any]):
    """Sanitises the results and errors of every tool. Idempotent."""

    name = "tool_results"

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        raw = await handler(request)
        messages = messages_of(raw)
        result = with_messages(raw, messages, [_harmless(message) for message in messages])
        if result is not raw:
            attempt, call_id = cast(Attempt, request.runtime.context), str(request.tool_call["id"])
            attempt.decide(self.name, "sanitised", "control tags in the result", call_id=call_id)
        return result


def _harmless(message: BaseMessage) -> BaseMessage:
    content = rewritten(message.content, neutralised)
    return message if content is message.content else message.model_copy(update={"content": content})
