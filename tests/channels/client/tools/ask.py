"""A tool of these tests that asks a person."""

from __future__ import annotations

from langgraph.types import interrupt

from core.tools import ToolContext, tool


@tool(effect="pure")
async def ask(ctx: ToolContext, question: str) -> str:
    """Ask the person who is there."""
    return f"They said: {interrupt({'question': question})}"
