"""Tool that reads the output of a command in the background."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="idempotent", group="bash")
async def bash_output(ctx: ToolContext, description: str, id: str) -> Any:
    """Read the new output of a command that runs in the background, and whether it still runs.

    - It does not wait: look again later, after other work.

    Args:
        description: In short words, why you look. ALWAYS PROVIDE THIS PARAMETER FIRST.
        id: The id that bash gave for the command.
    """
    request = {"op": "output", "user": ctx.user, "thread": ctx.thread, "run": ctx.run, "call_id": ctx.call_id}
    return await ctx.call("sandbox", request | {"id": id})
