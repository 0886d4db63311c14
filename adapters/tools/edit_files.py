"""Tool that makes several edits in files of the sandbox, all or none."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from core.tools import ToolContext, tool


class Edit(TypedDict):
    """A text that is replaced, as by str_replace, or a new file."""

    path: Annotated[str, Field(description="Absolute path of the file.")]
    old_str: Annotated[str, Field(description="The text to replace, there exactly once; empty for a new file.")]
    new_str: Annotated[str, Field(description="The new text.")]
    replace_all: NotRequired[Annotated[bool, Field(description="Replace it wherever it stands.")]]


@tool(effect="idempotent", group="file:write")
async def edit_files(ctx: ToolContext, edits: list[Edit]) -> Any:
    """Make several edits in one or more files, as str_replace does one, and new files: all of them, or none if one does
    not fit. It says at which lines; of a refusal it says which edit was refused, and why.

    Args:
        edits: 1 to 200 edits, in the order in which they are made. Missing directories are made.
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
