"""Tool that reads the output of a command in the background."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="idempotent", group="bash")
async def bash_output(ctx: ToolContext, id: str, wait_seconds: int = 0) -> Any:
    """Read what a command in the background has printed since you last looked, whether it still runs, its exit code,
    and the ports on which it listens.

    - It answers at once, so look again after other work; or let it wait for the command's end.
    - A long output is cut in the middle: let the command write to a file, and search in that.

    Args:
        id: The id that bash gave for the command.
        wait_seconds: Wait so long for the command to end, 300 seconds at most.
    """
    request = {"op": "output", "user": ctx.user, "thread": ctx.thread, "run": ctx.run, "call_id": ctx.call_id}
    return await ctx.call("sandbox", request | {"id": id, "wait_seconds": wait_seconds})
