"""Enters what titles, judgements, suggestions and memories use into the ledgers of their day, if a limit counts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.agent.policies.limits.budgets import counts_days, limited
from core.actor import Actor, Context
from core.config.load import ConfigSource
from core.events import GoalEvaluated, QuestionsSuggested, ThreadTitled
from core.log.store import EventLog
from core.memory.facts import KIND, MemoryExtracted, owner
from core.runs.ledger import Ledgers
from core.thread.usage import Tokens, tokens_of

Spent = ThreadTitled | GoalEvaluated | QuestionsSuggested | MemoryExtracted


class Spending(Actor[ThreadTitled | GoalEvaluated | QuestionsSuggested | MemoryExtracted]):
    """Runs enter their own usage. An event is one entry, so entering it again changes nothing."""

    def __init__(self, config: ConfigSource, log: EventLog) -> None:
        self._config = config
        self._ledgers = Ledgers(log)

    async def handle(self, event: Spent, ctx: Context) -> None:
        config, record = self._config.current(), ctx.record
        used = _used(event.model, event.usage)
        if not used or not counts_days(config):
            return
        aggregate = record.aggregate
        user = owner(aggregate.id) if aggregate.kind == KIND else (await ctx.load()).user
        everybody = limited(config.budgets.day)
        await self._ledgers.enter(user, record.at[:10], record.id, used, everybody=everybody)


def _used(model: str | None, usage: Mapping[str, Any] | None) -> dict[str, Tokens]:
    return {model: tokens_of({"usage_metadata": dict(usage)})} if model and usage else {}
