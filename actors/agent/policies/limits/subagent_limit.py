"""Limits the calls of `task` and `tasks`: those of one answer, of which the first stay, and those of a run. A batch
counts as one.
"""

from __future__ import annotations

from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.agent.run.attempt import Attempt, ModelHandler, ToolHandler, ToolResult, error_result, message_of, revised
from core.events import Aggregate
from core.log.kinds import KIND, SUBAGENT
from core.phrases import counted
from core.runs.journal import CallRef
from core.thread.subagents import TOOLS, identity


class SubagentLimit(AgentMiddleware[Any, Attempt, Any]):
    """Contract runtime §5.17, §23.1. Dropped calls are never made; calls beyond the run's limit are answered so."""

    name = "subagent_limit"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        response = await handler(request)
        answer, attempt = response.result[-1], request.runtime.context
        most = attempt.options.concurrent_subagents
        if not isinstance(answer, AIMessage):
            return response
        tasks = [call["id"] for call in answer.tool_calls if call["name"] in TOOLS]
        if len(tasks) <= most:
            return response
        text = f"{counted(len(tasks) - most, 'call')} of task dropped: at most {most} fit into one response."
        note = f"{text} If their work is still needed, call them in the next response."
        attempt.decide(self.name, "dropped", text, note=note)
        return revised(response, _without(answer, {*tasks[most:]}))

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        call, attempt = request.tool_call, cast(Attempt, request.runtime.context)
        if call["name"] not in TOOLS or attempt.begun(str(call["id"])):
            return await handler(request)
        most = attempt.options.total_subagents or attempt.config.subagents.max_total_per_run
        if _number(attempt, str(call["id"])) <= most:
            return await handler(request)
        text = f"this run has had its {most} subagents. Do the rest yourself, or answer with what you have."
        attempt.decide(self.name, "denied", text, call_id=str(call["id"]))
        return error_result(call, text)


def _without(answer: AIMessage, dropped: set[str | None]) -> AIMessage:
    extra = dict(answer.additional_kwargs)
    if isinstance(raw := extra.get("tool_calls"), list):
        extra["tool_calls"] = [call for call in raw if call.get("id") not in dropped]
    left = [call for call in answer.tool_calls if call["id"] not in dropped]
    return answer.model_copy(update={"tool_calls": left, "additional_kwargs": extra})


def _number(attempt: Attempt, call_id: str) -> int:
    """Returns which subagent of the run a call is, from 1: the same whichever of an answer's calls are begun."""
    message = message_of(attempt, call_id) or {}
    ids = [str(call["id"]) for call in message.get("tool_calls", ()) if call["name"] in TOOLS]
    mine = {_identity(attempt, attempt.call_ref(other)) for other in ids}
    earlier = [name for name in attempt.state.runs[attempt.run].subagents if name not in mine]
    return len(earlier) + ids.index(call_id) + 1


def _identity(attempt: Attempt, call: CallRef) -> str:
    caller = Aggregate(SUBAGENT if attempt.subagent else KIND, attempt.journal.thread_id)
    return identity(caller, attempt.run, call.key)
