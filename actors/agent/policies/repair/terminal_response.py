"""Repeats the model call after an empty answer, once; after a second one the run fails with an explanation."""

from __future__ import annotations

from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage

from actors.agent.messages.content import without_thoughts
from actors.agent.messages.convert import load
from actors.agent.policies.repair.finish_reasons import has_calls
from actors.agent.run.attempt import Attempt, ModelHandler, VisibleFailure
from core.thread.usage import answer_in, steps_of

AGAIN = (
    "Your last answer was empty: the person saw nothing. Answer now, in words, with what you have found or done; or go "
    "on with the tools if there is something left to do."
)
EXPLANATION = "The model ended without an answer, also when it was asked again. Please ask again, or in other words."
_SILENT = ("thinking", "redacted_thinking", "reasoning", "reasoning_content", "tool_use", "function_call")
"""Types of content blocks that are not part of the visible answer."""


class TerminalResponse(AgentMiddleware[Any, Attempt, Any]):
    """Allows one retry for each run (DeerFlow's TerminalResponse): a recorded empty answer means that it is used."""

    name = "terminal_response"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        response = await handler(request)
        answer = response.result[-1]
        if not isinstance(answer, AIMessage) or not is_empty(answer):
            return response
        attempt = request.runtime.context
        if not _retried(attempt):
            attempt.decide(self.name, "continued", "the answer was empty", note=AGAIN, again=True)
            return response
        raise VisibleFailure(
            "the model's answer was empty, twice", error="EmptyAnswer", apology=EXPLANATION, reason="empty"
        )


def is_empty(message: AIMessage) -> bool:
    """Tells whether an answer has neither visible content nor calls."""
    return not speaks(message.content) and not has_calls(message)


def speaks(content: Any) -> bool:
    """Tells whether a message's content has anything but thoughts."""
    if isinstance(content, str):
        if "<think>" in content[:100]:
            content = without_thoughts(content)
        return bool(content) and not content.isspace()
    return any(map(_block_speaks, content or ()))


def _block_speaks(block: Any) -> bool:
    if not isinstance(block, dict):
        return speaks(block)
    if block.get("type") == "text":
        return speaks(block.get("text"))
    return block.get("type") not in _SILENT


def _retried(attempt: Attempt) -> bool:
    recorded = (answer_in(commit) for commit in steps_of(attempt.state, attempt.state.runs[attempt.run]))
    answers = (load(message) for message in recorded if message is not None)
    return any(isinstance(answer, AIMessage) and is_empty(answer) for answer in answers)
