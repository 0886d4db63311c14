"""Tokens and money of recorded model calls, by the prices that models have in the configuration of today."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from core.config.settings import Pricing
from core.events import ContextCompacted, ModelCompleted, ModelFailed, ModelSampled, Record, RunStarted
from core.lifecycle import END_TYPES
from core.thread.tokens import Tokens, reported, tokens_of
from core.thread.usage import ANSWERED_BY, cost

Cost = Mapping[str, float]
"""Sums of money by their currency; empty where no model has a price."""
FREE: Cost = {}
Prices = Mapping[str, Pricing]
"""Prices by the configured name of a model."""
_START = str(RunStarted.__struct_config__.tag)


class Used(NamedTuple):
    """The usage of one model call."""

    model: str
    tokens: Tokens
    cost: Cost


class Meter:
    """Measures the model calls of logs. `learn` every event, in order: the start of a run names its model."""

    def __init__(self, prices: Prices | None = None) -> None:
        self._prices = prices or {}
        self._models: dict[str, str] = {}
        """Models of open runs."""

    def learn(self, record: Record) -> None:
        if record.type in END_TYPES:
            self._models.pop(record.run or "", None)
        elif record.type == _START and (model := self.model_of(record)):
            self._models[record.run or ""] = model

    def used(self, record: Record) -> Used | None:
        """Returns the usage of a model call; None for other events."""
        match event := record.event:
            case ModelCompleted(message=message):
                return self._used(self.model_of(record), tokens_of(message))
            case ModelSampled(model=model, usage=usage):
                return self._used(model, reported(usage, calls=1))
            case ContextCompacted(summary=summary):
                return self._used(event.model or self.model_of(record), tokens_of(summary))
        return None

    def model_of(self, record: Record) -> str:
        """Returns the configured name of the model of an answer, a failure or a run; empty if nothing names it."""
        event = record.event
        if isinstance(event, RunStarted | ModelFailed) and event.model:
            return event.model
        metadata: Any = event.message.get("response_metadata") if isinstance(event, ModelCompleted) else None
        other = metadata.get(ANSWERED_BY) if isinstance(metadata, dict) else None
        return str(other or self._of_run(record))

    def _of_run(self, record: Record) -> str:
        return self._models.get(record.run or "", "")

    def _used(self, model: str, tokens: Tokens) -> Used:
        price = self._prices.get(model)
        return Used(model, tokens, {price.currency: cost(tokens, price)} if price else FREE)


def together(costs: Iterable[Cost]) -> Cost:
    """Returns the sums by currency."""
    sums: dict[str, float] = {}
    for cost_of_call in costs:
        for currency, amount in cost_of_call.items():
            sums[currency] = sums.get(currency, 0.0) + amount
    return sums
