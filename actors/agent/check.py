"""Checks the tools, middlewares and approval rules of a configuration before any run uses them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import filter as matching

from actors.agent.loop.chain import Ports, arranged, policies
from actors.agent.loop.described import as_langchain
from actors.agent.run.options import Options
from actors.agent.setup.plan import RunSetup
from core.config.load import Config
from core.errors import Invalid
from core.mcp.names import prefix_of
from core.ports.guardrails import Provider
from core.tools import Tool


def check(config: Config, tools: Sequence[Tool], provider: Provider | None) -> set[str]:
    """Returns the names of all tools but those of MCP servers. Raises `Invalid` for tools without a schema, misplaced
    middlewares, and approval rules that match no tool.
    """
    for tool in tools:
        try:
            as_langchain(tool)
        except Exception as error:
            raise Invalid(f"tool {tool.name}: its arguments cannot be described: {error}") from error
    _names_in(_setup(config, tools, everything=False), provider)
    names = _names_in(_setup(config, tools, everything=True), provider)
    for number, rule in enumerate(config.approvals):
        if not matching(names, rule.tool) and not any(of_server(rule.tool, name) for name in config.mcp.servers):
            available = ", ".join(sorted(names))
            raise Invalid(f"approvals[{number}].tool: {rule.tool}: there is no such tool; there are: {available}")
    return names


def of_server(pattern: str, server: str) -> bool:
    """Tells whether a pattern may be for tools of an MCP server, whose names are known when it is listed."""
    prefix = prefix_of(server)
    literal = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return literal.startswith(prefix) or (literal != pattern and prefix.startswith(literal))


def _setup(config: Config, tools: Sequence[Tool], everything: bool) -> RunSetup:
    """Returns the setup of a run with all optional policies, or with none of them."""
    return RunSetup(
        config=config,
        options=Options(subagents=True),
        agent=None,
        model="",
        candidates=(),
        tools=tools,
        deferred=tools if everything and config.tool_search.enabled else (),
        prompt="",
        personal=False,
        todos=everything,
        vision=everything,
        blind=frozenset(),
    )


def _names_in(setup: RunSetup, provider: Provider | None) -> set[str]:
    """Returns the names of the tools of a run and of its policies. Raises `Invalid` if two have the same name."""
    built_in = policies(setup, Ports(guardrails=provider), [as_langchain(tool) for tool in setup.deferred])
    owners = {tool.name: "another tool" for tool in setup.tools}
    for policy in arranged(built_in, setup.config.middlewares):
        for tool in getattr(policy, "tools", ()):
            name = str(getattr(tool, "name", tool))
            if name in owners:
                raise Invalid(f"middlewares: the tool {name} of {policy.name} has the name of {owners[name]}")
            owners[name] = f"that of {policy.name}"
    return {*owners}
