"""Tool that searches the memory."""

from __future__ import annotations

from core.tools import ToolContext, tool


@tool(effect="pure")
async def recall(ctx: ToolContext, query: str) -> str:
    """Search what is remembered of the person from earlier conversations, when an answer depends on it. Gives the facts
    that fit, each with its id, the best first.

    Args:
        query: Words that the fact may contain, with synonyms and the wider topic.
    """
    request = {"op": "recall", "thread": ctx.thread, "user": ctx.user, "run": ctx.run, "query": query}
    facts = await ctx.call("memory", request)
    return "\n".join(f"- {fact['id']} {fact['text']}" for fact in facts) or "Nothing is remembered about that."
