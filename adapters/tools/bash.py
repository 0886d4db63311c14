"""Tool that runs a command in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import Invalid
from core.tools import Result, ToolContext, tool


@tool(effect="idempotent", group="bash")
async def bash(ctx: ToolContext, command: str, background: bool = False) -> Any:
    """Run a bash command in the sandbox; it starts in /mnt/user-data/workspace.

    - Use `python3` to run Python code. Prefer absolute paths under /mnt/user-data.
    - Put finished results into /mnt/user-data/outputs.
    - The command and everything it started is ended when it returns or after ten minutes.
    - With `background` it runs on, an hour at most, and you get an id at once: for servers and long work. Later
      commands reach its ports by localhost. Read its output with bash_output, end it with bash_kill.
    - /tmp is shared by your commands, and may be emptied after a pause of some minutes. `cd` and variables last for one
      command.

    Args:
        command: The bash command to run.
        background: Run it in the background.
    """
    request = {
        "op": "start" if background else "exec",
        "user": ctx.user,
        "thread": ctx.thread,
        "run": ctx.run,
        "call_id": ctx.call_id,
    }
    if ctx.channel_user:
        request["channel_user"] = ctx.channel_user
    response = await ctx.call("sandbox", request | {"command": command, "detailed": True})
    if not isinstance(response, Mapping):
        return response  # of a command in the background, or of a server of an earlier version
    if "error" in response:
        raise Invalid(response["error"])
    return Result(response["text"], exit_code=response["exit_code"])
