"""Tool that ends a command in the background."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="idempotent", group="bash")
async def bash_kill(ctx: ToolContext, id: str) -> Any:
    """End a command that runs in the background, with everything it started: a server that is not needed any more, or
    work that hangs. Returns its last output. One that has ended by itself stays so.

    Args:
        id: The id that bash gave for the command.
    """
    request = {"op": "end", "user": ctx.user, "thread": ctx.thread, "run": ctx.run, "call_id": ctx.call_id}
    return await ctx.call("sandbox", request | {"id": id})
