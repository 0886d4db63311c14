"""Tool that runs a command in the sandbox."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from core.errors import Invalid
from core.tools import Result, ToolContext, tool

_BACKGROUND = re.compile(r"[();]*&[();]*")
"""A word of punctuation that starts what is before it in the background."""
_ENDED = "\nNote: what & had started was ended with the command. With background: true it runs on."


@tool(effect="idempotent", group="bash")
async def bash(ctx: ToolContext, command: str, timeout: float | None = None, background: bool = False) -> Any:
    """Run a bash command in the sandbox; it starts in /mnt/user-data/workspace.

    - The command and everything it started is ended when it returns, or when its time is over. With `background` it
      runs on, and you get an id at once: for servers and long work. See bash_output and bash_kill.
    - Commands share /tmp and localhost: a later one reaches the ports of one in the background. `cd` and variables last
      for one command.
    - A long output is cut in the middle, and is whole in a file that is named.
    - Finished results for the person belong into /mnt/user-data/outputs.

    Args:
        command: The bash command.
        timeout: Seconds after which it is stopped; 600 unless you say otherwise, 3500 at most.
        background: Run it in the background, an hour at most.
    """
    request: dict[str, Any] = {
        "op": "start" if background else "exec",
        "user": ctx.user,
        "thread": ctx.thread,
        "run": ctx.run,
        "call_id": ctx.call_id,
    }
    if timeout is not None and not background:
        request["timeout"] = timeout
    if ctx.channel_user:
        request["channel_user"] = ctx.channel_user
    response = await ctx.call("sandbox", request | {"command": command, "detailed": True})
    if not isinstance(response, Mapping):
        return response  # of a command in the background, or of a server of an earlier version
    if "error" in response:
        raise Invalid(response["error"])
    note = _ENDED if leaves_work(command) else ""
    return Result(response["text"] + note, exit_code=response["exit_code"])


def leaves_work(command: str) -> bool:
    """Tells whether a command starts something by `&` and does not wait for it. Of one with a document in it nothing is
    told: an & there is a character of the document.
    """
    if "<<" in command:
        return False
    try:
        words = list(shlex.shlex(command, posix=True, punctuation_chars=True))
    except ValueError:  # quotes that are not closed, as in the text of a document
        return False
    return any(map(_BACKGROUND.fullmatch, words)) and "wait" not in words
