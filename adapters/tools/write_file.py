"""Tool that writes a text file in the sandbox."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="idempotent", group="file:write")
async def write_file(ctx: ToolContext, path: str, content: str, append: bool = False) -> Any:
    """Write text to a file, for a new one or all of it. Missing directories are made. One that exists must have been
    read before; to change a part of it, use str_replace.

    Args:
        path: The absolute path of the file.
        content: The text to write.
        append: Add to the end of the file instead of replacing it.
    """
    request = {"op": "write", "user": ctx.user, "thread": ctx.thread, "run": ctx.run, "call_id": ctx.call_id}
    return await ctx.call("sandbox", request | {"path": path, "content": content, "append": append})
