"""Tool by which an agent writes skills for its user."""

from __future__ import annotations

from typing import Literal

from core.tools import ToolContext, tool


@tool(effect="once")
async def skill_manage(
    ctx: ToolContext,
    action: Literal["create", "edit", "patch", "delete", "write_file", "remove_file"],
    name: str,
    content: str | None = None,
    path: str | None = None,
    find: str | None = None,
    replace: str | None = None,
    expected_count: int = 1,
) -> str:
    """Create or change a custom skill of the person (instructions for special work), because the person wants it.
    Content is checked before it is used: a refusal says what is wrong.

    Args:
        action: create and edit write the SKILL.md; patch replaces a text in a file; write_file and remove_file are for
            files beside it; delete removes the skill.
        name: Name of the skill: a-z, 0-9 and hyphens.
        content: The whole new content, for create, edit and write_file. A SKILL.md begins with front matter: a line
            ---, the lines name: and description:, a line ---.
        path: File in references/, templates/, scripts/ or assets/. For patch the default is SKILL.md.
        find: Text to replace, for patch.
        replace: New text, for patch.
        expected_count: The number of places where the text to replace is, for patch.
    """
    fields = {"content": content, "path": path, "find": find, "replace": replace, "expected_count": expected_count}
    request = {"op": "manage", "thread": ctx.thread, "user": ctx.user, "run": ctx.run, "subagent": ctx.subagent}
    sent = {key: value for key, value in fields.items() if value is not None}
    return str(await ctx.call("skills", request | {"action": action, "name": name} | sent))
