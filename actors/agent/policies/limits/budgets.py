"""Enforces budgets: the model call that would exceed one is the run's last, and the agent is warned in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse

from actors.agent.model.last_answer import is_last, last_answer
from actors.agent.run.attempt import Answer, Attempt, Callers, ModelHandler, VisibleFailure
from core.config.settings import Budget, Config, Pricing, TokenBudget
from core.runs.ledger import Today
from core.thread.state import ThreadState
from core.thread.usage import Tokens, by_model, in_context, of_subagents, price, together, tokens_of, tokens_of_thread


class Spent(NamedTuple):
    """Tokens and their cost, None if it is unknown."""

    tokens: int = 0
    cost: float | None = None


NOTHING = Spent()


class BudgetSpent(VisibleFailure):
    """A budget is used up."""

    code = "budget_spent"

    def __init__(self, text: str) -> None:
        super().__init__(text, error="BudgetSpent", apology=text, reason=self.code)


class Spending(NamedTuple):
    """A budget, and what is spent of it."""

    budget: Budget
    spent: Spent
    whose: str
    key: str
    tokens: str = "tokens"
    """The name of the number of tokens in the configuration."""

    def text(self, more: Spent = NOTHING) -> str:
        """Returns the reason why the budget does not last for `more`, as a sentence; empty if it does."""
        need = ", and the next model call would need more" if more != NOTHING else ""
        most, spent = self.budget, self.spent
        if most.tokens is not None and spent.tokens + more.tokens >= most.tokens:
            return (
                f"Stopped: {self.whose} used {spent.tokens} of {most.tokens} tokens{need} ({self.key}.{self.tokens})."
            )
        if most.cost is not None and (spent.cost or 0) + (more.cost or 0) >= most.cost:
            return f"Stopped: {self.whose} cost {spent.cost or 0:g} of {most.cost:g}{need} ({self.key}.cost)."
        return ""


class Budgets(AgentMiddleware[Any, Attempt, Any]):
    """Checks the budgets of the run, the thread, the user's day and everybody's day. Usage is read from facts.

    The call that would exceed a budget is the last one, without tools. A budget that is used up allows no call.
    """

    name = "budgets"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._counts_days = counts_days(config)
        self._budgets = config.budgets
        self._prices = {model.name: model.pricing for model in config.models if model.pricing is not None}

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        spendings = await self.check(attempt)
        if not is_last(request) and (text := self._at_the_end(attempt, spendings)):
            return await last_answer(self.name, text, request, handler)
        return self._warned(attempt, await handler(request))

    async def check(self, attempt: Attempt) -> list[Spending]:
        """Returns what is spent of each budget. Raises `BudgetSpent` if one is used up."""
        spendings = await self._spendings(attempt)
        for spending in spendings:
            if text := spending.text():
                raise BudgetSpent(text)
        return spendings

    async def _spendings(self, attempt: Attempt) -> list[Spending]:
        budgets, state, spendings = self._budgets, attempt.state, list[Spending]()
        above = await attempt.above() if limited(budgets.run) or limited(budgets.thread) else Callers()
        if limited(budgets.run):
            used = together(used_by_run(state, attempt.run), above.run)
            spendings.append(Spending(budgets.run, _spent(used, self._prices), "this run", "budgets.run"))
        if limited(budgets.thread):
            used = together(tokens_of_thread(state), above.thread)
            spendings.append(Spending(budgets.thread, _spent(used, self._prices), "this thread", "budgets.thread"))
        today = await attempt.today() if self._counts_days else Today()
        if limited(budgets.user_per_day):
            spent = _spent(today.user, self._prices)
            spendings.append(Spending(budgets.user_per_day, spent, "your runs of today", "budgets.user_per_day"))
        if limited(budgets.day):
            spent = _spent(today.everybody, self._prices)
            spendings.append(Spending(budgets.day, spent, "everybody's runs of today", "budgets.day"))
        return spendings

    def _at_the_end(self, attempt: Attempt, spendings: Sequence[Spending]) -> str:
        """Returns the reason why the next call has to be the last, as a sentence; empty if it need not, and for the
        first call of a run: there is nothing to tell yet.
        """
        if attempt.state.runs[attempt.run].calls == 0:
            return ""
        tokens = Tokens(input=in_context(attempt.state))
        more = Spent(tokens.total, price({attempt.candidates[0].name: tokens}, self._prices).total)
        if last := attempt.last_words:
            budget = Budget(tokens=max(1, int(last.hard_stop_threshold * last.max_tokens)))
            spent = _spent(used_by_run(attempt.state, attempt.run), self._prices)
            spendings = [*spendings, Spending(budget, spent, "this run", attempt.limits.tokens_key, "max_tokens")]
        return next((text for spending in spendings if (text := spending.text(more))), "")

    def _warned(self, attempt: Attempt, response: ModelResponse[Any]) -> ModelResponse[Any]:
        """Warns the agent if the answer crosses a threshold."""
        event = response.event if isinstance(response, Answer) else None
        thresholds = self._thresholds(attempt.last_words)
        if event is None or not thresholds:
            return response
        before = _spent(used_by_run(attempt.state, attempt.run), self._prices).tokens
        after = before + tokens_of(event.message).total
        for most, share in thresholds:
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
