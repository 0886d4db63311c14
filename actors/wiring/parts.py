"""The parts of a server: what actors may ask for in their `__init__`, and the actors that are built of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import structlog

from actors.agent.setup.environment import Environment
from actors.sandbox.machines import Machines
from actors.wiring import discovery, sandboxes
from actors.wiring.discovery import actor_classes, construct, load_tools
from adapters import toolbox
from core import collector, plugins
from core.actor import Actor
from core.bus.peers import Peers
from core.config.load import ConfigSource, reveal
from core.config.sandbox import Sandbox as Limits
from core.config.settings import Config
from core.errors import Invalid
from core.identity.seal import Seal
from core.mcp.login import Logins
from core.mcp.servers import Directory
from core.plugins import Plugin
from core.ports.mcp import McpSessions
from core.ports.sandbox import SandboxProvider
from core.runtime.system import System
from core.skills.library import Library, folders_of
from core.tools import Tool

if TYPE_CHECKING:
    from actors.webhooks import Outcome
    from actors.wiring.options import Options
    from adapters.acp.agents import LocalAgents
    from adapters.batches import LocalBatchFiles
    from adapters.documents.local import LocalDocuments
    from adapters.egress import Downloads, Poster
    from adapters.images import LocalImages
    from adapters.instructions import LocalInstructions
    from adapters.models.configured import Configured
    from adapters.uploads import LocalUploads
    from adapters.workspace import LocalWorkspace
    from core.chat.state import Chats
    from core.config.settings import Guardrails
    from core.identity.standing import Standing
    from core.log.store import EventLog
    from core.mcp.authorisation import Authorisation
    from core.ports.guardrails import Provider
    from core.runs.intake import Intake
    from core.thread.threads import Threads
    from core.views.projections import Views

log = structlog.get_logger("sika.compose")


class Parts(TypedDict):
    """The values that parameters of an actor's `__init__` get, by name."""

    config: ConfigSource
    models: Configured
    tools: Toolset
    call: Callable[..., Awaitable[Any]]
    log: EventLog
    threads: Threads
    chats: Chats
    """The conversations on chat platforms."""
    intake: Intake
    subagents: Intake
    """The commands on the conversations of subagents."""
    views: Views
    standing: Standing
    home: Path
    poster: Poster
    downloads: Downloads
    documents: LocalDocuments
    workspace: LocalWorkspace
    provider: SandboxProvider
    limits: Limits
    machines: Machines | None
    """The machines of sandboxes, if the provider starts any."""
    uploads: LocalUploads
    instructions: LocalInstructions
    images: LocalImages
    batches: LocalBatchFiles
    agents: LocalAgents
    skills: Library
    environment: Environment
    """The machine of the agent's commands, as runs know it."""
    guardrails: Callable[[Guardrails], Provider | None]
    traced: Callable[..., Any]
    outcome: Outcome
    sessions: McpSessions
    """The sessions with MCP servers."""
    peers: Peers
    """The other processes on the bus."""
    logins: Logins
    """The logins of people at MCP servers."""
    servers: Directory
    """The MCP servers."""
    settings: Mapping[str, Any]
    """The settings of `installed.<name of the actor>`."""


class Loaded(NamedTuple):
    """The actors of a process, and the plug-ins that were there, used or not."""

    actors: Sequence[Actor[Any]]
    plugins: Sequence[Plugin]


