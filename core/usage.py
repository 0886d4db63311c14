"""What runs used: tokens and money, derived from what the models said of each call."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from core.events import Message
from core.settings import Pricing
from core.state import Commit, Run, ThreadState

MILLION = 1_000_000
UNNAMED = "unknown"
"""Of a model that no fact names."""


class Tokens(NamedTuple):
    """Tokens of some model calls. What the provider had in its cache is part of the input."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    calls: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output

    def plus(self, other: Tokens) -> Tokens:
        return Tokens(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class RunUsage(msgspec.Struct, frozen=True):
    """What a run used, by the names of the run object. The lead agent's calls are the only ones a thread's log has."""

    total_input_tokens: int = 0
    total_output_tokens: int = 0
    total_tokens: int = 0
    llm_call_count: int = 0
    lead_agent_tokens: int = 0
    subagent_tokens: int = 0
    middleware_tokens: int = 0
    message_count: int = 0


class Price(NamedTuple):
    """A sum of money; nothing where no model has a price, or where they are in several currencies."""

    total: float | None = None
    currency: str | None = None


def tokens_of(message: Message) -> Tokens:
    """What one model call used, as its answer says; a call that says nothing still counts."""
    usage = message.get("usage_metadata")
    if not isinstance(usage, dict):
        return Tokens(calls=1)
    details = usage.get("input_token_details")
    cached = details.get("cache_read") if isinstance(details, dict) else 0
    return Tokens(_count(usage.get("input_tokens")), _count(usage.get("output_tokens")), _count(cached), 1)


def model_of(message: Message, run: Run | None) -> str:
    """The configured name of the run's model, else what the provider calls it."""
    said = message.get("response_metadata")
    named = said.get("model_name") if isinstance(said, dict) else None
    return (run.model if run else None) or (named if isinstance(named, str) else None) or UNNAMED


def of_run(state: ThreadState, run: Run) -> RunUsage:
    """What a run used so far. Reads the run's own steps only."""
    tokens, messages = Tokens(), 0
    for commit in _steps(state, run):
        messages += len(messages_in(commit))
        if answer := answer_in(commit):
            tokens = tokens.plus(tokens_of(answer))
    return RunUsage(
        total_input_tokens=tokens.input,
        total_output_tokens=tokens.output,
        total_tokens=tokens.total,
        llm_call_count=tokens.calls,
        lead_agent_tokens=tokens.total,
        message_count=messages,
    )


def by_model(state: ThreadState, run: Run) -> dict[str, Tokens]:
    """What a run used, by model."""
    found: dict[str, Tokens] = {}
    for commit in _steps(state, run):
        if answer := answer_in(commit):
            model = model_of(answer, run)
            found[model] = found.get(model, Tokens()).plus(tokens_of(answer))
    return found


def in_context(state: ThreadState) -> int:
    """Tokens of the conversation as it is: what the newest model call at the head read and wrote."""
    for message in reversed(state.messages):
        if message["type"] == "ai" and (tokens := tokens_of(message)).total:
            return tokens.total
    return 0


def cost(tokens: Tokens, pricing: Pricing) -> float:
    """In the pricing's currency."""
    cached = min(tokens.cache_read, tokens.input)
    cached_price = pricing.cache_read_per_million
    if cached_price is None:
        cached_price = pricing.input_per_million
    fresh = (tokens.input - cached) * pricing.input_per_million
    return (fresh + cached * cached_price + tokens.output * pricing.output_per_million) / MILLION


def price(used: Mapping[str, Tokens], prices: Mapping[str, Pricing]) -> Price:
    """What these tokens cost, by model; models without a price are left out."""
    priced = {model: prices[model] for model in used if model in prices}
    currencies = {pricing.currency for pricing in priced.values()}
    if len(currencies) != 1:
        return Price()
    return Price(round(sum(cost(used[model], pricing) for model, pricing in priced.items()), 6), currencies.pop())


def messages_in(commit: Commit) -> list[Message]:
    """The messages that a step added or replaced."""
    return messages_of(commit.patch)


def messages_of(patch: Mapping[str, Any]) -> list[Message]:
    """The messages that a patch adds or replaces; not those it removes."""
    given = patch.get("messages")
    found = given if isinstance(given, list) else []
    return [m for m in found if isinstance(m, dict) and isinstance(m.get("type"), str) and m["type"] != "remove"]


def answer_in(commit: Commit) -> Message | None:
    """What the model said, if the step is a model call of a run."""
    if commit.run is None or commit.source != "loop" or commit.node != "model":
        return None
    return next(iter(messages_in(commit)), None)


def _steps(state: ThreadState, run: Run) -> Iterator[Commit]:
    if run.started_seq is None:
        return
    begin = bisect_left(state.commits, run.started_seq, key=_seq)
    end = len(state.commits) if run.ended_seq is None else bisect_right(state.commits, run.ended_seq, key=_seq)
    for commit in state.commits[begin:end]:
        if commit.run == run.id:
            yield commit


def _seq(commit: Commit) -> int:
    return commit.seq


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
