"""Tool that replaces text in a file of the sandbox."""

from __future__ import annotations

from typing import Any

from core.tools import ToolContext, tool


@tool(effect="idempotent", group="file:write")
async def str_replace(ctx: ToolContext, path: str, old_str: str, new_str: str, replace_all: bool = False) -> Any:
    """Replace text in a file that you have read. It must be there exactly once, unless replace_all is set: a refusal
    names the lines, or what comes nearest. For several places or files, use edit_files.

    Args:
        path: Absolute path of the file.
        old_str: The text to replace, exactly as it stands there, blanks included.
        new_str: The new text.
        replace_all: Replace it wherever it stands.
    """
    request = {"op": "replace", "user": ctx.user, "thread": ctx.thread, "run": ctx.run, "call_id": ctx.call_id}
    return await ctx.call("sandbox", request | {"path": path, "old": old_str, "new": new_str, "every": replace_all})
