"""Saves messages that are shortened to files of their thread."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from actors.agent.messages.content import text_by_line
from actors.agent.run.attempt import Attempt, no_progress
from core.control import sendable
from core.errors import Internal, Invalid, Unavailable
from core.events import Message
from core.ports.sandbox import result_path

log = structlog.get_logger("sika.agent")

PIECE = 100_000
"""Characters in one write: they fit a message of the bus even if all are escaped."""


async def save_messages(attempt: Attempt, messages: Sequence[Message]) -> dict[str, str]:
    """Writes the messages of people to files. Returns the paths by id; a message that cannot be written has none.

    A result of a tool lies in a file already, or its call can be made again.
    """
    paths: dict[str, str] = {}
    for message in messages:
        identity = str(message.get("id"))
        if message["type"] == "human":
            try:
                paths[identity] = await _write(attempt, identity, text_by_line(message.get("content") or ""))
            except (Internal, Invalid, Unavailable) as error:
                log.warning("message not saved", message=identity, error=str(error))
    return paths


async def _write(attempt: Attempt, identity: str, text: str) -> str:
    """Writes a text of any length, and returns its path. Repeating it changes nothing."""
    path = result_path("message", identity)
    whole = sendable(text)
    common = {"op": "write", "user": attempt.user, "thread": attempt.thread, "run": attempt.run, "path": path}
    for begin in range(0, len(whole), PIECE):
        piece = {"call_id": f"message-{identity}-{begin}", "content": whole[begin : begin + PIECE], "append": begin > 0}
        await attempt.call("sandbox", common | piece, no_progress)
    return path
