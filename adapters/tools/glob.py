"""Tool that finds files of the sandbox by name."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="pure", group="file:read")
async def glob(ctx: ToolContext, pattern: str, path: str, include_dirs: bool = False, max_results: int = 200) -> Any:
    """Find files whose path matches a pattern.

    Args:
        pattern: Relative to path. `*.py` matches at any depth, `src/*.py` in src only, `src/**/*.py` anywhere below it.
        path: The absolute path of the directory to search.
        include_dirs: Find directories too.
        max_results: Stop after this many paths.
    """
    request = {"op": "glob", "user": ctx.user, "thread": ctx.thread, "path": path, "pattern": pattern}
    return await ctx.call("sandbox", request | {"include_dirs": include_dirs, "max_results": max_results})
