"""A tool of the tests that takes its time."""

from __future__ import annotations

import asyncio

from core.tools import ToolContext, tool


@tool(effect="pure")
async def hold(ctx: ToolContext) -> str:
    """Wait for a minute."""
    await asyncio.sleep(60)
    return "waited"
