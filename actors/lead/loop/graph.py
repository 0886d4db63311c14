"""Builds the agent: LangChain's `create_agent` around a model, our tools, and the policies; compiled once per
combination.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextvars import Context
from functools import partial
from typing import Any

import langsmith
from anyio import to_thread
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.channels import UntrackedValue
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from langsmith.utils import tracing_is_enabled

from actors.lead.loop.effects import tool_context
from actors.lead.loop.turn import Turn
from core.errors import contained
from core.tools import Result, Tool


async def _trace(
    elsewhere: Callable[..., Awaitable[Any]], context: Context, step: Callable[..., Any], *arguments: Any, **named: Any
) -> Any:
    """Begins or ends LangSmith's span around a policy's hook: in a thread if tracing is on, else in place.

    LangSmith's default always uses a thread, twice for each hook, which costs more than the hook.
    """
    if tracing_is_enabled():
        return await elsewhere(context, step, *arguments, **named)
    return context.run(step, *arguments, **named)


langsmith.set_runtime_overrides(aio_to_thread=_trace)

Agent = CompiledStateGraph[Any, Turn, Any, Any]
Chain = Callable[[], Sequence[AgentMiddleware[Any, Turn, Any]]]
KEPT = 32


def as_langchain(tool: Tool) -> BaseTool:
    """Returns the LangChain tool of a tool.

    Its arguments are the same without the context, which comes from `tool_context`.
    """

    async def run(**arguments: Any) -> Any:
        context = tool_context.get()
        with contained():
            result = await tool.function(context, **arguments)
        return _command(result, context.ref.id, tool.name) if isinstance(result, Result) else result

    signature = inspect.signature(tool.function, eval_str=True)
    visible = [p for n, p in enumerate(signature.parameters.values()) if n > 0]
    run.__signature__ = signature.replace(parameters=visible)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in visible} | {"return": signature.return_annotation}
    run.__name__ = tool.name
    return StructuredTool.from_function(coroutine=run, name=tool.name, description=tool.description)


def _command(result: Result, call_id: str, name: str) -> Command[Any]:
    message = ToolMessage(
        result.text,
        tool_call_id=call_id,
        name=name,
        artifact=result.artifact,
        additional_kwargs=dict(result.fields),
        status="error" if result.failed else "success",
    )
    return Command(update={**result.update, "messages": [message]})


def untracked(agent: Agent) -> frozenset[str]:
    """Returns the fields of an agent's state that no checkpoint contains."""
    return frozenset(name for name, channel in agent.channels.items() if isinstance(channel, UntrackedValue))


class CompiledAgents:
    """A cache of compiled agents by their parts, at most `KEPT`."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[Hashable, tuple[Agent, Chain]] = OrderedDict()
        """Keys contain ids of parts; the chains keep those parts alive."""
        self._compiling = asyncio.Lock()

    async def get(
        self, key: Hashable, model: BaseChatModel, tools: Sequence[BaseTool], prompt: str, chain: Chain
    ) -> Agent:
        """Returns the agent of a key; compiles it in a thread on a miss. Equal keys mean the same parts."""
        if key not in self._compiled:
            async with self._compiling:
                if key not in self._compiled:
                    parts: dict[str, Any] = {"tools": list(tools), "system_prompt": prompt, "middleware": chain()}
                    compiling = partial(create_agent, model, **parts, context_schema=Turn)
                    self._compiled[key] = await to_thread.run_sync(compiling), chain
        agent, _ = self._compiled[key]
        self._compiled.move_to_end(key)
        while len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)
        return agent
