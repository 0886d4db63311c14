"""The agent's loop as a graph of LangChain's `create_agent`: for middlewares whose hooks change the graph's state, and
for traces, whose spans nest in those of a graph. Other runs do without it (`rounds.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any

import langsmith
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.channels import UntrackedValue
from langgraph.errors import GraphRecursionError
from langgraph.graph.state import CompiledStateGraph
from langsmith.utils import tracing_is_enabled

from actors.agent.loop.recorder import adopt
from actors.agent.run.attempt import Attempt, Middlewares, VisibleFailure
from core.thread.values import unanswered

BACKSTOP = 10_000_000
"""Limit of the graph's steps. Model calls are counted by a policy, so only hooks that jump for ever reach it."""


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


def compiled(model: BaseChatModel, tools: Sequence[BaseTool], prompt: str, middlewares: Middlewares) -> Graph:
    """Compiles the graph. Its tools are those of the middlewares, then the others."""
    graph: Graph = create_agent(
        model, tools=list(tools), system_prompt=prompt, middleware=middlewares, context_schema=Attempt
    )
    return graph


async def walk(graph: Graph, attempt: Attempt, traced: RunnableConfig) -> None:
    """Does a run from the folded state on. `traced` is the part of the configuration that traces it.

    Raises `VisibleFailure` if hooks lead round without end.
    """
    attempt.untracked = _untracked(graph)
    seed = {name: value for name, value in attempt.state.values.items() if name in graph.channels}
    seed["messages"] = _seed(attempt)
    try:
        final = await graph.ainvoke(seed, config={"recursion_limit": BACKSTOP, **traced}, context=attempt)
    except GraphRecursionError as error:
        raise _endless() from error
    if attempt.config.middlewares and not attempt.questions:
        await adopt(attempt, final)


def _untracked(graph: Graph) -> frozenset[str]:
    """Returns the fields of an agent's state that no checkpoint contains."""
    return frozenset(name for name, channel in graph.channels.items() if isinstance(channel, UntrackedValue))


def _seed(attempt: Attempt) -> list[BaseMessage]:
    """Returns the messages to start from, without an answer with open calls: the first model call repeats it."""
    messages = attempt.state.messages
    if unanswered(messages):
        cut = max(n for n, message in enumerate(messages) if message["type"] == "ai")
        messages = messages[:cut]
    return attempt.cache.load(attempt.journal.thread_id, messages)


def _endless() -> VisibleFailure:
    text = "Stopped: a middleware of the configuration led the agent round without end."
    return VisibleFailure(text, error="TooManySteps", apology=text, reason="too_many_steps")
