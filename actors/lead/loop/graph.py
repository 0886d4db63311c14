"""Builds the agent: LangChain's `create_agent` around a model, our tools, and the policies; compiled once per
combination. The first model call of a run can do without the graph: its machinery costs more than all policies.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from itertools import chain as chained
from typing import Any, cast

import langsmith
from anyio import to_thread
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.channels import UntrackedValue
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command
from langsmith.utils import tracing_is_enabled

from actors.lead.loop.arguments import Arguments
from actors.lead.loop.attempt import Attempt
from actors.lead.loop.effects import tool_context
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

Graph = CompiledStateGraph[Any, Attempt, Any, Any]
Middlewares = Sequence[AgentMiddleware[Any, Attempt, Any]]
Chain = Callable[[], Middlewares]
KEPT = 32
EXIT_CODE = "exit_code"
"""Metadata of a tool's message on its way to the recorder, which makes it a field of the outcome."""


def as_langchain(tool: Tool) -> BaseTool:
    """Returns the LangChain tool of a tool.

    Its arguments are the same without the context, which comes from `tool_context`.
    """
    if tool.schema is not None:
        return Described(name=tool.name, description=tool.description, args_schema=dict(tool.schema), tool=tool)
    arguments = Arguments.of(tool)
    return Described(
        name=tool.name, description=tool.description, args_schema=arguments.schema(), tool=tool, arguments=arguments
    )


class Described(BaseTool):
    """A tool whose arguments a schema describes. They may have any names, also those of LangChain's own arguments."""

    tool: Any
    arguments: Any = None
    """The `Arguments` of a declared tool. None: it gets what is sent."""

    def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (tool_input,), {}

    def _run(self, arguments: Any) -> Any:
        raise NotImplementedError("tools are async")

    async def _arun(self, arguments: Any) -> Any:
        context = tool_context.get()
        sent = arguments if isinstance(arguments, dict) else {}
        values, note = self.arguments.read(sent) if self.arguments is not None else (sent, "")
        with contained():
            result = await self.tool.function(context, **values)
        if isinstance(result, Result):
            return _command(replace(result, text=result.text + note), context.ref.id, self.name)
        return result + note if isinstance(result, str) else result


def _command(result: Result, call_id: str, name: str) -> Command[Any]:
    message = ToolMessage(
        result.text,
        tool_call_id=call_id,
        name=name,
        artifact=result.artifact,
        additional_kwargs=dict(result.fields),
        status="error" if result.failed else "success",
        response_metadata={} if result.exit_code is None else {EXIT_CODE: result.exit_code},
    )
    return Command(update={**result.update, "messages": [message]})


def untracked(graph: Graph) -> frozenset[str]:
    """Returns the fields of an agent's state that no checkpoint contains."""
    return frozenset(name for name, channel in graph.channels.items() if isinstance(channel, UntrackedValue))


@dataclass(frozen=True, slots=True)
class Agent:
    """A compiled agent, and the parts of its model calls."""

    graph: Graph
    model: BaseChatModel
    tools: Sequence[BaseTool]
    prompt: SystemMessage
    middlewares: Middlewares

    @classmethod
    def compile(cls, model: BaseChatModel, tools: Sequence[BaseTool], prompt: str, middlewares: Middlewares) -> Agent:
        """Compiles the graph. Its tools are those of the middlewares, then the others."""
        graph = create_agent(
            model, tools=list(tools), system_prompt=prompt, middleware=middlewares, context_schema=Attempt
        )
        offered = {
            tool.name: tool for tool in (*chained.from_iterable(getattr(m, "tools", ()) for m in middlewares), *tools)
        }
        return cls(graph, model, list(offered.values()), SystemMessage(prompt), middlewares)

    async def answers(self, attempt: Attempt) -> bool:
        """Makes the first model call without the graph, if nothing but our policies is concerned.

        Returns whether that was all: the answer calls no tools. Else the graph's first call repeats it, as recorded.
        """
        if len(self.middlewares) != 1 or attempt.config.middlewares or tracing_is_enabled():
            return False
        request = ModelRequest(
            model=self.model,
            tools=[*self.tools],
            system_message=self.prompt,
            messages=cast(Any, attempt.conversation()),
            runtime=Runtime(context=attempt),
        )
        response = cast(ModelResponse[Any], await self.middlewares[0].awrap_model_call(request, _no_model))
        answer = response.result[-1]
        return isinstance(answer, AIMessage) and not answer.tool_calls


async def _no_model(request: ModelRequest[Attempt]) -> ModelResponse[Any]:
    raise AssertionError("the innermost policy asks the model")


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
                    agent = await to_thread.run_sync(Agent.compile, model, tools, prompt, chain())
                    self._compiled[key] = agent, chain
        agent, _ = self._compiled[key]
        self._compiled.move_to_end(key)
        while len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)
        return agent
