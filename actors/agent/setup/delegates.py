"""The types of subagents: those of the configuration, and the custom agents of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from core.config.settings import Config
from core.config.subagents import INHERIT, SubagentOverride
from core.errors import Invalid
from core.tools import Tool
from core.user.agents import Definition, Roster

NEVER = frozenset(("ask_clarification", "present_files", "send_message", "setup_agent", "update_agent"))
"""Tools that speak to the person, or for the agent: no subagent has them."""
BASH, FILES = "bash", ("bash", "bash_kill", "bash_output", "ls", "read_file", "write_file", "str_replace", "edit_files")
BASH_OFF = "the subagent 'bash' is off, because commands would run on the host (sandbox.allow_host_bash)"

GENERAL = """\
You are a subagent that carries out one task of several steps: you explore, act, and check what came of it, with all \
tools that you have.\
"""
COMMANDS = """\
You are a subagent that carries out one task on the command line: you run commands one by one or together, read what \
they print, and deal with errors. Say of long output what matters.\
"""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A type of subagents. `tools`: None for all that the caller has."""

    name: str
    description: str
    prompt: str
    tools: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()
    skills: tuple[str, ...] | None = None
    """The only skills that it has, whose texts are in its prompt. None: those that its caller has."""
    model: str = INHERIT
    max_turns: int
    seconds: float
    agent: str | None = None
    """The custom agent that it is."""

    def permitted(self, tools: Sequence[Tool]) -> list[Tool]:
        """Returns its tools among those of its caller."""
        denied = NEVER.union(self.denied)
        return [t for t in tools if t.name not in denied and (self.tools is None or t.name in self.tools)]


def roles(config: Config, roster: Roster, agent: Definition | None) -> dict[str, Role]:
    """Returns the types by name for a run of this agent. A custom agent with tool groups of its own must not get
    others by way of another custom agent.
    """
    known = {name: _changed(role, config.subagents.agents.get(name)) for name, role in _configured(config).items()}
    if config.agents_api.enabled and (agent is None or agent.tool_groups is None):
        for name, definition in roster.agents.items():
            known.setdefault(name, _of_agent(config, definition))
    if not allows_commands(config):
        known.pop(BASH, None)
    return known


def role_of(config: Config, roster: Roster, agent: Definition | None, name: str) -> Role:
    """Returns a type by its name. Raises `Invalid` with the texts of the contract (runtime §8)."""
    known = roles(config, roster, agent)
    if name == BASH and name not in known:
        raise Invalid(BASH_OFF)
    if name not in known:
        raise Invalid(f"Unknown subagent type '{name}'. Available: {', '.join(known)}")
    return known[name]


def setting_of(config: Config, role: Role, field: str) -> str:
    """Returns the key of the configuration that has a limit of a type: `max_turns` or `timeout_seconds`."""
    section = config.subagents
    if role.agent is None and getattr(section.agents.get(role.name), field, None) is not None:
        return f"subagents.agents.{role.name}.{field}"
    if role.agent is None and role.name in section.custom_agents:
        return f"subagents.custom_agents.{role.name}.{field}"
    return f"subagents.{field}"


def allows_commands(config: Config) -> bool:
    return config.sandbox.provider != "host" or config.sandbox.allow_host_bash


def _configured(config: Config) -> Mapping[str, Role]:
    settings = config.subagents
    built_in = [
        Role(
            name="general-purpose",
            description="research and work of several steps, with all tools; when details would only fill your context",
            prompt=GENERAL,
            max_turns=settings.max_turns,
            seconds=settings.timeout_seconds,
        ),
        Role(
            name=BASH,
            description="a series of commands, such as builds, tests and git, whose output you need not see",
            prompt=COMMANDS,
            tools=FILES,
            max_turns=settings.max_turns,
            seconds=settings.timeout_seconds,
        ),
    ]
    custom = [
        Role(
            name=name,
            description=entry.description,
            prompt=entry.system_prompt,
            tools=entry.tools,
            denied=entry.disallowed_tools,
            skills=entry.skills,
            model=entry.model,
            max_turns=entry.max_turns,
            seconds=entry.timeout_seconds,
        )
        for name, entry in settings.custom_agents.items()
    ]
    return {role.name: role for role in [*built_in, *custom]}


def _changed(role: Role, override: SubagentOverride | None) -> Role:
    if override is None:
        return role
    return msgspec.structs.replace(
        role,
        skills=role.skills if override.skills is None else override.skills,
        model=override.model or role.model,
        max_turns=override.max_turns or role.max_turns,
        seconds=override.timeout_seconds or role.seconds,
    )


def _of_agent(config: Config, definition: Definition) -> Role:
    settings = config.subagents
    return Role(
        name=definition.name,
        description=definition.description or f"the agent {definition.name} of this person",
        prompt=(definition.soul or "").strip() or GENERAL,
        skills=None if definition.skills is None else tuple(definition.skills),
        model=definition.model or INHERIT,
        max_turns=settings.max_turns,
        seconds=settings.timeout_seconds,
        agent=definition.name,
    )
