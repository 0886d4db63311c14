"""Tool that gives a piece of work to a subagent."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec

from core.bus.rpc import Silent
from core.errors import Unavailable
from core.events import SubagentCompleted
from core.thread.subagents import tool_message_of
from core.tools import Result, ToolContext, tool

PATIENCE_SECONDS = 60.0
"""Time for which the subagents may be out of reach, as the log is. A subagent works on meanwhile."""
PAUSE_SECONDS = 0.5
LABEL_CHARACTERS = 60


@tool(effect="idempotent")
async def task(ctx: ToolContext, prompt: str, subagent_type: str, description: str = "") -> Result:
    """Give a piece of work to a subagent, which does it on its own and reports back to you.

    - It knows only the prompt, not this conversation. It works with the same files as you.
    - Use it for work of many steps whose details you need not see, and for parts that can be done at the same time:
      then make all calls in one response.
    - Do not use it for what one or two tool calls of yours can do, or for what needs questions to the person.

    Args:
        prompt: The whole task: what is to be done, what is known already, and what the report must contain.
        subagent_type: The type of the subagent.
        description: The work in three to five words, for the person.
    """
    label = description.strip() or label_of(prompt)
    return await answered(ctx, {"op": "run", "task": {"description": label, "prompt": prompt, "name": subagent_type}})


def label_of(prompt: str) -> str:
    """Returns the first words of a prompt, as a label for the person."""
    return textwrap.shorten(prompt, LABEL_CHARACTERS, placeholder="…")


async def answered(ctx: ToolContext, question: Mapping[str, Any]) -> Result:
    """Asks the subagents until the call has an outcome, or the run no time any more: then for what was done until then.
    Returns its text, and its fields for clients. Raises `Unavailable` if they are out of reach for `PATIENCE_SECONDS`.
    """
    about = {"thread": ctx.thread, "user": ctx.user, "caller": ctx.subagent, "run": ctx.run, "call_id": ctx.call_id}
    try:
        async with asyncio.timeout(ctx.seconds_left) as deadline:
            response = await _outcome(ctx, {**question, **about, "seconds": ctx.seconds_left})
    except TimeoutError:
        if not deadline.expired():
            raise
        response = await _outcome(ctx, {"op": "late", **about})
    event = msgspec.convert(response, SubagentCompleted)
    text, fields = tool_message_of(event)
    return Result(text, fields=fields, failed=event.status != "completed")


async def _outcome(ctx: ToolContext, question: Mapping[str, Any]) -> Any:
    """Asks again while the answer is None: the subagent is at work. Raises `Unavailable`."""
    response, clock = None, asyncio.get_running_loop().time
    until = clock() + PATIENCE_SECONDS
    while response is None:
        try:
            response = await ctx.call("subagents", question)
            until = clock() + PATIENCE_SECONDS
        except Silent:
            raise
        except Unavailable:
            if clock() > until:
                raise
            await asyncio.sleep(PAUSE_SECONDS)
    return response
