"""Replaces the older part of a long conversation by a summary (DeerFlow's middleware Summarization)."""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from typing import Any, cast

import structlog
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import BaseMessage

from actors.agent.model.ask import CONTEXT, ModelGaveUp
from actors.agent.model.refusals import window_named
from actors.agent.policies.interaction.todos import todos_of
from actors.agent.run.attempt import Attempt, ModelHandler
from actors.agent.summary.cut import Cut, compacted, due, plan
from actors.agent.summary.save import save_messages
from actors.agent.summary.write import Facts, Models, NoSummary, summarise, without_model
from core.config.settings import Summarization as Settings
from core.config.windows import Window, window_of
from core.errors import SikaError
from core.events import ContextCompacted, Message
from core.runs.windows import Windows
from core.thread.state import ThreadState
from core.thread.usage import Size, estimate, in_context, last_asked

log = structlog.get_logger("sika.agent")

RESCUES = (1 / 4, 1 / 16)
"""Parts of what fits that the newest messages may take after a refusal, and after another one."""


SMALLEST = 4000
"""The window of a model that names none when it refuses a request is taken for at least this; fewer are of no use."""


class Summarization(AgentMiddleware[Any, Attempt, Any]):
    """Lies outside of all policies that change the model's messages. If no model writes the summary, the run goes on
    with the whole conversation.

    If the provider refuses a request as too long, the conversation is summarised, the newest messages are shortened as
    far as needed, and the model is asked again, in the same run. Then a summary is made even if no model writes one.

    LangChain's own middleware changes the graph's state, and here the log is the conversation. It also loses skills,
    and earlier summaries that the summarising model does not get.
    """

    name = "summarization"

    def __init__(self, settings: Settings, models: Models, windows: Windows | None = None) -> None:
        """`models` are the models to ask in order, without thinking."""
        super().__init__()
        self._settings = settings
        self._models = models
        self._windows = windows

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        before = attempt.state.messages
        await self._before(attempt)
        for part in RESCUES:
            attempt.shortens = True
            try:
                return await handler(_current(attempt, before, request))
            except ModelGaveUp as failure:
                if failure.reason != CONTEXT or not await self._rescued(attempt, failure, part):
                    raise
            finally:
                attempt.shortens = False
        return await handler(_current(attempt, before, request))

    async def _before(self, attempt: Attempt) -> None:
        """Summarises the conversation if it has become too long."""
        state = attempt.state
        now, window = Size(len(state.messages), in_context(state)), await self._window(attempt)
        if not (reason := due(self._settings, window, now, last_asked(state))):
            return
        if cut := plan(state.messages, self._settings, window, _skills(attempt)):
            await self._compacted(attempt, cut, window, reason)

    async def _rescued(self, attempt: Attempt, failure: ModelGaveUp, part: float) -> bool:
        """Makes the conversation shorter after a refusal. Returns whether it did."""
        size = max(in_context(attempt.state), estimate(attempt.state.messages), SMALLEST)
        named = window_named(str(failure))
        window = await self._window(attempt)
        if named and (named < window.tokens or window.source == "assumed"):
            await self._learn(attempt, failure.model, named)
            window = window._replace(tokens=named, source="learned")
        elif not named:
            window = window._replace(tokens=min(window.tokens, size))
        planned = partial(
            plan, settings=self._settings, window=window, skills=_skills(attempt), room=max(window.limit * part, 1)
        )
        cut = planned(attempt.state.messages)
        if cut is None:
            return False
        if files := await save_messages(attempt, cut.long):
            cut = planned(attempt.state.messages, files=files) or cut
        return await self._compacted(attempt, cut, window, f"the model refused it: {failure}"[:500], rescue=True)

    async def _compacted(
        self, attempt: Attempt, cut: Cut, window: Window, reason: str, *, rescue: bool = False
    ) -> bool:
        """Records the summary. Returns whether there is one."""
        before, facts = in_context(attempt.state), facts_of(attempt.state, _skills(attempt))

        async def make() -> ContextCompacted:
            try:
                summary = await summarise(cut, self._settings, self._models, window, facts)
            except NoSummary as error:
                if not rescue:
                    raise
                attempt.decide(self.name, "failed", str(error))
                summary = without_model(cut, window, facts)
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

    async def _window(self, attempt: Attempt) -> Window:
        name = attempt.candidates[0].name
        if self._windows is None:
            return window_of(attempt.config, name)
        return await self._windows.of(attempt.config, name, attempt.state.seq)

    async def _learn(self, attempt: Attempt, model: str, tokens: int) -> None:
        if self._windows is not None:
            try:
                await self._windows.learn(attempt.config, model, tokens, actor="lead")
            except SikaError as error:  # it is learnt at the next refusal
                log.warning("context window not remembered", model=model, error=str(error))


def _skills(attempt: Attempt) -> str:
    return attempt.config.skills.container_path


def facts_of(state: ThreadState, skills: str) -> Facts:
    """Returns what a summary takes from a thread's state."""
    return Facts(skills, todos_of(state), state.goal.set.objective if state.goal else "")


def _current(attempt: Attempt, before: list[Message], request: ModelRequest[Attempt]) -> ModelRequest[Attempt]:
    """Returns the request with the present conversation, followed by the messages that outer policies added."""
    if attempt.state.messages is before:
        return request
    ids = {str(message.get("id")) for message in before}
    added = takewhile(lambda message: message.id not in ids, reversed(request.messages))
    messages: list[BaseMessage] = [*attempt.conversation(), *reversed(list(added))]
    return request.override(messages=cast(Any, messages))