def load_actors(
    running: System,
    source: ConfigSource,
    options: Options,
    provider: SandboxProvider,
    machines: Machines | None,
    sessions: McpSessions,
    skills: Library,
    environment: Environment,
) -> Loaded:
    """Builds the actors of a server. Blocks: call it in a thread. Raises `Invalid`; an optional actor that cannot be
    built is left out.
    """
    from adapters import guardrails
    from adapters.acp.agents import LocalAgents
    from adapters.batches import LocalBatchFiles
    from adapters.documents.local import LocalDocuments
    from adapters.egress import Downloads, Poster
    from adapters.images import LocalImages
    from adapters.instructions import LocalInstructions
    from adapters.models.configured import Configured
    from adapters.tracing import callbacks
    from adapters.uploads import LocalUploads
    from adapters.workspace import LocalWorkspace
    from channels.http.protocols.langgraph import run_object

    parts: Parts = {
        "config": source,
        "models": Configured(source),
        "tools": Toolset(source.current()),
        "call": running.call,
        "log": running.log,
        "standing": running.standing,
        "threads": running.threads,
        "chats": running.chats,
        "intake": running.intake,
        "subagents": running.subagents,
        "views": running.views,
        "home": options.home,
        "poster": Poster(),
        "downloads": Downloads(),
        "documents": LocalDocuments(options.home, unconfined=lambda: source.current().uploads.convert_unconfined),
        "workspace": LocalWorkspace(options.home),
        "provider": provider,
        "limits": source.current().sandbox,
        "machines": machines,
        "uploads": LocalUploads(options.home, running.log),
        "instructions": LocalInstructions(options.home),
        "images": LocalImages(options.home, source, running.threads),
        "batches": LocalBatchFiles(options.home),
        "agents": LocalAgents(options.home, provider, Peers(running.bus), sandboxes.quota_of(source.current())),
        "skills": skills,
        "environment": environment,
        "guardrails": guardrails.load,
        "traced": lambda **about: callbacks.invocation(source.current(), **about),
        "outcome": run_object.outcome,
        "sessions": sessions,
        "peers": Peers(running.bus),
        "logins": Logins(mcp_access(running, options.home, source)),
        "servers": Directory(running.log, source.current, Seal(options.home)),
        "settings": {},
    }
    callbacks.callbacks(source.current())  # what is on and not complete is an error now, not at the first run
    config = source.current()
    classes = actor_classes(config.actors, Parts.__annotations__, config.installed)
    listed = discovery.report(config, Parts.__annotations__)
    names = options.actors or tuple(classes)
    if unknown := [name for name in names if name not in classes]:
        reasons = "".join(f"\n  {plugin.place}: {plugin.problem}" for plugin in listed if plugin.problem)
        raise Invalid(
            f"--actors: {', '.join(unknown)} unknown; there are: {', '.join(sorted(classes))}"
            + (f"; left out:{reasons}" if reasons else "")
        )
    of_actors = (place for place, plugin in enumerate(listed) if plugin.group == plugins.ACTORS)
    optional = {listed[place].value: place for place in of_actors if not listed[place].problem}
    built = []
    for name in names:
        try:
            built.append(construct(classes[name], {**parts, "settings": reveal(config.installed.get(name, {}))}))
        except Exception as error:
            if options.actors or classes[name] not in optional:
                raise
            place = optional[classes[name]]
            listed[place] = listed[place].without(discovery.not_built(name, error))
    warn_of(listed)
    if options.own_process:
        collector.settle()
    return Loaded(built, listed)


def library(log: EventLog, source: ConfigSource, home: Path) -> Library:
    """Returns the skills of an installation."""
    return Library(log, home, folders_of(source.current(), source.project), source.project)


def mcp_access(running: System, home: Path, source: ConfigSource) -> Authorisation:
    """Returns the access to MCP servers."""
    from adapters.mcp.oauth_http import OAuthHttp
    from core.mcp.authorisation import Authorisation

    seal = Seal(home)
    return Authorisation(running.log, seal, OAuthHttp(), Directory(running.log, source.current, seal).authorised)


def plugins_of(config: Config) -> list[Plugin]:
    """Returns the plug-ins as a server of this configuration uses them. Imports them, which takes time."""
    return discovery.report(config, Parts.__annotations__)


def warn_of(listed: Sequence[Plugin]) -> None:
    """Logs the plug-ins that are left out."""
    for plugin in listed:
        if plugin.problem:
            log.warning("a plug-in is left out", plugin=plugin.place, package=plugin.package, problem=plugin.problem)


class Toolset:
    """The tools of a configuration. Raises `Invalid` if they cannot be loaded."""

    def __init__(self, config: Config) -> None:
        self._declared = config.tools, config.tools_exclusive
        self._tools = self._load()

    def __call__(self, config: Config) -> Sequence[Tool]:
        if (config.tools, config.tools_exclusive) != self._declared:
            self._declared = config.tools, config.tools_exclusive
            self._tools = self._load()
        return self._tools

    def _load(self) -> list[Tool]:
        entries, exclusive = self._declared
        tools = load_tools(entries, exclusive)
        if entries:
            only, there = toolbox.is_exclusive(entries, exclusive), {tool.name for tool in tools}
            log.info(
                "tools of the configuration",
                meaning="only these" if only else "added to the built-in ones",
                because="the list names DeerFlow's classes" if only and exclusive is None else "tools_exclusive",
                listed=[entry.name for entry in entries],
                left_out=sorted(tool.name for tool in load_tools() if tool.name not in there),
            )
        return tools
