"""What an extension can do wrong: an actor, a policy and a tool that misbehave when a person's text says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langgraph.prebuilt.tool_node import ToolCallRequest

from core.actor import Actor, Context, Progress
from core.events import Aggregate, Event, RunCompleted, RunRequested
from core.tools import ToolContext, tool

FOREVER = 3600.0


class NastyNoted(Event, frozen=True):
    """An event of an extension."""

    text: str


class Nasty(Actor[RunRequested | RunCompleted]):
    """Handles everybody's runs; misbehaves on those that ask for it."""

    name = "nasty"
    deadline_seconds = 5.0

    async def handle(self, event: RunRequested | RunCompleted, ctx: Context) -> None:
        match how(event) if isinstance(event, RunRequested) else "":
            case "handler raises":
                raise RuntimeError("an extension's handler")
            case "handler exits":
                raise SystemExit(3)
            case "handler hangs":
                await asyncio.sleep(FOREVER)
            case "mistyped event":
                await ctx.append(NastyNoted(text=17))  # type: ignore[arg-type]

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        raise RuntimeError("an extension's timer")

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Any:
        match request.get("how"):
            case "raises":
                raise RuntimeError("an extension's answer")
            case "exits":
                raise SystemExit(3)
            case "hangs":
                await asyncio.sleep(FOREVER)
            case "floods":
                for _ in range(50):
                    await progress("\0" * 1_000_000)
                return "x" * 2_000_000
        return None


def how(event: RunRequested) -> str:
    """The last line that the person said."""
    messages = (event.input or {}).get("messages", [])
    return str(messages[-1].get("content", "")) if messages else ""


class Policy(AgentMiddleware[Any, Any, Any]):
    """Stands around everybody's calls; misbehaves in runs that ask for it."""

    name = "nasty"

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        match str(request.messages[-1].content):
            case "policy raises":
                raise RuntimeError("an extension's policy")
            case "policy exits":
                raise SystemExit(3)
            case "policy hangs":
                await asyncio.sleep(FOREVER)
        return await handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        if request.tool_call["args"].get("how") == "policy raises at the call":
            raise RuntimeError("an extension's policy, at a call")
        return await handler(request)


@tool(effect="pure")
async def nasty(ctx: ToolContext, how: str) -> Any:
    """Misbehave."""
    match how:
        case "raises":
            raise RuntimeError("an extension's tool")
        case "exits":
            raise SystemExit(3)
        case "hangs":
            await asyncio.sleep(FOREVER)
        case "returns no text":
            return "\udcff" * 1000
        case "returns a flood":
            return "ü" * 5_000_000
        case _:
            return await ctx.call("nasty", {"how": how})
