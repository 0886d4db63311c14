"""Plans a run: its agent, models, tools and prompt, from the current configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import anyio.to_thread
import msgspec
from langchain_core.language_models import BaseChatModel

from actors.agent.run import client_tools
from actors.agent.run.options import Options, of_agent, options
from actors.agent.setup import skills as setup_skills
from actors.agent.setup.acp import offered
from actors.agent.setup.custom_agent import allowed, default_soul, find
from actors.agent.setup.delegates import Role, role_of, roles
from actors.agent.setup.environment import Environment
from actors.agent.setup.input import last_text
from actors.agent.setup.prompt import CHANGING, WEB, Mounted, Parts, SkillsInPrompt, build, mounted, parts_of
from actors.agent.setup.tools import Toolboxes
from core.config.load import Config, ConfigSource
from core.errors import Invalid, NotFound
from core.events import FolderAttached, RunRequested
from core.files.paths import PROJECT, WORKSPACE
from core.lifecycle import TARGET
from core.log.repository import Repository
from core.mcp.tools import Catalogue, Offered
from core.skills.library import Library
from core.skills.selection import Selection, Selections
from core.thread.earlier import SEARCH
from core.thread.subagents import TOOLS
from core.tools import Tool
from core.user import agents
from core.user.agent_bundles import shared
from core.user.agents import Definition, Roster

BOOTSTRAP = "bootstrap"
"""The only skill of the agent that makes agents."""
DEMO = "demo"
"""The model without configuration."""
VIEW_IMAGE, SEND_MESSAGE, CLARIFICATION = "view_image", "send_message", "ask_clarification"
WRITE_TODOS = "write_todos"
POLICIES_TOOLS = ("tool_search", WRITE_TODOS, SEARCH)

SHELL = "bash"
COMMANDS = frozenset((SHELL, "bash_output", "bash_kill"))
"""The tools that only run, read and end commands."""

Toolset = Callable[[Config], Sequence[Tool]]
"""Returns the tools that a configuration declares; the same objects for the same configuration."""


class Models(Protocol):
    """Resolves and builds models."""

    def name(self, requested: str | None, /) -> str:
        """Returns the configured name that a request for this name resolves to."""
        ...

    def get(self, name: str, *, thinking: bool, reasoning_effort: str | None) -> BaseChatModel: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """The plan of a run. `deferred` lists the tools that the model must look up before it can call them. Equal runs
    have the same object as `tools`, and as `deferred`.
    """

    config: Config
    options: Options
    agent: Definition | None
    model: str
    candidates: tuple[str, ...]
    """The names of the model and of its fallbacks."""
    tools: Sequence[Tool]
    deferred: Sequence[Tool]
    prompt: str
    personal: bool
    """The prompt holds something of the user: a profile, an agent or skills of their own, what a server told them."""
    todos: bool
    vision: bool
    role: Role | None = None
    """The type of subagent; None for the thread's own agent."""
    skills: Selection = field(default_factory=Selection)
    blind: frozenset[str]
    """Fallbacks that do not see images, where the model does."""
    folders: Mapping[str, str] | None = None
    """The directories of the host beside the workspace, by their virtual paths. None if it changes no files."""
    start: str = WORKSPACE
    """Where relative paths begin."""


