"""Agents that people define for themselves, and what they want every agent to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from channels.http import live as alive
from channels.http.asked import model_names
from channels.http.bodies import body, plain
from channels.http.errors import Forbidden
from channels.http.routes import API, Param, Route
from core.config.load import Config
from core.errors import Invalid
from core.user import agents
from core.user.agents import Definition, Rosters

GROUPS = ("bash", "file:read", "file:write", "web")
"""Of the tools that come along."""
BUILT_IN = "adapters.tools."

Text = Annotated[str, msgspec.Meta(max_length=2000)]
Markdown = Annotated[str, msgspec.Meta(max_length=100_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Names = Annotated[list[Name], msgspec.Meta(max_length=200)]


class Agent(msgspec.Struct):
    """`tool_groups` and `skills`: null for all."""

    name: str
    description: str
    model: str | None
    tool_groups: list[str] | None
    skills: list[str] | None
    soul: str | None


class Agents(msgspec.Struct):
    agents: list[Agent]


class CreateBody(msgspec.Struct):
    name: Name
    description: Text = ""
    model: Name | None = None
    tool_groups: Names | None = None
    skills: Names | None = None
    soul: Markdown | None = None


class ChangeBody(msgspec.Struct):
    """What is left out stays as it is; null takes the setting away."""

    description: Text | UnsetType | None = UNSET
    model: Name | UnsetType | None = UNSET
    tool_groups: Names | UnsetType | None = UNSET
    skills: Names | UnsetType | None = UNSET
    soul: Markdown | UnsetType | None = UNSET


class Check(msgspec.Struct):
    available: bool
    name: str


class Profile(msgspec.Struct):
    content: Markdown | None = None


async def get_list(request: web.Request) -> web.Response:
    """Your agents, by name."""
    roster = await _rosters(request).of(alive.user(request))
    return plain(Agents([_object(one) for one in roster.agents.values()]))


async def check(request: web.Request) -> web.Response:
    """Whether you may call a new agent so."""
    rosters = _rosters(request)
    name = agents.checked(request.query.get("name", ""))
    return plain(Check(name not in (await rosters.of(alive.user(request))).agents, name))


async def get(request: web.Request) -> web.Response:
    """One of your agents."""
    rosters, name = _rosters(request), _name(request)
    return plain(_object(agents.known(await rosters.of(alive.user(request)), name)))


async def create(request: web.Request) -> web.Response:
    """Define an agent. Its name is kept in lower case."""
    rosters, wanted = _rosters(request), await body(request, CreateBody)
    made = Definition(**{**msgspec.structs.asdict(wanted), "name": agents.checked(wanted.name)})
    _check(request, msgspec.structs.asdict(made))
    await rosters.create(alive.user(request), made)
    response = plain(_object(made))
    response.set_status(201)
    return response


async def change(request: web.Request) -> web.Response:
    """Change some settings of an agent; `skills: null` means all skills, no `skills` at all leaves them."""
    rosters, name, wanted = _rosters(request), _name(request), await body(request, ChangeBody)
    changes = {field: value for field, value in msgspec.structs.asdict(wanted).items() if value is not UNSET}
    if changes.get("description", "") is None:
        changes["description"] = ""
    _check(request, changes)
    return plain(_object(await rosters.change(alive.user(request), name, changes)))


async def delete(request: web.Request) -> web.Response:
    """Remove one of your agents. Its conversations stay."""
    rosters, name = _rosters(request), _name(request)
    await rosters.remove(alive.user(request), name)
    return web.Response(status=204)


async def get_profile(request: web.Request) -> web.Response:
    """What you want every agent to know of you; null for nothing. Agents are told the first 8000 characters."""
    roster = await _rosters(request).of(alive.user(request))
    return plain(Profile(roster.profile))


async def put_profile(request: web.Request) -> web.Response:
    """Write what you want every agent to know of you."""
    rosters, wanted = _rosters(request), await body(request, Profile)
    await rosters.write_profile(alive.user(request), wanted.content)
    return plain(wanted)


def _rosters(request: web.Request) -> Rosters:
    services = alive.of(request).services
    if not services.config().agents_api.enabled:
        raise Forbidden("Custom agents are turned off; set agents_api.enabled to true in config.yaml")
    return services.agents


def _name(request: web.Request) -> str:
    return agents.checked(request.match_info["name"])


def _check(request: web.Request, said: Mapping[str, Any]) -> None:
    """Whether there is what an agent is to have. Raises `Invalid`, with what there is."""
    config = alive.of(request).services.config()
    model, names = said.get("model"), model_names(config)
    if model is not None and model not in names:
        raise Invalid(f"model: {model!r} is not configured; there are: {', '.join(names)}")
    groups = _groups(config)
    for index, group in enumerate(said.get("tool_groups") or ()):
        if groups is not None and group not in groups:
            raise Invalid(f"tool_groups[{index}]: no group {group!r}; there are: {', '.join(sorted(groups))}")
    for index, skill in enumerate(said.get("skills") or ()):
        raise Invalid(f"skills[{index}]: no skill {skill!r}; there are no skills in this version")


def _groups(config: Config) -> set[str] | None:
    """The groups of tools; None if a tool of others may be in one that only its module knows."""
    if any(tool.group is None and not tool.use.startswith(BUILT_IN) for tool in config.tools):
        return None
    configured = {tool.group for tool in config.tools if tool.group is not None}
    return {*GROUPS, *configured, *(group.name for group in config.tool_groups)}


def _object(one: Definition) -> Agent:
    return msgspec.convert(msgspec.structs.asdict(one), Agent)


_NAMED = Param("name", Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9-]{1,64}$")], required=True)
_READ: Any = {"scope": "assistants:read", "mounts": API}
_WRITE: Any = {"scope": "assistants:write", "mounts": API}
ROUTES = (
    Route("GET", "/agents", get_list, {200: Agents}, **_READ),
    Route("POST", "/agents", create, {201: Agent}, CreateBody, errors=(409,), **_WRITE),
    Route("GET", "/agents/check", check, {200: Check}, query=(_NAMED,), **_READ),
    Route("GET", "/agents/{name}", get, {200: Agent}, errors=(404,), **_READ),
    Route("PUT", "/agents/{name}", change, {200: Agent}, ChangeBody, errors=(404,), **_WRITE),
    Route("DELETE", "/agents/{name}", delete, {204: None}, errors=(404,), **_WRITE),
    Route("GET", "/user-profile", get_profile, {200: Profile}, **_READ),
    Route("PUT", "/user-profile", put_profile, {200: Profile}, Profile, **_WRITE),
)
