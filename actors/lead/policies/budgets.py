"""How much may be used: stops a run before the model call that would go over, and tells the agent in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage

from actors.lead.loop.turn import Answer, ModelHandler, Turn, VisibleFailure, revised
from actors.lead.model.answer import without_calls
from core.config.settings import Budget, Config, Pricing
from core.thread.ledger import Today
from core.thread.state import ThreadState
from core.thread.usage import Tokens, by_model, price, tokens_of, tokens_of_thread


class Spent(NamedTuple):
    """Tokens, and what they cost (None where that is not known)."""

    tokens: int = 0
    cost: float | None = None


class BudgetSpent(VisibleFailure):
    """What may be used is used up."""

    code = "budget_spent"

    def __init__(self, text: str) -> None:
        super().__init__(text, error="BudgetSpent", said=text, reason=self.code)


class Budgets(AgentMiddleware[Any, Turn, Any]):
    """Of the run, the thread, the user's day, and everybody's day: what was used is read from facts."""

    name = "budgets"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._counts_days = counts_days(config)
        self._budgets = config.budgets
        self._prices = {model.name: model.pricing for model in config.models if model.pricing is not None}
        self._last_words = config.token_budget if config.token_budget.enabled else None

    async def awrap_model_call(self, request: ModelRequest[Turn], handler: ModelHandler) -> ModelResponse[Any]:
        turn = request.runtime.context
        await self._check(turn)
        return self._judged(turn, await handler(request))

    async def _check(self, turn: Turn) -> None:
        """Raises `BudgetSpent` if there is nothing left of a budget."""
        wanted, state = self._budgets, turn.state
        if limited(wanted.run):
            _spend(wanted.run, spent_by_run(state, turn.run, self._prices), "this run", "budgets.run")
        if limited(wanted.thread):
            _spend(wanted.thread, spent_by_thread(state, self._prices), "this thread", "budgets.thread")
        today = await turn.today() if self._counts_days else Today()
        if limited(wanted.user_per_day):
            spent = _spent(today.user, self._prices)
            _spend(wanted.user_per_day, spent, "your runs of today", "budgets.user_per_day")
        if limited(wanted.day):
            _spend(wanted.day, _spent(today.everybody, self._prices), "everybody's runs of today", "budgets.day")

    def _judged(self, turn: Turn, response: ModelResponse[Any]) -> ModelResponse[Any]:
        """Warn when the answer goes over a threshold; at the end of a token budget it is the last one."""
        event, answer = response.event if isinstance(response, Answer) else None, response.result[-1]
        if event is None or not isinstance(answer, AIMessage) or not (self._last_words or limited(self._budgets.run)):
            return response
        before = spent_by_run(turn.state, turn.run, self._prices).tokens
        after = before + tokens_of(event.message).total
        last = self._last_words
        if last and after >= last.hard_stop_threshold * last.max_tokens and answer.tool_calls:
            text = f"The budget of this run ({last.max_tokens} tokens) is used up: the agent had to stop here."
            turn.decide(self.name, "stopped", text)
            return revised(response, without_calls(answer, text))
        for most, share in self._thresholds():
            if before < share * most <= after:
                text = f"{after} of the {most} tokens of this run are used. Come to an end with what you have."
                turn.decide(self.name, "warned", text, note=text)
        return response

    def _thresholds(self) -> list[tuple[int, float]]:
        found = [(self._budgets.run.tokens, self._budgets.warn)] if self._budgets.run.tokens else []
        if self._last_words:
            found.append((self._last_words.max_tokens, self._last_words.warn_threshold))
        return found


def spent_by_run(state: ThreadState, run: str, prices: Mapping[str, Pricing]) -> Spent:
    return _spent(by_model(state, state.runs[run]), prices)


def spent_by_thread(state: ThreadState, prices: Mapping[str, Pricing]) -> Spent:
    """By everything that was ever asked in the thread, also what was rolled back or summarised."""
    return _spent(tokens_of_thread(state), prices)


def _spent(used: Mapping[str, Tokens], prices: Mapping[str, Pricing]) -> Spent:
    return Spent(sum(tokens.total for tokens in used.values()), price(used, prices).total)


def counts_days(config: Config) -> bool:
    """Whether anything limits what a day may cost: otherwise no ledger is kept."""
    daily = config.budgets.user_per_day, config.budgets.day
    return config.limits.tokens_per_day is not None or any(map(limited, daily))


def limited(budget: Budget) -> bool:
    return budget.tokens is not None or budget.cost is not None


def _spend(budget: Budget, spent: Spent, whose: str, key: str) -> None:
    if budget.tokens is not None and spent.tokens >= budget.tokens:
        raise BudgetSpent(f"Stopped: {whose} used {spent.tokens} of {budget.tokens} tokens ({key}.tokens).")
    if budget.cost is not None and (spent.cost or 0) >= budget.cost:
        raise BudgetSpent(f"Stopped: {whose} cost {spent.cost:g} of {budget.cost:g} ({key}.cost).")
