"""Tool that finds skills, when there are too many to list."""

from __future__ import annotations

from core.tools import ToolContext, tool


@tool(effect="pure")
async def skill_search(ctx: ToolContext, query: str) -> str:
    """Find skills (instructions for special work) that fit a task, before you begin it. Gives at most 8 with name,
    description and path, the best first: read the SKILL.md of one with read_file, and do as it says.

    Args:
        query: The task in a few words, with the kinds of files or things that it is about.
    """
    request = {"op": "search", "thread": ctx.thread, "user": ctx.user, "run": ctx.run, "subagent": ctx.subagent}
    skills = await ctx.call("skills", request | {"query": query})
    return "\n".join(f"- {skill}" for skill in skills) or "No skill fits."
