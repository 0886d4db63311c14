"""The tools of runs as the loop needs them, converted once: models are bound to the same objects again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cachetools import LRUCache
from langchain_core.tools import BaseTool

from actors.agent.loop.described import as_langchain
from core.thread.earlier import SEARCH
from core.tools import Effect, Tool

KEPT_TOOLS, KEPT_SETS = 1024, 64
"""Sizes of the caches of tools, and of the sets of them that runs have. Each change of the configuration makes new
ones."""
POLICIES_EFFECTS: dict[str, Effect] = {"write_todos": "pure", "tool_search": "pure", SEARCH: "pure"}
"""Effects of the tools that policies add."""


class LangChainTools(NamedTuple):
    """The tools of a run as the loop needs them. The reference to `source` reserves its id."""

    source: Sequence[Tool]
    tools: Sequence[BaseTool]
    effects: Mapping[str, Effect]


class Conversions:
    """The conversions of tools and of sets of tools, the ones used last."""

    def __init__(self) -> None:
        self._tools: LRUCache[int, tuple[Tool, BaseTool]] = LRUCache(KEPT_TOOLS)
        self._sets: LRUCache[int, LangChainTools] = LRUCache(KEPT_SETS)

    def of(self, tools: Sequence[Tool]) -> LangChainTools:
        """Returns what the loop needs of a run's tools, the same for the same object."""
        known = self._sets.get(id(tools))
        if known is None:
            effects = {tool.name: tool.effect for tool in tools} | POLICIES_EFFECTS
            known = self._sets[id(tools)] = LangChainTools(tools, [*map(self.langchain, tools)], effects)
        return known

    def langchain(self, tool: Tool) -> BaseTool:
        """Returns the same object for the same tool, so that models are bound to their tools once."""
        if id(tool) not in self._tools:
            self._tools[id(tool)] = (tool, as_langchain(tool))  # a reference to the tool reserves its id
        return self._tools[id(tool)][1]
