"""Builds the agent: LangChain's `create_agent` around a model, our tools, and the policies; compiled once per
combination.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any

import langsmith
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, TodoListMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph.state import CompiledStateGraph
from langsmith.utils import tracing_is_enabled

from actors.lead.recorder import Recorder, Turn, tool_context
from core.tools import Tool


async def _trace(
    elsewhere: Callable[..., Awaitable[Any]], context: Context, step: Callable[..., Any], *arguments: Any, **named: Any
) -> Any:
    """LangSmith's preparation and end of a span around a policy's hook: in a thread if there is tracing, else here.

    By default it always switches to a thread, twice for each hook, which costs more than the hook.
    """
    if tracing_is_enabled():
        return await elsewhere(context, step, *arguments, **named)
    return context.run(step, *arguments, **named)


langsmith.set_runtime_overrides(aio_to_thread=_trace)

Agent = CompiledStateGraph[Any, Turn, Any, Any]
KEPT = 32


def as_langchain(tool: Tool) -> BaseTool:
    """The LangChain tool of one of ours: the same arguments without the context, which comes from the call being
    made.
    """

    async def run(**arguments: Any) -> Any:
        return await tool.function(tool_context.get(), **arguments)

    signature = inspect.signature(tool.function, eval_str=True)
    visible = [p for n, p in enumerate(signature.parameters.values()) if n > 0]
    run.__signature__ = signature.replace(parameters=visible)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in visible} | {"return": signature.return_annotation}
    run.__name__ = tool.name
    return StructuredTool.from_function(coroutine=run, name=tool.name, description=tool.description)


class Agents:
    """Compiled agents by what they are made of."""

    def __init__(self, tools: Sequence[BaseTool]) -> None:
        self._tools = list(tools)
        self._compiled: dict[tuple[int, str, bool], tuple[BaseChatModel, Agent]] = {}

    def get(self, model: BaseChatModel, prompt: str, *, plan_mode: bool) -> Agent:
        key = (id(model), prompt, plan_mode)
        if key not in self._compiled:
            if len(self._compiled) >= KEPT:
                self._compiled.clear()
            policies: list[AgentMiddleware[Any, Any, Any]] = [TodoListMiddleware()] if plan_mode else []
            agent = create_agent(
                model,
                tools=self._tools,
                system_prompt=prompt,
                middleware=[*policies, Recorder()],
                context_schema=Turn,
            )
            self._compiled[key] = (model, agent)
        return self._compiled[key][1]
