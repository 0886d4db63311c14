"""A tool of the tests that must never be run twice: signs a ledger outside of the sandbox."""

from __future__ import annotations

import os
from pathlib import Path

from core.tools import ToolContext, tool


@tool(effect="once")
async def sign(ctx: ToolContext, note: str) -> str:
    """Sign the ledger."""
    _append(f"{ctx.call_id}\n")
    return f"signed {note}"


def _append(line: str) -> None:
    with Path(os.environ["SIKA_TEST_LEDGER"]).open("a") as file:
        file.write(line)
