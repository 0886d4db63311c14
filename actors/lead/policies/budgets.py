"""Enforces budgets: stops a run before the model call that would exceed one, and warns the agent in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage

from actors.lead.loop.attempt import Answer, Attempt, Callers, ModelHandler, VisibleFailure, revised
from actors.lead.model.answer import without_calls
from core.config.settings import Budget, Config, Pricing, TokenBudget
from core.thread.ledger import Today
from core.thread.state import STOPPED, ThreadState
from core.thread.usage import Tokens, by_model, of_subagents, price, together, tokens_of, tokens_of_thread


class Spent(NamedTuple):
    """Tokens and their cost, None if it is unknown."""

    tokens: int = 0
    cost: float | None = None


class BudgetSpent(VisibleFailure):
    """A budget is used up."""

    code = "budget_spent"

    def __init__(self, text: str) -> None:
        super().__init__(text, error="BudgetSpent", apology=text, reason=self.code)


class Budgets(AgentMiddleware[Any, Attempt, Any]):
    """Checks the budgets of the run, the thread, the user's day and everybody's day. Usage is read from facts."""

    name = "budgets"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._counts_days = counts_days(config)
        self._budgets = config.budgets
        self._prices = {model.name: model.pricing for model in config.models if model.pricing is not None}

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        await self.check(attempt)
        return self._judged(attempt, await handler(request))

    async def check(self, attempt: Attempt) -> None:
        """Raises `BudgetSpent` if a budget is used up."""
        budgets, state = self._budgets, attempt.state
        above = await attempt.above() if limited(budgets.run) or limited(budgets.thread) else Callers()
        if limited(budgets.run):
            used = together(used_by_run(state, attempt.run), above.run)
            _spend(budgets.run, _spent(used, self._prices), "this run", "budgets.run")
        if limited(budgets.thread):
            used = together(tokens_of_thread(state), above.thread)
            _spend(budgets.thread, _spent(used, self._prices), "this thread", "budgets.thread")
        today = await attempt.today() if self._counts_days else Today()
        if limited(budgets.user_per_day):
            spent = _spent(today.user, self._prices)
            _spend(budgets.user_per_day, spent, "your runs of today", "budgets.user_per_day")
        if limited(budgets.day):
            _spend(budgets.day, _spent(today.everybody, self._prices), "everybody's runs of today", "budgets.day")

    def _judged(self, attempt: Attempt, response: ModelResponse[Any]) -> ModelResponse[Any]:
        """Warns if the answer crosses a threshold; at the end of a token budget it becomes the final answer."""
        event, answer = response.event if isinstance(response, Answer) else None, response.result[-1]
        if event is None or not isinstance(answer, AIMessage) or not (attempt.last_words or limited(self._budgets.run)):
            return response
        before = _spent(used_by_run(attempt.state, attempt.run), self._prices).tokens
        after = before + tokens_of(event.message).total
        last = attempt.last_words
        if last and after >= last.hard_stop_threshold * last.max_tokens and answer.tool_calls:
            text = f"The budget of this run ({last.max_tokens} tokens) is used up: the agent had to stop here."
            attempt.decide(self.name, STOPPED, text)
            return revised(response, without_calls(answer, text))
        for most, share in self._thresholds(last):
            if before < share * most <= after:
                text = f"{after} of the {most} tokens of this run are used. Come to an end with what you have."
                attempt.decide(self.name, "warned", text, note=text)
        return response

    def _thresholds(self, last: TokenBudget | None) -> list[tuple[int, float]]:
        thresholds = [(self._budgets.run.tokens, self._budgets.warn)] if self._budgets.run.tokens else []
        if last:
            thresholds.append((last.max_tokens, last.warn_threshold))
        return thresholds


def used_by_run(state: ThreadState, run: str) -> dict[str, Tokens]:
    """Returns the usage of a run and its subagents by model."""
    return together(by_model(state, state.runs[run]), of_subagents(state.runs[run]))


def _spent(used: Mapping[str, Tokens], prices: Mapping[str, Pricing]) -> Spent:
    return Spent(sum(tokens.total for tokens in used.values()), price(used, prices).total)


def counts_days(config: Config) -> bool:
    """Tells whether a budget of the day exists: otherwise no ledger is kept."""
    daily = config.budgets.user_per_day, config.budgets.day
    return config.limits.tokens_per_day is not None or any(map(limited, daily))


def limited(budget: Budget) -> bool:
    return budget.tokens is not None or budget.cost is not None


def _spend(budget: Budget, spent: Spent, whose: str, key: str) -> None:
    if budget.tokens is not None and spent.tokens >= budget.tokens:
        raise BudgetSpent(f"Stopped: {whose} used {spent.tokens} of {budget.tokens} tokens ({key}.tokens).")
    if budget.cost is not None and (spent.cost or 0) >= budget.cost:
        raise BudgetSpent(f"Stopped: {whose} cost {spent.cost:g} of {budget.cost:g} ({key}.cost).")
