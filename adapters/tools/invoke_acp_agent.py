"""Tool that gives work to another agent (Agent Client Protocol)."""

from __future__ import annotations

from core.tools import Result, ToolContext, tool


@tool(effect="idempotent")
async def invoke_acp_agent(ctx: ToolContext, agent: str, prompt: str) -> Result:
    """Give a task to another agent, if the person names it or it can do what you cannot. It works on its own, for
    minutes or longer, and you get its report.

    - It knows only the prompt: put all that matters into it.
    - It works in a directory of its own. You can read its files under /mnt/acp-workspace, and copy what is to be
      delivered to /mnt/user-data/outputs. It does not see /mnt/user-data.

    Args:
        agent: The name of the agent.
        prompt: The whole task.
    """
    about = {"user": ctx.user, "thread": ctx.thread, "run": ctx.run, "call_id": ctx.call_id}
    request = {"op": "run", **about, "agent": agent, "prompt": prompt, "asks": ctx.subagent is None}
    decisions: dict[str, bool] = {}
    while True:
        response = await ctx.call("acp", {**request, "decisions": decisions})
        if (permission := response.get("id")) is None:
            return Result(response["text"], failed=response.get("failed", False))
        decisions[permission] = await ctx.approved(response["step"], response["text"])
