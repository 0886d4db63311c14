"""Tool by which an agent changes its own definition."""

from __future__ import annotations

from core.tools import ToolContext, tool


@tool(effect="idempotent")
async def update_agent(
    ctx: ToolContext,
    soul: str | None = None,
    description: str | None = None,
    skills: list[str] | None = None,
    tool_groups: list[str] | None = None,
    model: str | None = None,
) -> str:
    """Change how you are from now on, because the person wants it. Give only what changes, at least one thing.

    Args:
        soul: Your whole new soul as Markdown; it replaces the old one.
        description: One sentence by which the person knows you.
        skills: Names of the only skills that you may use; an empty list is none.
        tool_groups: Names of the only groups of tools that you may use.
        model: Name of a configured model.
    """
    fields = {"soul": soul, "description": description, "skills": skills, "tool_groups": tool_groups, "model": model}
    changes = {name: value for name, value in fields.items() if value is not None}
    request = {"op": "update", "thread": ctx.thread, "user": ctx.user, "run": ctx.run}
    changed = await ctx.call("agents", request | changes)
    if not changed:
        return "Nothing has changed: you are like that already."
    return f"Changed: {', '.join(changed)}. It takes effect at the person's next message."
