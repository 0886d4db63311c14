"""Tool that makes several edits in files of the sandbox, all or none."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

from core.tools import ToolContext, tool


class Edit(TypedDict):
    """A text that is replaced, as by str_replace."""

    path: str
    old_str: str
    new_str: str
    replace_all: NotRequired[bool]


@tool(effect="idempotent", group="file:write")
async def edit_files(ctx: ToolContext, edits: list[Edit]) -> Any:
    """Make several edits in one or more files, as str_replace does one: all of them, or none if one does not fit.

    Args:
        edits: The edits, in the order in which they are made.
    """
    request = {"op": "edit", "user": ctx.user, "thread": ctx.thread, "run": ctx.run, "call_id": ctx.call_id}
    fields = [
        {
            "path": edit["path"],
            "old": edit["old_str"],
            "new": edit["new_str"],
            "every": edit.get("replace_all", False),
        }
        for edit in edits
    ]
    return await ctx.call("sandbox", request | {"edits": fields})
