"""Tool that reads a text file of the sandbox."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="pure", group="file:read")
async def read_file(ctx: ToolContext, path: str, start_line: int | None = None, end_line: int | None = None) -> Any:
    """Read a text file. Give both line numbers to read a part of it.

    Args:
        path: The absolute path of the file.
        start_line: The first line to read, counted from 1. Only together with end_line.
        end_line: The last line to read, included. Only together with start_line.
    """
    lines = {"start_line": start_line, "end_line": end_line}
    return await ctx.call("sandbox", {"op": "read", "user": ctx.user, "thread": ctx.thread, "path": path} | lines)
