"""Summarises a conversation on request (DeerFlow's route `compact`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Never

import msgspec

from actors.agent.policies.context.summarization import facts_of
from actors.agent.setup.plan import Models
from actors.agent.summary.cut import Cut, compacted, due, plan
from actors.agent.summary.write import Facts, NoSummary, Writer, summarise, summary_models, writer
from core.actor import Actor, Progress
from core.config.load import ConfigSource
from core.config.settings import ContextSize, Summarization
from core.config.windows import Window
from core.errors import Refused
from core.events import ContextCompacted
from core.ids import checkpoint_id
from core.log.store import EventLog
from core.runs.windows import Windows
from core.thread.ownership import owned
from core.thread.state import ThreadState
from core.thread.threads import Threads
from core.thread.usage import Size, in_context
from core.user.agents import aggregates

TRIES = 3
"""Limit of attempts while the conversation changes."""
SHORT = "nothing_to_summarize"
BELOW = "below_trigger"
"""Reasons of an `Outcome` without a summary."""


class Compact(msgspec.Struct, frozen=True, tag_field="op", tag="compact"):
    """Requests a summary; the answer is an `Outcome`. `force` ignores the trigger; `keep` overrides the configured."""

    thread: str
    user: str
    force: bool = True
    keep: ContextSize | None = None
    agent: str | None = None
    model: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """The result of a request. `total_tokens` is the current size of the conversation."""

    thread_id: str
    compacted: bool
    removed_message_count: int
    preserved_message_count: int
    summary_updated: bool
    total_tokens: int
    reason: str | None = None
    """The reason if nothing was compacted."""
    checkpoint_id: str | None = None


class Compaction(Actor[Never]):
    """Summarises outside of runs. Raises `NotFound`, `Refused` (a run is active) or `NoSummary`."""

    name = "compaction"

    def __init__(self, config: ConfigSource, models: Models, threads: Threads, log: EventLog) -> None:
        self._config = config
        self._models = models
        self._threads = threads
        self._rosters = aggregates(log)
        self._windows = Windows(log)

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Outcome:
        return await self._compact(self.parse(request, Compact))

    async def _compact(self, request: Compact) -> Outcome:
        config = self._config.current()
        settings = config.summarization
        if request.keep is not None:
            settings = msgspec.structs.replace(settings, keep=request.keep)
        for _ in range(TRIES):
            state = await self._threads.load(request.thread)
            _at_rest(request, state)
            window = await self._windows.of(config, _model(state))
            now = Size(len(state.messages), in_context(state))
            if not request.force and not due(settings, window, now, Size()):
                return _nothing(request, state, BELOW)
            cut = plan(state.messages, settings, window, config.skills.container_path)
            if cut is None:
                return _nothing(request, state, SHORT)
            facts = facts_of(state, config.skills.container_path)
            if outcome := await self._compacted(request, cut, settings, now, window, facts):
                return outcome
        raise NoSummary(f"thread {request.thread}: the conversation changes all the time")

    async def _compacted(
        self, request: Compact, cut: Cut, settings: Summarization, now: Size, window: Window, facts: Facts
    ) -> Outcome | None:
        """Executes a plan; returns None if the conversation changed meanwhile."""
        names = await self._names(request)
        summary = await summarise(cut, settings, lambda: self._writers(names), window, facts)

        def decide(state: ThreadState) -> Sequence[ContextCompacted]:
            _at_rest(request, state)
            event = compacted(cut, summary, state.messages, reason="asked for", before=now.tokens)
            return [event] if event else []

        state, records = await self._threads.decide(request.thread, decide, actor=self.name)
        return _outcome(request, cut, state, records[0].seq) if records else None

    async def _names(self, request: Compact) -> list[str]:
        """Returns the models to ask. The demo model writes no summaries."""
        roster = await self._rosters.load(request.user) if request.agent else None
        agent = roster.agents.get(request.agent.lower()) if roster and request.agent else None
        return summary_models(self._config.current(), request.model, agent.model if agent else None)

    def _writers(self, names: Sequence[str]) -> list[Writer]:
        return [writer(self._models, self._config.current(), name) for name in names]


def _at_rest(request: Compact, state: ThreadState) -> None:
    owned(state, request.thread, request.user)
    if state.status == "busy":
        raise Refused(f"Thread {request.thread} has an active run; wait for its end")


def _model(state: ThreadState) -> str | None:
    return next((run.model for run in reversed(state.runs.values()) if run.model), None)


def _nothing(request: Compact, state: ThreadState, reason: str) -> Outcome:
    return Outcome(request.thread, False, 0, len(state.messages), False, in_context(state), reason=reason)


def _outcome(request: Compact, cut: Cut, state: ThreadState, seq: int) -> Outcome:
    return Outcome(
        thread_id=request.thread,
        compacted=True,
        removed_message_count=len(cut.messages) - len(cut.kept),
        preserved_message_count=len(state.messages) - 1,
        summary_updated=True,
        total_tokens=in_context(state),
        checkpoint_id=checkpoint_id(seq),
    )
