"""The parts of an agent: its model, tools, prompt and policies. The same for all runs of a setup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from itertools import chain as chained

from anyio import to_thread
from cachetools import LRUCache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langsmith.utils import tracing_is_enabled

from actors.agent.loop.graph import Graph, compiled, walk
from actors.agent.loop.rounds import Rounds
from actors.agent.run.attempt import Attempt, Middlewares

KEPT = 32


class Agent:
    """An agent. Its runs are rounds (`rounds.py`), or go through a graph where hooks or traces need one, which is
    compiled when the first does.
    """

    def __init__(self, model: BaseChatModel, tools: Sequence[BaseTool], prompt: str, middlewares: Middlewares) -> None:
        """`middlewares`: those that hooks are taken from, and last the chain of all policies."""
        self._parts = model, tools, prompt, middlewares
        self._hooked = len(middlewares) > 1
        offered = {
            tool.name: tool for tool in (*chained.from_iterable(getattr(m, "tools", ()) for m in middlewares), *tools)
        }
        self._rounds = Rounds(model, [*offered.values()], SystemMessage(prompt), middlewares[-1])
        self._graph: Graph | None = None
        self._compiling = asyncio.Lock()

    async def run(self, attempt: Attempt, traced: RunnableConfig) -> None:
        """Does a run from the folded state on. `traced` is the part of an invocation's configuration that traces it."""
        if self._hooked or traced or tracing_is_enabled():
            await walk(await self._compiled(), attempt, traced)
        else:
            await self._rounds.run(attempt)

    async def _compiled(self) -> Graph:
        async with self._compiling:
            if self._graph is None:
                self._graph = await to_thread.run_sync(compiled, *self._parts)
        return self._graph


class Agents:
    """A cache of agents by their parts, at most `KEPT`."""

    def __init__(self) -> None:
        self._agents: LRUCache[Hashable, tuple[Agent, Callable[[], Agent]]] = LRUCache(KEPT)
        """Keys contain ids of parts; what made the agents keeps those parts alive."""

    def get(self, key: Hashable, make: Callable[[], Agent]) -> Agent:
        """Returns the agent of a key, made on a miss. Equal keys mean the same parts."""
        if key not in self._agents:
            self._agents[key] = make(), make
        return self._agents[key][0]
