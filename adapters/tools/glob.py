"""Tool that finds files of the sandbox by name."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="pure", group="file:read")
async def glob(
    ctx: ToolContext,
    pattern: str,
    path: str,
    include_dirs: bool = False,
    everything: bool = False,
    max_results: int = 200,
) -> Any:
    """Find files by their paths, when you know a part of the name. Returns absolute paths, and how many more there are.
    For what is in files, use grep.

    Args:
        pattern: Relative to path. `*.py` fits at any depth, `src/*.py` in src only, `src/**/*.{js,ts}` also below it.
        path: Absolute path of the directory.
        include_dirs: Find directories too.
        everything: Also in .git, node_modules and caches.
        max_results: Paths that are shown.
    """
    request = {"op": "glob", "user": ctx.user, "thread": ctx.thread, "path": path, "pattern": pattern}
    return await ctx.call(
        "sandbox", request | {"include_dirs": include_dirs, "everything": everything, "max_results": max_results}
    )
