"""Tool that adds a fact to the memory."""

from __future__ import annotations

from core.tools import ToolContext, tool


@tool(effect="idempotent")
async def remember(ctx: ToolContext, content: str, category: str = "context", keywords: list[str] | None = None) -> str:
    """Remember a fact about the person in later conversations, because the person wants it. Gives the fact's id. Not
    for secrets, nor for what matters in this conversation only.

    Args:
        content: One short sentence, in the person's language.
        category: preference, knowledge, context, behavior, goal or correction.
        keywords: Up to 8 words by which it should be found though it does not contain them.
    """
    request = {"op": "remember", "thread": ctx.thread, "user": ctx.user, "run": ctx.run, "call": ctx.call_id}
    more = {"content": content, "category": category, "keywords": keywords or []}
    return f"Remembered as {await ctx.call('memory', request | more)}."
