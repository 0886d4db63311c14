"""What only one side is told: the model gets the notes of policies, and not what the server said in its place."""

from __future__ import annotations

from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage

from actors.lead.loop.turn import ModelHandler, Turn
from core.thread.usage import APOLOGY


class Asides(AgentMiddleware[Any, Turn, Any]):
    """Notes come after everything else: they are about what was done last."""

    name = "asides"

    async def awrap_model_call(self, request: ModelRequest[Turn], handler: ModelHandler) -> ModelResponse[Any]:
        notes = request.runtime.context.notes()
        if notes or any(map(_is_apology, request.messages)):
            heard = [message for message in request.messages if not _is_apology(message)]
            request = request.override(messages=[*heard, *notes])  # type: ignore[list-item]
        return await handler(request)


def _is_apology(message: AnyMessage) -> bool:
    return bool(message.additional_kwargs) and isinstance(message, AIMessage) and APOLOGY in message.additional_kwargs
