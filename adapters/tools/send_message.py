"""Tool that says something in the chat of the conversation before the answer is done."""

from __future__ import annotations

from core.tools import ToolContext, tool


@tool(effect="idempotent")
async def send_message(ctx: ToolContext, text: str) -> str:
    """Send a message to the person's chat at once, while you go on working.

    Use it seldom: for a first result of long work, or for something that they should know now. Your answer is sent by
    itself when you are done: do not send it with this tool, and do not repeat in it what you have sent.

    Args:
        text: The message, in Markdown.
    """
    request = {"op": "send", "thread": ctx.thread, "run": ctx.run, "call": ctx.call_id, "text": text}
    return str(await ctx.call("chat", request))
