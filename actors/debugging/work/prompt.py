"""The system prompt of a cell of the evaluation, in place of the one that the agent has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import SystemMessage


class SystemPrompt(AgentMiddleware[Any, Any, Any]):
    """Replaces the whole system prompt of each model call by a text."""

    name = "system_prompt"

    def __init__(self, path: str) -> None:
        super().__init__()
        self._message = SystemMessage(Path(path).read_text())

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(request.override(system_message=self._message))
