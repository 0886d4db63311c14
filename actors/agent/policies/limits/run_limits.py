"""Ends a run at its number of model calls, or shortly before its time is over: with one more answer, without tools."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse

from actors.agent.model.last_answer import is_last, last_answer
from actors.agent.run.attempt import Attempt, ModelHandler
from core.events import ModelFailed


class CallLimit(AgentMiddleware[Any, Attempt, Any]):
    """Counts the run's answers in the log."""

    name = "call_limit"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        limit = attempt.limits.calls
        if limit is None or attempt.state.runs[attempt.run].calls < limit:
            return await handler(request)
        text = f"Stopped: the agent made {limit} model calls, the limit of this run (`{attempt.limits.calls_key}`)."
        return await last_answer(self.name, text, request, handler)


class TimeLimit(AgentMiddleware[Any, Attempt, Any]):
    """Reserves the end of the run's time for its last answer, also from a model call that takes too long."""

    name = "time_limit"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        limits = attempt.limits
        if is_last(request) or (left := limits.seconds_left()) is None:
            return await handler(request)
        key = f" (`{limits.seconds_key}`)" if limits.seconds_key else ""
        text = f"Stopped: the {limits.seconds:g} seconds of this run are nearly over{key}."
        if left > 0:
            try:
                async with asyncio.timeout(left) as deadline:
                    return await handler(request)
            except TimeoutError:
                if not deadline.expired():
                    raise
            attempt.decided()
            late = ModelFailed(error="Interrupted", text=text, attempt=1, max_attempts=1, reason="time", wait_ms=0)
            await attempt.journal.model_failed(late)
        return await last_answer(self.name, text, request, handler)
