"""Selects the custom agent of a run, and the tools that it may use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from actors.agent.run.options import Options
from core.errors import Invalid
from core.thread.subagents import TOOLS
from core.tools import Tool
from core.user import agents
from core.user.agents import Definition, Roster

SETUP, UPDATE = "setup_agent", "update_agent"
BOOTSTRAP_TOOLS = (SETUP, "read_file")
"""The tools of the agent that makes agents: `read_file` reads the skill about it."""

MEMORY_TOOLS = ("remember", "recall")
MOST_CHARACTERS = 100_000


def find(roster: Roster, options: Options) -> Definition | None:
    """Returns the user's agent for a run with these options; None for the default agent, and for bootstrap.

    Raises `Invalid` for a malformed name, and `NotFound`.
    """
    if options.agent is None or options.bootstrap:
        return None
    return agents.known(roster, agents.valid_name(options.agent))


def default_soul(home: Path) -> str:
    """Returns the soul of the default agent: `SOUL.md` in the data directory, as in DeerFlow, or "".

    Blocks: call it in a thread. Raises `Invalid` if the file exists and cannot be read.
    """
    try:
        return (home / "SOUL.md").read_text(errors="replace")[:MOST_CHARACTERS]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise Invalid(f"SOUL.md in the data directory cannot be read: {error.strerror}") from None


def allowed(tools: Sequence[Tool], options: Options, agent: Definition | None, *, memory: bool = False) -> list[Tool]:
    """Returns the tools of a run: those of the agent's groups, and those without a group.

    `setup_agent` is only for bootstrap, `update_agent` only for custom agents, `task` and `tasks` not for
    runs without subagents. `memory` allows the tools of the memory.
    """
    if options.bootstrap:
        return [tool for tool in tools if tool.name in BOOTSTRAP_TOOLS]
    tools = [tool for tool in tools if memory or tool.name not in MEMORY_TOOLS]
    groups = None if agent is None else agent.tool_groups
    grouped = [tool for tool in tools if groups is None or tool.group is None or tool.group in groups]
    refused = {SETUP} | ({UPDATE} if agent is None else set()) | (TOOLS if options.subagents is False else set())
    return [tool for tool in grouped if tool.name not in refused]
