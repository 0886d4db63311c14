"""Tool that finds lines in files of the sandbox."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="pure", group="file:read")
async def grep(
    ctx: ToolContext,
    pattern: str,
    path: str,
    glob: str | None = None,
    literal: bool = False,
    case_sensitive: bool = False,
    max_results: int = 100,
) -> Any:
    """Find the lines of text files that match a regular expression.

    Args:
        pattern: A Python regular expression, or plain text if literal is set.
        path: The absolute path of the directory (or file) to search.
        glob: Only in files that match this pattern, such as `*.py`.
        literal: Take the pattern as plain text.
        case_sensitive: Tell upper from lower case.
        max_results: Stop after this many lines.
    """
    request = {"op": "grep", "user": ctx.user, "thread": ctx.thread, "path": path, "pattern": pattern, "glob": glob}
    limits = {"literal": literal, "case_sensitive": case_sensitive, "max_results": max_results}
    return await ctx.call("sandbox", request | limits)
