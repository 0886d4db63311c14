"""Tool that creates the agent that a person has described."""

from __future__ import annotations

from core.tools import Result, ToolContext, tool


@tool(effect="idempotent")
async def setup_agent(ctx: ToolContext, soul: str, description: str, skills: list[str] | None = None) -> Result:
    """Make the agent that you and the person have agreed on, once. The person can talk to it from then on. You get its
    name.

    Args:
        soul: Who the agent is, how it works and what it must not do: Markdown that speaks to the agent.
        description: One sentence by which the person knows the agent again.
        skills: Names of the only skills that it may use. Leave this out for all skills; an empty list is none.
    """
    request = {"op": "setup", "thread": ctx.thread, "user": ctx.user, "run": ctx.run}
    name = str(await ctx.call("agents", request | {"soul": soul, "description": description, "skills": skills}))
    return Result(f"The agent {name} is made.", {"created_agent_name": name})
