"""The agent asks the person something: the question takes the place of the call, and the run ends with it."""

from __future__ import annotations

import hashlib
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.lead.loop.turn import ToolHandler, ToolResult, Turn
from actors.lead.policies.question_form import SOURCE, card, options_of, question_text, type_of
from core.thread.run import CallRef
from core.thread.state import CLARIFICATION, ThreadState


class Clarification(AgentMiddleware[Any, Turn, Any]):
    """Contract runtime §5.19. The recorder knows a question by its id, and ends the run before the next model call."""

    name = "clarification"

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        call = request.tool_call
        if call["name"] != SOURCE:
            return await handler(request)
        turn, call_id = cast(Turn, request.runtime.context), str(call["id"] or "")
        question = _text(call["args"].get("question"))
        if not question:
            return ToolMessage("Error: there is no question.", tool_call_id=call_id, name=SOURCE, status="error")
        asked = _asked(question, call["args"], turn.call_ref(call_id), turn.state)
        turn.decide(self.name, "asked", question, call_id=call_id)
        return asked


def _asked(question: str, args: dict[str, Any], call: CallRef, state: ThreadState) -> ToolMessage:
    kind, context, options = (
        type_of(args.get("clarification_type")),
        _text(args.get("context")),
        options_of(args.get("options")),
    )
    text = question_text(kind, question, context, options)
    identity = message_id(call.id, text)
    if identity in state.places:  # some models repeat the ids of their calls
        identity = f"{identity}:{call.answer}"
    shown = card(identity, kind, question, context=context, options=options, fields=args.get("fields"), call_id=call.id)
    return ToolMessage(text, id=identity, tool_call_id=call.id, name=SOURCE, artifact={"human_input": shown})


def message_id(call_id: str, text: str) -> str:
    """The id of a question: the same whenever the same call is made again."""
    return CLARIFICATION + (call_id or hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16])


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
