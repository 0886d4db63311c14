"""The tool for other agents: there only if agents are configured, and with their names in its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from core.config.acp import AcpAgent
from core.config.load import Config
from core.tools import Tool

TOOL = "invoke_acp_agent"


def offered(tools: Sequence[Tool], config: Config) -> list[Tool]:
    """Returns the tools; the one for other agents describes them. Equal settings make the same object."""
    texts = described(config.acp_agents)
    return [_described(tool, texts) if tool.name == TOOL else tool for tool in tools if texts or tool.name != TOOL]


def described(agents: Mapping[str, AcpAgent]) -> str:
    """Returns the list of agents for the model, in the order of their names."""
    return "\n".join(f"- {name}: {agent.description}".rstrip(": ") for name, agent in sorted(agents.items()))


@lru_cache(maxsize=64)
def _described(tool: Tool, texts: str) -> Tool:
    return replace(tool, description=f"{tool.description}\n\nAgents:\n{texts}")
