"""Goals of threads in a conversation: the runs that follow by themselves, and the line of a goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio

from channels.client.aio import AsyncSikaClient
from channels.terminal.text import one_line

JUDGED_SECONDS = 360.0
"""Deadline of the judgement of a run: more than `goals.timeout_seconds` can be."""
LOOK_SECONDS = 0.5
"""Pause between two looks whether a run was judged."""


async def continuation(client: AsyncSikaClient, thread: str, last: str) -> str | None:
    """Returns the run that follows the `last` one for the goal, once it is requested; None if none does."""
    with anyio.move_on_after(JUDGED_SECONDS):
        while (goal := await client.get_goal(thread)) and goal["status"] == "active":
            [newest] = await client.list_runs(thread, 1)
            if newest["run_id"] != last:
                return str(newest["run_id"])
            await anyio.sleep(LOOK_SECONDS)
    return None


def goal_line(goal: Mapping[str, Any] | None) -> str:
    """Returns the line of a goal, or of none."""
    if goal is None:
        return "no goal, or it is reached"
    progress = f"{goal['continuation_count']} of {goal['max_continuations']} continuations"
    reason = f": {one_line(str(goal['pause_reason']), 300)}" if goal.get("pause_reason") else ""
    return f"goal, {goal['status']}{reason} ({progress}): {one_line(str(goal['objective']), 200)}"
