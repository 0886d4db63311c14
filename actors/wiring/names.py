"""Names in the configuration that name nothing, and settings that something else keeps from having an effect.

A server starts with them, as a skill may be a person's own and a tool may come later. They are said at the start, by
`sika config check` and by `sika doctor`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator
from fnmatch import filter as matching
from pathlib import Path

import adapters.tracing.light  # noqa: F401  # before LangChain
from actors.agent.check import check, of_server
from actors.chat.session import DEFAULT_AGENT, NoAgent, agent_name
from actors.wiring.discovery import load_tools
from adapters import guardrails, toolbox
from core import plugins
from core.chat import platforms
from core.chat.account import platform_of
from core.config.channels import Session, SessionLayer
from core.config.settings import Config
from core.errors import Invalid
from core.skills.folders import Folders
from core.skills.library import folders_of

_LISTS = ("allowed_tools", "denied_tools")


def remarks(config: Config, project: Path) -> list[str]:
    """Returns a sentence with its key for each. `project` is the folder that `skills` may lie in. Blocks; it wants a
    configuration without `problems`.
    """
    return [
        *_strangers(_tools(config), lambda: _known_tools(config), "tool", config.mcp.servers),
        *_strangers(_skills(config), lambda: _known_skills(config, project), "skill"),
        *_strangers(_groups(config), lambda: [group.name for group in config.tool_groups], "group of tool_groups"),
        *_strangers(_models(config), lambda: [model.name for model in config.models], "model"),
        *_interceptors(config),
        *(line for number, entry in enumerate(config.tools) for line in toolbox.remarks(entry, number)),
        *_agents(config),
        *_accounts(config),
        *_mounts(config),
    ]


def _known_tools(config: Config) -> Collection[str]:
    return check(config, load_tools(config.tools, config.tools_exclusive), guardrails.load(config.guardrails))


def _known_skills(config: Config, project: Path) -> Collection[str]:
    return Folders(folders_of(config, project)).scan().skills


def _strangers(
    named: Iterator[tuple[str, str]], find: Callable[[], Collection[str]], kind: str, servers: Collection[str] = ()
) -> Iterator[str]:
    """Yields a sentence for each name that is none of the known ones, and none of these servers' tools. `find` returns
    the known ones; it reads all skills, or makes all tools, so it is called if there is a name.
    """
    names = [*named]
    known = find() if names else ()
    for place, name in names:
        if matching(known, name) or any(of_server(name, server) for server in servers):
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        yield f"{place}: {name}: there is no such {kind}" + (f"; did you mean {close[0]}?" if close else "")


def _tools(config: Config) -> Iterator[tuple[str, str]]:
    provider = config.guardrails.provider
    if (
        config.guardrails.enabled
        and provider is not None
        and provider.use.endswith((":AllowlistProvider", ":AllowList"))
    ):
        for key in _LISTS:
            yield from ((f"guardrails.provider.config.{key}", str(name)) for name in provider.config.get(key) or ())
    yield from (("mcp_server.tools", name) for name in config.mcp_server.tools)
    for kind, custom in config.subagents.custom_agents.items():
        place = f"subagents.custom_agents.{kind}"
        yield from ((f"{place}.tools", name) for name in custom.tools or ())
        yield from ((f"{place}.disallowed_tools", name) for name in custom.disallowed_tools)
    yield from (("loop_detection.tool_freq_overrides", name) for name in config.loop_detection.tool_freq_overrides)
    yield from (("tool_output.overrides", name) for name in config.tool_output.overrides)
    usual = type(config.tool_output)().exempt_tools
    yield from (("tool_output.exempt_tools", name) for name in config.tool_output.exempt_tools if name not in usual)


def _skills(config: Config) -> Iterator[tuple[str, str]]:
    yield from (("skills.secrets", name) for name in config.skills.secrets)
    for kind, override in config.subagents.agents.items():
        yield from ((f"subagents.agents.{kind}.skills", name) for name in override.skills or ())
    for kind, custom in config.subagents.custom_agents.items():
        yield from ((f"subagents.custom_agents.{kind}.skills", name) for name in custom.skills or ())


def _groups(config: Config) -> Iterator[tuple[str, str]]:
    """Groups count for custom agents only; without a list of them any name is one."""
    if config.tool_groups:
        yield from ((f"tools[{at}].group", entry.group) for at, entry in enumerate(config.tools) if entry.group)


def _models(config: Config) -> Iterator[tuple[str, str]]:
    """Yields the models of people's messages on chat platforms."""
    yield from ((f"{at}.context.model_name", str(layer.context["model_name"])) for at, layer in _layers(config)
                if layer.context.get("model_name"))  # fmt: skip


def _agents(config: Config) -> Iterator[str]:
    """Yields agents of chat platforms whose names no agent can have. Which there are, is in the log."""
    for at, layer in _layers(config):
        try:
            agent_name(layer.assistant_id or DEFAULT_AGENT)
        except NoAgent as error:
            yield f"{at}.{error}"


def _layers(config: Config) -> Iterator[tuple[str, SessionLayer]]:
    """Yields the settings of people's messages on chat platforms, with their places."""
    sessions: list[tuple[str, Session]] = [("channels.session", config.channels.session)]
    sessions += [
        (f"{platforms.place_of(name)}.session", account.session) for name, account in config.channels.accounts()
    ]
    for place, session in sessions:
        yield place, session
        yield from ((f"{place}.users.{name}", layer) for name, layer in session.users.items())


def _interceptors(config: Config) -> Iterator[str]:
    """Yields those that cannot be loaded; they are built where MCP servers are called, which goes on without them."""
    for number, path in enumerate(config.mcp.interceptors):
        try:
            plugins.load(path, f"mcp.interceptors[{number}]")
        except Invalid as error:
            yield f"{error}; calls of MCP servers are made without it"


def _accounts(config: Config) -> Iterator[str]:
    """Yields the bots that answer nobody, and connections to bots that are not there."""
    served = set()
    for name, account in config.channels.accounts():
        try:
            traits = platforms.traits(platform_of(name), config)
        except Invalid:
            continue  # `problems` says it
        if account.enabled:
            served.add(platform_of(name))
        admits = account.people or account.chats or account.allow_everyone or config.channel_connections.enabled
        if account.enabled and traits.open_to_the_world and not admits:
            yield (
                f"{platforms.place_of(name)}.allowed_users: is empty, and anybody in the world can write to this "
                "bot, so it answers nobody; list people, or say allow_everyone: true"
            )
    if config.channel_connections.enabled:
        for name, provider in config.channel_connections.providers.items():
            if provider.enabled and name not in served:
                yield f"channel_connections.{name}: there is no enabled account channels.{name} to connect to"


def _mounts(config: Config) -> Iterator[str]:
    if config.sandbox.provider not in ("host", "auto") or not config.sandbox.allow_host_bash:
        return
    where = "" if config.sandbox.provider == "host" else "where bubblewrap does not work, "
    for number, mount in enumerate(config.sandbox.mounts):
        if mount.read_only:
            yield (
                f"sandbox.mounts[{number}].read_only: {where}holds for the file tools only: commands run on this "
                "machine itself (sandbox.allow_host_bash), and may write there"
            )
