"""Tool that reads a file of the sandbox."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="pure", group="file:read")
async def read_file(
    ctx: ToolContext,
    path: str,
    start_line: int | None = None,
    end_line: int | None = None,
    line_numbers: bool = False,
) -> Any:
    """Read a file: lines of a text, or the text of a PDF, Word, Excel, PowerPoint, EPUB or Outlook file. It says how
    much there is, and how to read on. Of pictures, archives and other binary files it says what they are.

    Args:
        path: Absolute path of the file.
        start_line: The first line, counted from 1.
        end_line: The last line, included.
        line_numbers: Put its number and a tab before each line.
    """
    lines = {"start_line": start_line, "end_line": end_line, "line_numbers": line_numbers}
    return await ctx.call("sandbox", {"op": "read", "user": ctx.user, "thread": ctx.thread, "path": path} | lines)
