"""Answers those who want a conversation summarised now (contract http §8.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Never

import msgspec
from langchain_core.language_models import BaseChatModel

from actors.lead.setup.plan import Models
from actors.lead.summary.cut import Cut, compacted, due, plan
from actors.lead.summary.write import NoSummary, chosen, summarise
from core.actor import Actor, Progress
from core.config.load import Config, ConfigSource
from core.config.settings import ContextSize, Summarization
from core.errors import Invalid, Refused
from core.events import ContextCompacted
from core.ids import checkpoint_id
from core.log.store import EventLog
from core.thread.ownership import owned
from core.thread.state import ThreadState
from core.thread.threads import Threads
from core.thread.usage import Size, in_context
from core.user.agents import aggregates

TRIES = 3
"""How often a conversation is summarised again because it was changed meanwhile."""
SHORT = "nothing_to_summarize"
BELOW = "below_trigger"
"""Why nothing was done."""


class Compact(msgspec.Struct, frozen=True, tag_field="op", tag="compact"):
    """Answered with an `Outcome`. `force`: whatever its size. `keep`: instead of the configured."""

    thread: str
    user: str
    force: bool = True
    keep: ContextSize | None = None
    agent: str | None = None
    model: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What came of it. `total_tokens`: of the conversation as it is now."""

    thread_id: str
    compacted: bool
    removed_message_count: int
    preserved_message_count: int
    summary_updated: bool
    total_tokens: int
    reason: str | None = None
    """Why not."""
    checkpoint_id: str | None = None


class Compaction(Actor[Never]):
    """Summarises outside of runs. Answers `NotFound`, `Refused` (a run is active) or `NoSummary` where it cannot."""

    name = "compaction"

    def __init__(self, config: ConfigSource, models: Models, threads: Threads, log: EventLog) -> None:
        self._config = config
        self._models = models
        self._threads = threads
        self._rosters = aggregates(log)

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Outcome:
        try:
            compact = msgspec.convert(dict(request), type=Compact)
        except msgspec.ValidationError as error:
            raise Invalid(f"compaction: {error}") from error
        return await self._compact(compact)

    async def _compact(self, asked: Compact) -> Outcome:
        config = self._config.current()
        settings = config.summarization
        if asked.keep is not None:
            settings = msgspec.structs.replace(settings, keep=asked.keep)
        for _ in range(TRIES):
            state = await self._threads.load(asked.thread)
            _at_rest(asked, state)
            window = _window(config, state)
            now = Size(len(state.messages), in_context(state))
            if not asked.force and not due(settings, window, now, Size()):
                return _nothing(asked, state, BELOW)
            made = plan(state.messages, settings, window, config.skills.container_path)
            if made is None:
                return _nothing(asked, state, SHORT)
            if outcome := await self._compacted(asked, made, settings, now):
                return outcome
        raise NoSummary(f"thread {asked.thread}: the conversation changes all the time")

    async def _compacted(self, asked: Compact, made: Cut, settings: Summarization, now: Size) -> Outcome | None:
        """What came of a plan; None if the conversation is another one by now."""
        names = await self._names(asked)
        summary = await summarise(made.summarised, made.reminder, settings, lambda: self._chats(names))

        def decide(state: ThreadState) -> Sequence[ContextCompacted]:
            _at_rest(asked, state)
            event = compacted(made, summary, state.messages, reason="asked for", before=now.tokens)
            return [event] if event else []

        state, records = await self._threads.decide(asked.thread, decide, actor=self.name)
        return _done(asked, made, state, records[0].seq) if records else None

    async def _names(self, asked: Compact) -> list[str]:
        """Of the models to ask. The demo model writes no summaries."""
        roster = await self._rosters.load(asked.user) if asked.agent else None
        agent = roster.agents.get(asked.agent.lower()) if roster and asked.agent else None
        return chosen(self._config.current(), asked.model, agent.model if agent else None)

    def _chats(self, names: Sequence[str]) -> list[tuple[str, BaseChatModel]]:
        return [(name, self._models.get(name, thinking=False, reasoning_effort=None)) for name in names]


def _at_rest(asked: Compact, state: ThreadState) -> None:
    owned(state, asked.thread, asked.user)
    if state.status == "busy":
        raise Refused(f"Thread {asked.thread} has an active run; wait for its end")


def _window(config: Config, state: ThreadState) -> int | None:
    """Tokens that fit the model of the newest run, if the configuration says."""
    name = next((run.model for run in reversed(state.runs.values()) if run.model), None)
    return next((model.context_window for model in config.models if model.name == name), None)


def _nothing(asked: Compact, state: ThreadState, reason: str) -> Outcome:
    return Outcome(asked.thread, False, 0, len(state.messages), False, in_context(state), reason=reason)


def _done(asked: Compact, made: Cut, state: ThreadState, seq: int) -> Outcome:
    return Outcome(
        thread_id=asked.thread,
        compacted=True,
        removed_message_count=len(made.messages) - len(made.kept),
        preserved_message_count=len(state.messages) - 1,
        summary_updated=True,
        total_tokens=in_context(state),
        checkpoint_id=checkpoint_id(seq),
    )
