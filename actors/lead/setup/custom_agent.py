"""The custom agent that a run is done by, and the tools that it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from actors.lead.setup.options import Options
from core.errors import Invalid
from core.tools import Tool
from core.user import agents
from core.user.agents import Definition, Roster

SETUP, UPDATE = "setup_agent", "update_agent"
BOOTSTRAP_TOOLS = (SETUP, "read_file")
"""All that an agent needs that makes others: `read_file` for the skill about it."""

MOST_CHARACTERS = 100_000


def find(roster: Roster, wanted: Options) -> Definition | None:
    """The user's agent that does a run with these options; None for the agent without a name, and for bootstrap.

    Raises `Invalid`, and `NotFound`.
    """
    if wanted.agent is None or wanted.bootstrap:
        return None
    return agents.known(roster, agents.checked(wanted.agent))


def default_soul(home: Path) -> str:
    """The soul of the agent without a name: `SOUL.md` in the data directory (contract runtime §14), or none.

    Reads a file, so not for the event loop. Raises `Invalid` if it is there and cannot be read.
    """
    try:
        return (home / "SOUL.md").read_text(errors="replace")[:MOST_CHARACTERS]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise Invalid(f"SOUL.md in the data directory cannot be read: {error.strerror}") from None


def allowed(tools: Sequence[Tool], wanted: Options, agent: Definition | None) -> list[Tool]:
    """The tools of a run: those of the agent's groups, and of no group; what changes agents only where it belongs."""
    if wanted.bootstrap:
        return [tool for tool in tools if tool.name in BOOTSTRAP_TOOLS]
    groups = None if agent is None else agent.tool_groups
    kept = [tool for tool in tools if groups is None or tool.group is None or tool.group in groups]
    return [tool for tool in kept if tool.name != SETUP and (agent is not None or tool.name != UPDATE)]
