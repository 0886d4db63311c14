"""Agents that people define for themselves, and what they want every agent to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from anyio import to_thread
from msgspec import UNSET, UnsetType

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Created, Routes
from channels.http.runs.run_request import model_names
from channels.http.server.errors import Forbidden
from channels.http.server.routes import API
from core.config.load import Config
from core.errors import Invalid, Refused
from core.skills.selection import known
from core.user import agent_bundles, agents
from core.user.agent_bundles import Bundle, bundle
from core.user.agents import Definition, Effort, Rosters

GROUPS = ("bash", "file:read", "file:write", "web")
"""Groups of the built-in tools."""
BUILT_IN = "adapters.tools."

Text = Annotated[str, msgspec.Meta(max_length=2000)]
Markdown = Annotated[str, msgspec.Meta(max_length=100_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Names = Annotated[list[Name], msgspec.Meta(max_length=200)]


class Agent(msgspec.Struct):
    """`tool_groups`, `skills` and `mcp_servers`: null for all. The last four are options of its runs that say nothing
    else.
    """

    name: str
    description: str
    model: str | None
    tool_groups: list[str] | None
    skills: list[str] | None
    soul: str | None
    mcp_servers: list[str] | None
    thinking_enabled: bool | None
    reasoning_effort: str | None
    is_plan_mode: bool | None
    subagent_enabled: bool | None


class Agents(msgspec.Struct):
    agents: list[Agent]


class CreateBody(msgspec.Struct):
    name: Name
    description: Text = ""
    model: Name | None = None
    tool_groups: Names | None = None
    skills: Names | None = None
    soul: Markdown | None = None
    mcp_servers: Names | None = None
    thinking_enabled: bool | None = None
    reasoning_effort: Effort | None = None
    is_plan_mode: bool | None = None
    subagent_enabled: bool | None = None


class ChangeBody(msgspec.Struct):
    """Changes of an agent. Fields that are left out stay as they are; null removes the setting."""

    description: Text | UnsetType | None = UNSET
    model: Name | UnsetType | None = UNSET
    tool_groups: Names | UnsetType | None = UNSET
    skills: Names | UnsetType | None = UNSET
    soul: Markdown | UnsetType | None = UNSET
    mcp_servers: Names | UnsetType | None = UNSET
    thinking_enabled: bool | UnsetType | None = UNSET
    reasoning_effort: Effort | UnsetType | None = UNSET
    is_plan_mode: bool | UnsetType | None = UNSET
    subagent_enabled: bool | UnsetType | None = UNSET


class AgentVersion(msgspec.Struct):
    """A version of an agent. `agent` is null where it was removed."""

    version: int
    at: str
    by: str
    agent: Agent | None
    changed: list[str]


class Versions(msgspec.Struct):
    versions: list[AgentVersion]


class RollbackBody(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1)]


class ImportBody(msgspec.Struct):
    """An exported agent. `name` and `model` replace its own; `replace` allows to replace an agent of that name."""

    agent: Bundle
    name: Name | None = None
    model: Name | UnsetType | None = UNSET
    replace: bool = False


class Check(msgspec.Struct):
    available: bool
    name: str


class Profile(msgspec.Struct):
    content: Markdown | None = None


ROUTES = Routes(mounts=API)
_READ, _WRITE = "assistants:read", "assistants:write"


@ROUTES("GET", "/agents", _READ)
async def get_list(call: Call) -> Agents:
    """Your agents, and those of DeerFlow's shared folder, by name."""
    roster = await _rosters(call).of(call.user)
    shared = await to_thread.run_sync(agent_bundles.all_shared, call.services.home)
    agents = {agent.name: agent for agent in shared} | {**roster.agents}
    return Agents([_object(agents[name]) for name in sorted(agents)])


@ROUTES("GET", "/agents/check", _READ)
async def check(call: Call, *, name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9-]{1,64}$")]) -> Check:
    """Tells whether you may call a new agent so."""
    rosters, name = _rosters(call), agents.valid_name(name)
    return Check(name not in (*agents.TAKEN, *(await rosters.of(call.user)).agents), name)


@ROUTES("GET", "/agents/{name}", _READ, errors=(404,))
async def get(call: Call, name: str) -> Agent:
    """One of your agents, or of DeerFlow's shared folder."""
    _rosters(call)
    return _object(await known_agent(call, name))


@ROUTES("POST", "/agents", _WRITE, errors=(409,))
async def create(call: Call, body: CreateBody) -> Created[Agent]:
    """Define an agent. Its name is kept in lower case."""
    rosters = _rosters(call)
    agent = Definition(**{**msgspec.structs.asdict(body), "name": agents.valid_name(body.name)})
    await _check(call, msgspec.structs.asdict(agent))
    await rosters.create(call.user, agent)
    return _object(agent)


@ROUTES("PUT", "/agents/{name}", _WRITE, errors=(404, 409))
async def change(call: Call, name: str, body: ChangeBody) -> Agent:
    """Change some settings of an agent; `skills: null` means all skills, no `skills` at all leaves them."""
    rosters, name = _rosters(call), agents.valid_name(name)
    changes = {field: value for field, value in msgspec.structs.asdict(body).items() if value is not UNSET}
    if changes.get("description", "") is None:
        changes["description"] = ""
    await _check(call, changes)
    await _refuse_shared(call, name)
    return _object(await rosters.change(call.user, name, changes))


