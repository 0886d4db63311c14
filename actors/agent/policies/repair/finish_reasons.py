"""Drops the tool calls of truncated and refused answers, and tells the person the reason."""

from __future__ import annotations

from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage

from actors.agent.model.answer import with_note, without_calls
from actors.agent.model.assembly import blocked
from actors.agent.run.attempt import Attempt, ModelHandler, revised

LENGTH = frozenset(
    ("length", "max_tokens", "max_output_tokens", "model_length", "token_limit", "model_context_window_exceeded")
)
"""OpenAI, Anthropic and Gemini, the Responses API, Mistral, watsonx, Anthropic; in lower case."""
SAFETY = frozenset(
    (
        *("content_filter", "content_filtered", "refusal", "refused", "safety", "recitation", "blocklist"),
        *("prohibited_content", "spii", "image_safety", "guardrail_intervened", "sensitive"),
    )
)
"""OpenAI, Bedrock, Anthropic, Gemini, GLM; in lower case."""

CUT_OFF = "The answer was cut off at the model's length limit, and the tools it called for were not used."
CUT_SHORT = "The answer was cut off at the model's length limit."
REFUSED = "The model or its provider declined to answer this ({reason}). No tools were used."


class LengthFinish(AgentMiddleware[Any, Attempt, Any]):
    """Drops the calls of a truncated answer, which may be truncated too, and adds a note."""

    name = "length_finish"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        response = await handler(request)
        answer = response.result[-1]
        if not isinstance(answer, AIMessage) or (reason := finish_reason(answer)) not in LENGTH:
            return response
        request.runtime.context.decide(self.name, "cut_off", f"the answer ended at its length limit ({reason})")
        if has_calls(answer):
            last_word = without_calls(answer, CUT_OFF)
        elif answer.text.strip():
            last_word = answer.model_copy(update={"content": with_note(answer.content, CUT_SHORT)})
        else:
            return response
        return revised(response, last_word)


class SafetyFinish(AgentMiddleware[Any, Attempt, Any]):
    """Drops the calls of a refused answer, and adds a note (DeerFlow's middlewares of finish reasons)."""

    name = "safety_finish"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        response = await handler(request)
        answer = response.result[-1]
        if not isinstance(answer, AIMessage):
            return response
        reason, words = finish_reason(answer), refusal(answer)
        if reason not in SAFETY and not words and not blocked(answer.response_metadata):
            return response
        request.runtime.context.decide(self.name, "refused", f"the answer was refused ({reason})")
        return revised(response, without_calls(answer, words or REFUSED.format(reason=reason)))


def finish_reason(message: AIMessage) -> str:
    """Returns the provider's reason in lower case, "" if there is none."""
    about = message.response_metadata
    details = about.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    reason = reason or about.get("finish_reason") or about.get("stop_reason") or about.get("stopReason")
    reason = reason or blocked(about)
    return reason.rpartition(".")[2].lower() if isinstance(reason, str) else ""


def refusal(message: AIMessage) -> str:
    """Returns the words in which a model of OpenAI declined, which are not part of its content's text."""
    blocks = [block for block in message.content or () if isinstance(block, dict) and block.get("type") == "refusal"]
    words = [message.additional_kwargs.get("refusal"), *(block.get("refusal") for block in blocks)]
    return "\n".join(text for text in words if isinstance(text, str) and text)


def has_calls(message: AIMessage) -> bool:
    """Tells whether an answer calls tools, in any form."""
    extra = message.additional_kwargs
    return bool(
        message.tool_calls or message.invalid_tool_calls or extra.get("tool_calls") or extra.get("function_call")
    )
