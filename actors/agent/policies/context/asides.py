"""Adds the notes of policies to the model's messages, and removes the server's apologies from them."""

from __future__ import annotations

from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage

from actors.agent.run.attempt import Attempt, ModelHandler
from core.thread.usage import APOLOGY


class Asides(AgentMiddleware[Any, Attempt, Any]):
    """Places notes last: they are about the newest answer."""

    name = "asides"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        notes = request.runtime.context.notes()
        if notes or any(map(_is_apology, request.messages)):
            messages = [message for message in request.messages if not _is_apology(message)]
            request = request.override(messages=[*messages, *notes])  # type: ignore[list-item]
        return await handler(request)


def _is_apology(message: AnyMessage) -> bool:
    return bool(message.additional_kwargs) and isinstance(message, AIMessage) and APOLOGY in message.additional_kwargs
