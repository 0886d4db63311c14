"""Limits the calls of `task` and `tasks`: those of one answer, of which the first stay, and those of a run. A batch
counts as one.
"""

from __future__ import annotations

from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.lead.loop.turn import ModelHandler, ToolHandler, ToolResult, Turn, error_result, message_of, revised
from core.events import Aggregate
from core.thread.run import CallRef
from core.thread.subagents import TOOLS, identity
from core.thread.threads import KIND, SUBAGENT


class SubagentLimit(AgentMiddleware[Any, Turn, Any]):
    """Contract runtime §5.17, §23.1. Dropped calls are never made; calls beyond the run's limit are answered so."""

    name = "subagent_limit"

    async def awrap_model_call(self, request: ModelRequest[Turn], handler: ModelHandler) -> ModelResponse[Any]:
        response = await handler(request)
        answer, turn = response.result[-1], request.runtime.context
        most = turn.options.concurrent_subagents
        if not isinstance(answer, AIMessage):
            return response
        tasks = [call["id"] for call in answer.tool_calls if call["name"] in TOOLS]
        if len(tasks) <= most:
            return response
        text = f"{len(tasks) - most} calls of task were dropped: at most {most} fit into one response."
        note = f"{text} If their work is still needed, call them in the next response."
        turn.decide(self.name, "dropped", text, note=note)
        return revised(response, _without(answer, {*tasks[most:]}))

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        call, turn = request.tool_call, cast(Turn, request.runtime.context)
        if call["name"] not in TOOLS or turn.begun(str(call["id"])):
            return await handler(request)
        most = turn.options.total_subagents or turn.config.subagents.max_total_per_run
        if _number(turn, str(call["id"])) <= most:
            return await handler(request)
        text = f"this run has had its {most} subagents. Do the rest yourself, or answer with what you have."
        turn.decide(self.name, "denied", text, call_id=str(call["id"]))
        return error_result(call, text)


def _without(answer: AIMessage, dropped: set[str | None]) -> AIMessage:
    extra = dict(answer.additional_kwargs)
    if isinstance(raw := extra.get("tool_calls"), list):
        extra["tool_calls"] = [call for call in raw if call.get("id") not in dropped]
    left = [call for call in answer.tool_calls if call["id"] not in dropped]
    return answer.model_copy(update={"tool_calls": left, "additional_kwargs": extra})


def _number(turn: Turn, call_id: str) -> int:
    """Returns which subagent of the run a call is, from 1: the same whichever of an answer's calls are begun."""
    message = message_of(turn, call_id) or {}
    ids = [str(call["id"]) for call in message.get("tool_calls", ()) if call["name"] in TOOLS]
    mine = {_identity(turn, turn.call_ref(other)) for other in ids}
    earlier = [name for name in turn.state.runs[turn.run].subagents if name not in mine]
    return len(earlier) + ids.index(call_id) + 1


def _identity(turn: Turn, call: CallRef) -> str:
    caller = Aggregate(SUBAGENT if turn.subagent else KIND, turn.journal.thread_id)
    return identity(caller, turn.run, call.key)
