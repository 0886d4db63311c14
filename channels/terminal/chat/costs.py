"""Tokens and cost of a conversation as a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def cost_line(usage: Mapping[str, Any]) -> str:
    """Returns the line of a thread's usage (`GET /api/threads/{id}/token-usage`): tokens, cost, and the context."""
    spent = f"{usage.get('total_input_tokens') or 0:,} tokens read, {usage.get('total_output_tokens') or 0:,} written"
    cost, currency = usage.get("total_cost"), usage.get("currency")
    money = f", {cost:.4f} {currency}" if cost is not None else ", no price is configured"
    context = usage.get("context_usage") or {}
    if not context.get("max_context_tokens"):
        return spent + money
    return f"{spent}{money}; the context is {context.get('percentage') or 0:.0f} % full"
