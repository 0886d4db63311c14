"""Replaces the older part of a long conversation by a summary (contract runtime §5.10)."""

from __future__ import annotations

from itertools import takewhile
from typing import Any, cast

import structlog
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import BaseMessage

from actors.lead.loop.attempt import Attempt, ModelHandler
from actors.lead.summary.cut import Cut, compacted, due, plan, window_of
from actors.lead.summary.write import Models, NoSummary, summarise
from core.config.settings import Summarization as Settings
from core.events import ContextCompacted
from core.thread.usage import Size, in_context, last_asked

log = structlog.get_logger("sika.lead")


class Summarization(AgentMiddleware[Any, Attempt, Any]):
    """Lies outside of all policies that change the model's messages. If no model writes the summary, the run goes on
    with the whole conversation.

    LangChain's own middleware changes the graph's state, and here the log is the conversation. It also loses skills,
    and earlier summaries that the summarising model does not get.
    """

    name = "summarization"

    def __init__(self, settings: Settings, models: Models) -> None:
        """`models` are the models to ask in order, without thinking."""
        super().__init__()
        self._settings = settings
        self._models = models

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        if not self._settings.trigger or not (reason := self._reason(attempt)):
            return await handler(request)
        cut = plan(attempt.state.messages, self._settings, _window(attempt), attempt.config.skills.container_path)
        if cut is None or not await self._compacted(attempt, cut, reason):
            return await handler(request)
        return await handler(request.override(messages=cast(Any, _replaced(attempt, cut, request.messages))))

    def _reason(self, attempt: Attempt) -> str:
        state = attempt.state
        counted = any(trigger.type != "messages" for trigger in self._settings.trigger)
        now = Size(len(state.messages), in_context(state) if counted else 0)
        return due(self._settings, _window(attempt), now, last_asked(state))

    async def _compacted(self, attempt: Attempt, cut: Cut, reason: str) -> bool:
        """Records the summary. Returns whether there is one."""
        before = in_context(attempt.state)

        async def make() -> ContextCompacted:
            summary = await summarise(cut.summarised, cut.reminder, self._settings, self._models)
            event = compacted(cut, summary, attempt.state.messages, reason=reason, before=before)
            if event is None:
                raise NoSummary("the conversation was changed meanwhile")
            return event

        try:
            await attempt.journal.fact(ContextCompacted, "", make)
        except NoSummary as error:
            log.warning("not summarised", run=attempt.run, reason=reason, error=str(error))
            attempt.decide(self.name, "failed", str(error))
            return False
        return True


def _window(attempt: Attempt) -> int | None:
    return window_of(attempt.config, attempt.candidates[0].name)


def _replaced(attempt: Attempt, cut: Cut, messages: list[Any]) -> list[BaseMessage]:
    """Returns the current conversation, followed by the messages that outer policies added."""
    ids = {str(message.get("id")) for message in cut.messages}
    added = takewhile(lambda message: message.id not in ids, reversed(messages))
    return [*attempt.conversation(), *reversed(list(added))]
