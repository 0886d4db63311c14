"""Tool that gives a piece of work to a subagent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.events import SubagentCompleted
from core.thread.subagents import shown
from core.tools import Result, ToolContext, tool


@tool(effect="idempotent")
async def task(ctx: ToolContext, description: str, prompt: str, subagent_type: str) -> Result:
    """Give a piece of work to a subagent, which does it on its own and reports back to you.

    - It knows only the prompt, not this conversation. It works with the same files as you.
    - Use it for work of many steps whose details you need not see, and for parts that can be done at the same time:
      then make all calls in one response.
    - Do not use it for what one or two tool calls of yours can do, or for what needs questions to the person.

    Args:
        description: The work in three to five words, for the person. ALWAYS PROVIDE THIS PARAMETER FIRST.
        prompt: The whole task: what is to be done, what is known already, and what the report must contain.
        subagent_type: The type of the subagent.
    """
    return await answered(
        ctx, {"op": "run", "task": {"description": description, "prompt": prompt, "name": subagent_type}}
    )


async def answered(ctx: ToolContext, question: Mapping[str, Any]) -> Result:
    """Asks the subagents until the call has an outcome. Returns its text, and its fields for clients."""
    about = {"thread": ctx.thread, "user": ctx.user, "caller": ctx.subagent, "run": ctx.run, "call_id": ctx.call_id}
    while (response := await ctx.call("subagents", {**question, **about})) is None:
        pass  # still at work: ask again
    event = msgspec.convert(response, SubagentCompleted)
    text, fields = shown(event)
    return Result(text, fields=fields, failed=event.status != "completed")
