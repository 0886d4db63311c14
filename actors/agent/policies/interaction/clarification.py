"""Turns a call of `ask_clarification` into a question to the person, which ends the run."""

from __future__ import annotations

import hashlib
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.agent.policies.interaction.question_form import SOURCE, card, options_of, question_text, type_of
from actors.agent.run.attempt import Attempt, ToolHandler, ToolResult, error_result
from core.runs.journal import CallRef
from core.thread.state import ThreadState
from core.thread.values import CLARIFICATION

UNATTENDED = "nobody is here to answer. Decide with your best judgement, and say in your answer what you assumed."
SUBAGENT = "a subagent cannot ask the person. Go on with what you have, and say in your answer what is open."


class Clarification(AgentMiddleware[Any, Attempt, Any]):
    """Contract runtime §5.19. The recorder recognises a question by its id, and ends the run before the next call."""

    name = "clarification"

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        call = request.tool_call
        if call["name"] != SOURCE:
            return await handler(request)
        attempt, call_id = cast(Attempt, request.runtime.context), str(call["id"] or "")
        if attempt.subagent is not None:
            return error_result(call, SUBAGENT)
        if attempt.options.unattended:
            return error_result(call, UNATTENDED)
        question = _text(call["args"].get("question"))
        if not question:
            return error_result(call, "there is no question.")
        attempt.decide(self.name, "asked", question, call_id=call_id)
        return _question(question, call["args"], attempt.call_ref(call_id), attempt.state)


def _question(question: str, args: dict[str, Any], call: CallRef, state: ThreadState) -> ToolMessage:
    kind, context = type_of(args.get("clarification_type")), _text(args.get("context"))
    options = options_of(args.get("options"))
    text = question_text(kind, question, context, options)
    identity = message_id(call.id, text)
    if identity in state.places:  # some models repeat the ids of their calls
        identity = f"{identity}:{call.answer}"
    form = card(identity, kind, question, context=context, options=options, fields=args.get("fields"), call_id=call.id)
    return ToolMessage(text, id=identity, tool_call_id=call.id, name=SOURCE, artifact={"human_input": form})


def message_id(call_id: str, text: str) -> str:
    """Returns the id of a question: the same if the call is repeated."""
    return CLARIFICATION + (call_id or hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16])


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