@ROUTES("DELETE", "/agents/{name}", _WRITE, errors=(404, 409))
async def delete(call: Call, name: str) -> None:
    """Remove one of your agents. Its conversations stay."""
    name = agents.valid_name(name)
    await _refuse_shared(call, name)
    await _rosters(call).remove(call.user, name)


async def _refuse_shared(call: Call, name: str) -> None:
    """Raises `Refused` for an agent of DeerFlow's shared folder, unless the user has one of its
    name.
    """
    folder = call.services.home / agent_bundles.SHARED / name
    shared = name not in (await _rosters(call).of(call.user)).agents
    if shared and await to_thread.run_sync((folder / agent_bundles.CONFIG).is_file):
        raise Refused(
            f"Agent {name} is in the folder of shared agents, which is not written to. "
            f"Make it yours first: sika agent import {folder}"
        )


@ROUTES("POST", "/agents/import", _WRITE, errors=(409,))
async def take(call: Call, body: ImportBody) -> Created[Agent]:
    """Make an agent of an exported one."""
    rosters, agent = _rosters(call), body.agent.definition()
    changes: dict[str, Any] = {} if body.name is None else {"name": agents.valid_name(body.name)}
    if body.model is not UNSET:
        changes["model"] = body.model
    agent = msgspec.structs.replace(agent, **changes)
    await _check(call, msgspec.structs.asdict(agent))
    await rosters.take(call.user, agent, replace=body.replace)
    return _object(agent)


@ROUTES("GET", "/agents/{name}/export", _READ, errors=(404,))
async def export(call: Call, name: str) -> Bundle:
    """An agent as one file: its definition and its soul, without its conversations and its memory."""
    _rosters(call)
    return bundle(await known_agent(call, name))


@ROUTES("GET", "/agents/{name}/history", _READ, errors=(404,))
async def history(call: Call, name: str) -> Versions:
    """The newest 200 versions of an agent, also of a removed one, the newest first."""
    rosters, name = _rosters(call), agents.valid_name(name)
    versions = await rosters.history(call.user, name)
    return Versions([msgspec.convert(msgspec.to_builtins(version), AgentVersion) for version in versions])


@ROUTES("POST", "/agents/{name}/rollback", _WRITE, errors=(404,))
async def rollback(call: Call, name: str, body: RollbackBody) -> Agent:
    """Make an agent what it was in a version; a removed one is there again."""
    rosters, name = _rosters(call), agents.valid_name(name)
    return _object(await rosters.rollback(call.user, name, body.version))


@ROUTES("GET", "/user-profile", _READ)
async def get_profile(call: Call) -> Profile:
    """Your profile for every agent; null for none. Agents read the first 8000 characters."""
    return Profile((await _rosters(call).of(call.user)).profile)


@ROUTES("PUT", "/user-profile", _WRITE)
async def put_profile(call: Call, body: Profile) -> Profile:
    """Write what you want every agent to know of you."""
    await _rosters(call).write_profile(call.user, body.content)
    return body


def _rosters(call: Call) -> Rosters:
    if not call.config.agents_api.enabled:
        raise Forbidden("Custom agents are turned off; set agents_api.enabled to true in config.yaml")
    return call.services.agents


async def known_agent(call: Call, name: str) -> Definition:
    """Returns an agent of the user's, or of DeerFlow's shared folder. Raises `NotFound`."""
    name = agents.valid_name(name)
    roster = await call.services.agents.of(call.user)
    shared = None
    if name not in roster.agents:
        shared = await to_thread.run_sync(agent_bundles.shared, call.services.home, name)
    return shared or agents.known(roster, name)


async def _check(call: Call, fields: Mapping[str, Any]) -> None:
    """Tells whether there is what an agent is to have. Raises `Invalid`, with what there is."""
    config = call.config
    model, names = fields.get("model"), model_names(config)
    if model is not None and model not in names:
        raise Invalid(f"model: {model!r} is not configured; there are: {', '.join(names)}")
    groups = _groups(config)
    for index, group in enumerate(fields.get("tool_groups") or ()):
        if groups is not None and group not in groups:
            raise Invalid(f"tool_groups[{index}]: no group {group!r}; there are: {', '.join(sorted(groups))}")
    if fields.get("skills"):
        known(await call.services.skills.of(call.user), fields["skills"])


def _groups(config: Config) -> set[str] | None:
    """The groups of tools; None if a third-party tool may be in one that only its module knows."""
    if any(tool.group is None and not tool.use.startswith(BUILT_IN) for tool in config.tools):
        return None
    configured = {tool.group for tool in config.tools if tool.group is not None}
    return {*GROUPS, *configured, *(group.name for group in config.tool_groups)}


def _object(agent: Definition) -> Agent:
    return msgspec.convert(msgspec.structs.asdict(agent), Agent)
