"""The tools of a run. Equal runs have the same objects, so that what is made of them is made once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from actors.agent.setup import skills as setup_skills
from actors.agent.setup.delegates import Role
from core.config.load import Config
from core.mcp.tools import Offered, prompt_lines
from core.skills.selection import Selection
from core.tools import Tool

KEPT = 64


@dataclass(frozen=True, slots=True, eq=False)
class RunTools:
    """The tools of a run, those that the model must look up, and the lines by which the prompt lists these."""

    every: Sequence[Tool]
    deferred: Sequence[Tool]
    listed: Sequence[str]


class Toolboxes:
    """A cache of the tools of runs by what they depend on, at most `KEPT`."""

    def __init__(self) -> None:
        self._run_tools: LRUCache[Hashable, tuple[object, RunTools]] = LRUCache(KEPT)
        """Keys contain ids of parts, which are kept beside the value."""

    def of(
        self,
        built_in: Sequence[Tool],
        mcp: Offered,
        servers: tuple[str, ...] | None,
        role: Role | None,
        skills: Selection,
        config: Config,
    ) -> RunTools:
        """Returns the tools of a run: the built-in ones and those of the MCP servers (None: of all), less those that
        its role and its skills do not permit.
        """
        searches = len(skills.skills) > config.skills.list_limit
        key = (id(config), tuple(map(id, built_in)), id(mcp.tools), servers, role, skills.tools, searches)
        if key not in self._run_tools:
            parts = (config, tuple(built_in), mcp)
            self._run_tools[key] = parts, _run_tools(built_in, mcp.only(servers), role, skills, config)
        return self._run_tools[key][1]


def _run_tools(
    built_in: Sequence[Tool], mcp: Offered, role: Role | None, skills: Selection, config: Config
) -> RunTools:
    tools = [*built_in, *mcp.tools]
    tools = tools if role is None else role.permitted(tools)
    tools = setup_skills.permitted(tools, skills, config, role)
    searched = config.tool_search.enabled
    deferred = [tool for tool in tools if _is_deferred(tool, tool.name in mcp.servers, searched=searched)]
    return RunTools(tuple(tools), tuple(deferred), prompt_lines(deferred, mcp.servers))


def _is_deferred(tool: Tool, of_server: bool, *, searched: bool) -> bool:
    """Tells whether a model has to look a tool up: with `tool_search` those of all MCP servers, as in DeerFlow."""
    return (tool.deferred or of_server) if searched else (tool.deferred and of_server)
