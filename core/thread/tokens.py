"""Tokens of model calls, as the answers report them."""

from __future__ import annotations

from typing import Any, NamedTuple

from core.events import Json, Message

MOST = 10**12
"""Limit of the tokens that one call is believed to have used."""


class Tokens(NamedTuple):
    """Tokens of some model calls. `input` includes `cache_read`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    calls: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output

    def plus(self, other: Tokens) -> Tokens:
        return Tokens(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def at_least(self, other: Tokens) -> Tokens:
        """Returns the larger of each number."""
        return Tokens(*map(max, self, other))


def tokens_of(message: Message) -> Tokens:
    """Returns the tokens of one model call from its answer. An answer without usage counts as a call."""
    return reported(message.get("usage_metadata"), calls=1)


def reported(usage: Any, *, calls: int) -> Tokens:
    """Returns the tokens of a usage in LangChain's form, which may be anything."""
    if not isinstance(usage, dict):
        return Tokens(calls=calls)
    details = usage.get("input_token_details")
    cached = details.get("cache_read") if isinstance(details, dict) else 0
    return Tokens(_count(usage.get("input_tokens")), _count(usage.get("output_tokens")), _count(cached), calls)


def usage_of(tokens: Tokens) -> Json:
    """Returns the tokens as clients get them."""
    return {"input_tokens": tokens.input, "output_tokens": tokens.output, "total_tokens": tokens.total}


def _count(value: Any) -> int:
    """Returns a number of tokens: nothing for what is none, and no more than read models can add up."""
    return min(value, MOST) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