class Planner:
    """Plans runs. `home` is the directory of the default agent's soul."""

    def __init__(
        self,
        config: ConfigSource,
        models: Models,
        tools: Toolset,
        rosters: Repository[Roster],
        home: Path,
        skills: Library | None = None,
        mcp: Catalogue | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._environment = environment or Environment()
        self._config = config
        self._models = models
        self._tools = tools
        self._rosters = rosters
        self._home = home
        self._mcp = mcp
        self._skills = skills
        self._toolboxes, self._selections = Toolboxes(), Selections()

    async def plan(
        self,
        request: RunRequested,
        user: str,
        model: str | None = None,
        role: Role | None = None,
        at_least: int | None = None,
        folder: FolderAttached | None = None,
        variables: Collection[str] = (),
    ) -> RunSetup:
        """Plans a run; `model` is the model of its earlier attempts. `at_least`: what was settled up to this sequence
        counts (default: up to now). `folder`: the person's, that the thread works on. `variables`: names of those
        that the person set for its commands. Raises `Invalid` and `NotFound`.
        """
        config, requested = self._config.current(), options(request)
        profiled = config.agents_api.enabled
        profiles = requested.agent or profiled
        roster = await self._rosters.load(user, at_least=at_least) if profiles else Roster()
        agent = await self._agent(roster, requested)
        requested = of_agent(requested, agent)
        name = model or self._name(config, requested.model or (agent.model if agent else None))
        settings = {entry.name: entry for entry in config.models}
        candidates = tuple(dict.fromkeys([name, *(n for n in config.model_roles.get("lead", ()) if n in settings)]))
        vision = name in settings and settings[name].supports_vision
        there = offered(self._tools(config), config)
        permitted = allowed(there, requested, agent, memory=config.memory.tools and role is None)
        chat = request.origin is not None and TARGET in request.metadata
        refused = {VIEW_IMAGE} if not vision else set()
        refused |= {SEND_MESSAGE} if not chat else set()
        refused |= {CLARIFICATION} if requested.unattended else set()
        refused |= set() if self._environment.allows_commands(config.sandbox) else COMMANDS
        servers = None if agent is None or agent.mcp_servers is None else tuple(agent.mcp_servers)
        mcp = await self._of_servers(config, requested, user, at_least)
        skills = await self._selected(request, user, requested, agent, role, at_least)
        built_in = [tool for tool in permitted if tool.name not in refused]
        tools = self._toolboxes.of(built_in, mcp, servers, role, skills, config)
        if requested.client_tools and role is None and not requested.unattended:
            taken = {*POLICIES_TOOLS, *(tool.name for tool in tools.every)}
            tools = replace(tools, every=(*tools.every, *client_tools.as_tools(requested.client_tools, taken)))
        delegates = roles(config, roster, agent) if any(tool.name in TOOLS for tool in built_in) else {}
        names = frozenset(tool.name for tool in tools.every)
        soul, mounts, block = await anyio.to_thread.run_sync(
            self._read, config, skills, role, requested, names, abandon_on_cancel=True
        )
        parts = parts_of(
            requested,
            agent,
            soul=soul,
            profile=roster.profile if profiled else None,
            tools=names | WEB if names.intersection(mcp.servers) else names,
            unattended=requested.unattended,
            deferred=tools.listed,
            unavailable={name: why for name, why in mcp.unavailable.items() if servers is None or name in servers},
            mounts=mounts,
            environment=self._section(config, tools.every),
            delegates=delegates.values(),
            role=role,
            skills=block,
        )
        parts = msgspec.structs.replace(
            parts,
            folder=None if requested.bootstrap else folder,
            variables=tuple(sorted(variables)) if SHELL in names else (),
        )
        return RunSetup(
            config=config,
            options=requested,
            agent=agent,
            model=name,
            candidates=candidates,
            tools=tools.every,
            deferred=tools.deferred,
            prompt=build(parts),
            personal=_is_personal(parts, delegates.values(), role, skills),
            todos=_keeps_todos(requested, role, skills),
            vision=vision,
            role=role,
            skills=skills,
            start=PROJECT if folder else WORKSPACE,
            blind=frozenset(n for n in candidates if vision and not settings[n].supports_vision),
            folders=_folders(config, folder) if CHANGING & names else None,
        )

    async def _of_servers(self, config: Config, requested: Options, user: str, at_least: int | None) -> Offered:
        """Returns the tools of MCP servers for a run."""
        if self._mcp is None or requested.bootstrap:
            return Offered()
        taken = [*(tool.name for tool in self._tools(config)), *POLICIES_TOOLS]
        return await self._mcp.offered(config, user, taken, at_least)

    async def role(self, user: str, name: str, caller: RunRequested | None = None) -> Role:
        """Returns a type of subagents that a run may call; without `caller`, any. Raises `Invalid` and `NotFound`."""
        config, requested = self._config.current(), options(caller) if caller else Options()
        needed = requested.agent or config.agents_api.enabled
        roster = await self._rosters.load(user) if needed else Roster()
        return role_of(config, roster, await self._agent(roster, requested), name)

    async def selection(self, request: RunRequested, user: str, role: Role | None = None) -> Selection:
        """Returns the skills of a run. Raises `NotFound`."""
        config, requested = self._config.current(), options(request)
        needed = requested.agent or config.agents_api.enabled
        roster = await self._rosters.load(user) if needed else Roster()
        return await self._selected(request, user, requested, await self._agent(roster, requested), role)

    async def _agent(self, roster: Roster, requested: Options) -> Definition | None:
        """Returns the agent of a run: the user's, or one of DeerFlow's shared folder. Raises `Invalid`, `NotFound`."""
        try:
            return find(roster, requested)
        except NotFound:
            name = agents.valid_name(requested.agent or "")
            if (agent := await anyio.to_thread.run_sync(shared, self._home, name)) is None:
                raise
            return agent

    async def _selected(
        self,
        request: RunRequested,
        user: str,
        requested: Options,
        agent: Definition | None,
        role: Role | None,
        at_least: int | None = None,
    ) -> Selection:
        if self._skills is None:
            return Selection()
        whitelists = [requested.skills, agent.skills if agent else None, role.skills if role else None]
        whitelists += [(BOOTSTRAP,)] if requested.bootstrap else []
        text = last_text(request.input or {}) if role is None and not requested.bootstrap else ""
        return self._selections.of(await self._skills.of(user, at_least), whitelists, text)

    def _section(self, config: Config, tools: Sequence[Tool]) -> str:
        """Returns the part of the prompt about the machine of its commands; empty without commands."""
        return self._environment.section(config.sandbox) if any(tool.name == SHELL for tool in tools) else ""

    def _read(
        self, config: Config, skills: Selection, role: Role | None, requested: Options, tools: frozenset[str]
    ) -> tuple[str, Sequence[Mounted], SkillsInPrompt]:
        """Reads the file system, which may be a network volume: call it in a thread."""
        return (
            default_soul(self._home),
            mounted(config),
            setup_skills.skills_for_prompt(skills, config, role, tools, bootstrap=requested.bootstrap),
        )

    def _name(self, config: Config, requested: str | None) -> str:
        """Returns the configured name of the requested model. Raises `Invalid` instead of substituting another."""
        name = self._models.name(requested or next(iter(config.model_roles.get("lead", ())), None))
        if requested not in (None, name):
            names = ", ".join(model.name for model in config.models) or DEMO
            raise Invalid(f"The model {requested!r} is not configured (any more); there are: {names}.")
        return name


def _folders(config: Config, folder: FolderAttached | None) -> dict[str, str]:
    own = {PROJECT: folder.path} if folder is not None and folder.path else {}
    return own | {mount.container_path: mount.host_path for mount in config.sandbox.mounts}


def _keeps_todos(requested: Options, role: Role | None, skills: Selection) -> bool:
    if requested.plan_mode is not None:
        return requested.plan_mode
    allowed = skills.tools is None or WRITE_TODOS in skills.tools
    return allowed and role is None and not requested.bootstrap


def _is_personal(parts: Parts, delegates: Iterable[Role], role: Role | None, skills: Selection) -> bool:
    """Tells whether a prompt holds something of the user, who may have it erased. All else is of the installation."""
    agents = [delegate.agent for delegate in delegates] + [role.agent if role else None]
    own = any(skill.own for skill in skills.skills.values())
    return bool(
        parts.agent or parts.profile or parts.unavailable or any(agents) or own or parts.folder or parts.variables
    )
