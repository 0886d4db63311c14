"""Tool that lists a directory of the sandbox."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="pure", group="file:read")
async def ls(ctx: ToolContext, path: str) -> Any:
    """List a directory two levels deep, to see what is there. Directories end with `/`. It says how many entries
    there are, and what is not shown. For files by their names, use glob.

    Args:
        path: Absolute path of the directory.
    """
    return await ctx.call("sandbox", {"op": "list", "user": ctx.user, "thread": ctx.thread, "path": path})
