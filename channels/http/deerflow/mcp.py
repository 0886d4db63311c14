"""The MCP servers: their configuration in DeerFlow's form, and what they offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.errors import BadRequest
from channels.http.server.live import ACTOR
from channels.http.server.routes import API
from core.config.mcp import McpServer
from core.errors import Invalid, NotFound
from core.events import Json
from core.mcp.change import changed, masked, remarks
from core.mcp.names import names_of
from core.mcp.servers import SCOPE, Installed, config_of, failure_of, state_of
from core.ports.mcp_frames import Listing


class Servers(msgspec.Struct):
    """`mcp_servers`: settings by name, as in `mcp.servers` of the configuration. Values of `env` and `headers`, and
    secrets in `args` and `url`, are shown as `***`, secrets of `oauth` as null; sent back like that, they stay."""

    mcp_servers: dict[str, Json]


class Configured(msgspec.Struct, omit_defaults=True):
    """`mcp_servers`: as in `Servers`. `remarks`: settings in it that have no effect, each with the reason."""

    mcp_servers: dict[str, Json]
    remarks: list[str] = []


class Changes(msgspec.Struct):
    """`mcp_servers`: the settings to change by name of the server, such as `{"github": {"enabled": false}}`."""

    mcp_servers: dict[str, Json]


class OfferedTool(msgspec.Struct):
    """`name`: as the agent calls it. `tool`: as the server does."""

    name: str
    tool: str
    description: str
    effect: str


class OfferedOther(msgspec.Struct):
    """A resource or a prompt."""

    name: str
    description: str
    uri: str = ""


class Fault(msgspec.Struct):
    """What is wrong with a tool, or with a server's lists (no `tool`). `left_out`: the agent does not have the tool."""

    tool: str
    reason: str
    left_out: bool


class Status(msgspec.Struct):
    """`state`: `off`, `untried` (not listed yet, so nothing is known), `failed` (`error` says why), `partly` (some
    tools are left out) or `fine`. `listed`: false if it is still to be listed as it is configured now. `changed`: tools
    of the server that are described otherwise than when they were seen first, or accepted. `problems`: what is wrong
    with its tools and lists.
    """

    name: str
    enabled: bool
    type: str
    description: str
    listed: bool
    error: str | None
    tools: list[OfferedTool]
    resources: list[OfferedOther]
    prompts: list[OfferedOther]
    changed: list[str] = []
    problems: list[Fault] = []
    state: str = "untried"


class Statuses(msgspec.Struct):
    servers: list[Status]


class Reset(msgspec.Struct):
    success: bool
    message: str


ROUTES = Routes(mounts=API, tag="mcp")
_READ = "assistants:read"


@ROUTES("GET", "/mcp/config", _READ)
async def get(call: Call) -> Configured:
    """The MCP servers, without their secrets."""
    return _masked_servers(await call.services.mcp.all())


@ROUTES("PUT", "/mcp/config", "admin", role="admin", errors=(400,))
async def put(call: Call, body: Servers) -> Configured:
    """Replace the MCP servers: those that are not sent are removed. The files of the server stay as they are."""
    return await _change(call, lambda _: body.mcp_servers)


@ROUTES("PATCH", "/mcp/config", "admin", role="admin", errors=(400, 404))
async def patch(call: Call, body: Changes) -> Configured:
    """Change settings of some MCP servers, such as `enabled`."""

    def all_of(present: Mapping[str, McpServer]) -> Mapping[str, Json]:
        if unknown := [name for name in body.mcp_servers if name not in present]:
            raise NotFound(f"MCP server {unknown[0][:64]} not found")
        shown = {name: masked(server) for name, server in present.items()}
        return {name: {**settings, **body.mcp_servers.get(name, {})} for name, settings in shown.items()}

    return await _change(call, all_of)


@ROUTES("POST", "/mcp/cache/reset", "admin", role="admin")
async def reset(call: Call) -> Reset:
    """Forget what the MCP servers offer, and end the sessions with them: the next run asks them again."""
    await call.services.mcp.forget(actor=ACTOR, by=call.user)
    return Reset(True, "The lists of the MCP servers are asked for again.")


@ROUTES("GET", "/mcp/servers", _READ)
async def servers(call: Call) -> Statuses:
    """List what the MCP servers offer, and why one does not."""
    state = await call.services.mcp.states.load(SCOPE)
    configured = await call.services.mcp.all()
    return Statuses([status(name, server, state) for name, server in configured.items()])


@ROUTES("POST", "/mcp/servers/{name}/test", "admin", role="admin", errors=(404,))
async def test(call: Call, name: str) -> Status:
    """List a server anew, also if it failed a moment ago."""
    await call.services.mcp.server(name)
    await call.services.call("mcp", {"op": "list", "servers": [name], "user": call.user, "again": True})
    state = await call.services.mcp.states.load(SCOPE)
    return status(name, await call.services.mcp.server(name), state)


@ROUTES("POST", "/mcp/servers/{name}/accept", "admin", role="admin", errors=(404,))
async def accept(call: Call, name: str) -> Status:
    """Accept what a server says of its tools now: they count as seen."""
    await call.services.mcp.accept(name, by=call.user, actor=ACTOR)
    state = await call.services.mcp.states.load(SCOPE)
    return status(name, await call.services.mcp.server(name), state)


def status(name: str, server: McpServer, state: Installed) -> Status:
    """Returns what is known of a server."""
    known, seen = state.known.get(name), state.seen.get(name)
    fresh = known is not None and known.config == config_of(server)
    listing = known.listing if known is not None and known.listing is not None else Listing()
    changed = list(seen.changed) if seen is not None and fresh else []
    names = names_of(((name, offer.name) for offer in listing.tools), ())
    tools = [
        OfferedTool(shown, offer.name, offer.description, offer.effect)
        for (shown, _), offer in zip(names.items(), listing.tools, strict=True)
    ]
    others = [
        [OfferedOther(offer.name, offer.description, offer.uri) for offer in offers]
        for offers in (listing.resources, listing.prompts)
    ]
    failure = failure_of(server, known)
    error = server.problem if failure is None else failure.reason
    about = (name, server.enabled, server.transport, server.description, fresh, error)
    resources, prompts = others
    problems = [Fault(problem.tool, problem.reason, problem.left_out) for problem in listing.problems]
    return Status(
        *about,
        tools=tools,
        resources=resources,
        prompts=prompts,
        changed=changed,
        problems=problems,
        state=state_of(server, known),
    )


async def _change(call: Call, sent: Any) -> Configured:
    try:
        after = await call.services.mcp.change(
            lambda present, config, seal: changed(sent(present), present, config.mcp.servers, seal),
            actor=ACTOR,
            by=call.user,
        )
    except Invalid as error:
        raise BadRequest(str(error)) from error
    return _masked_servers(after)


def _masked_servers(servers: Mapping[str, McpServer]) -> Configured:
    return Configured(
        {name: masked(server) for name, server in servers.items()},
        [remark for name, server in servers.items() for remark in remarks(name, server)],
    )
