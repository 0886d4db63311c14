"""Inserts the date and other reminders for the model, each right before its message."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, HumanMessage

from actors.lead.loop.turn import ModelHandler, Turn
from core.thread.messages import REMINDER

FLAGS = {"hide_from_ui": True, "dynamic_context_reminder": True}
KEPT = 1024


class DynamicContext(AgentMiddleware[Any, Turn, Any]):
    """Expands reminders, which are fields of the thread's messages, into messages for the model (decision 11)."""

    name = "dynamic_context"

    async def awrap_model_call(self, request: ModelRequest[Turn], handler: ModelHandler) -> ModelResponse[Any]:
        messages = expanded(request.messages)
        return await handler(request if messages is request.messages else request.override(messages=messages))


def expanded(messages: list[AnyMessage]) -> list[AnyMessage]:
    """Returns the conversation with its reminders; the same list if it has none."""
    places = [n for n, message in enumerate(messages) if REMINDER in message.additional_kwargs]
    result = messages
    for place in reversed(places):
        message = messages[place]
        text = message.additional_kwargs[REMINDER]
        if isinstance(message, HumanMessage) and isinstance(text, str):
            result = [*result[:place], _reminder(f"{message.id}__reminder", text), *result[place:]]
    return result


@lru_cache(KEPT)
def _reminder(identity: str, text: str) -> HumanMessage:
    """Returns the same object for the same reminder, so that its conversion for the provider is cached."""
    return HumanMessage(text, id=identity, additional_kwargs=dict(FLAGS))
