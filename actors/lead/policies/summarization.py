"""Puts a summary in the place of the older part of a conversation that has become too long (contract runtime §5.10)."""

from __future__ import annotations

from itertools import takewhile
from typing import Any, cast

import structlog
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import BaseMessage

from actors.lead.loop.turn import ModelHandler, Turn
from actors.lead.summary.cut import Cut, compacted, due, plan
from actors.lead.summary.write import Models, NoSummary, summarise
from core.config.settings import Summarization as Settings
from core.events import ContextCompacted
from core.thread.usage import Size, in_context, last_asked

log = structlog.get_logger("sika.lead")


class Summarization(AgentMiddleware[Any, Turn, Any]):
    """Lies outside of all that change what the model sees. If nobody writes the summary the conversation stays as it
    is, and the run goes on.

    Not LangChain's own: that changes the graph's state, and here the log is the conversation; it also loses skills, and
    an earlier summary where that is older than what the summarising model sees.
    """

    name = "summarization"

    def __init__(self, settings: Settings, models: Models) -> None:
        """`models`: who writes the summary, the next if one does not; without thinking."""
        super().__init__()
        self._settings = settings
        self._models = models

    async def awrap_model_call(self, request: ModelRequest[Turn], handler: ModelHandler) -> ModelResponse[Any]:
        turn = request.runtime.context
        if not self._settings.trigger or not (reason := self._reason(turn)):
            return await handler(request)
        made = plan(turn.state.messages, self._settings, _window(turn), turn.config.skills.container_path)
        if made is None or not await self._compacted(turn, made, reason):
            return await handler(request)
        return await handler(request.override(messages=cast(Any, _replaced(turn, made, request.messages))))

    def _reason(self, turn: Turn) -> str:
        state = turn.state
        counted = any(trigger.type != "messages" for trigger in self._settings.trigger)
        now = Size(len(state.messages), in_context(state) if counted else 0)
        return due(self._settings, _window(turn), now, last_asked(state))

    async def _compacted(self, turn: Turn, made: Cut, reason: str) -> bool:
        """Record the summary; whether there is one."""
        before = in_context(turn.state)

        async def make() -> ContextCompacted:
            summary = await summarise(made.summarised, made.reminder, self._settings, self._models)
            event = compacted(made, summary, turn.state.messages, reason=reason, before=before)
            if event is None:
                raise NoSummary("the conversation was changed meanwhile")
            return event

        try:
            await turn.journal.fact(ContextCompacted, "", make)
        except NoSummary as error:
            log.warning("not summarised", run=turn.run, reason=reason, error=str(error))
            turn.decide(self.name, "failed", str(error))
            return False
        return True


def _window(turn: Turn) -> int | None:
    """Tokens that fit the run's model, if the configuration says."""
    name = turn.candidates[0].name
    return next((model.context_window for model in turn.config.models if model.name == name), None)


def _replaced(turn: Turn, made: Cut, given: list[Any]) -> list[BaseMessage]:
    """The conversation as it is now, and what policies around this one put after it."""
    known = {str(message.get("id")) for message in made.messages}
    added = takewhile(lambda message: message.id not in known, reversed(given))
    return [*turn.conversation(), *reversed(list(added))]
