"""A tool of the tests that does next to nothing."""

from __future__ import annotations

from core.tools import ToolContext, tool


@tool(effect="pure")
async def note(ctx: ToolContext, text: str) -> str:
    """Take a note."""
    return f"noted {text}"
