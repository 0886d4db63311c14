"""Tool that runs a command in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import Invalid
from core.tools import Result, ToolContext, tool


@tool(effect="idempotent", group="bash")
async def bash(ctx: ToolContext, description: str, command: str) -> Any:
    """Run a bash command in the sandbox; it starts in /mnt/user-data/workspace.

    - Use `python3` to run Python code. Prefer absolute paths under /mnt/user-data.
    - Put finished results into /mnt/user-data/outputs.
    - The command and everything it started is ended when it returns or after ten minutes.

    Args:
        description: In short words, why you run this command. ALWAYS PROVIDE THIS PARAMETER FIRST.
        command: The bash command to run.
    """
    request = {"op": "exec", "user": ctx.user, "thread": ctx.thread, "run": ctx.run, "call_id": ctx.call_id}
    response = await ctx.call("sandbox", request | {"command": command, "detailed": True})
    if not isinstance(response, Mapping):
        return response  # of a server of an earlier version
    if "error" in response:
        raise Invalid(response["error"])
    return Result(response["text"], exit_code=response["exit_code"])
