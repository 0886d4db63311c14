"""The tools of MCP servers, as runs see them: made of what the log knows, without asking any server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog

from core.config.settings import Config
from core.errors import SikaError
from core.events import Json
from core.ids import now
from core.log.store import EventLog
from core.mcp.names import names_of, prefix_of
from core.mcp.references import Reference, named, recorded
from core.mcp.schemas import plain_names
from core.mcp.servers import SCOPE, Installed, aggregates, config_of, in_force
from core.phrases import counted
from core.ports.mcp_frames import Listing, Offer
from core.tools import Prompt, Question, Response, Result, Tool, ToolContext

log = structlog.get_logger("sika.mcp")

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
GROUP = "mcp"
"""Group of the tools; agents may also name the group `mcp:SERVER`."""
MOST_REASON = 300
REFERENCE_SECONDS = 30.0
"""Time for the content of a resource or a prompt that a message names."""
AGAIN_SECONDS = 30.0
"""Time for which no run waits for servers after one waited in vain."""


class Offered(NamedTuple):
    """The tools of all servers in a stable order, and why there are none of some servers."""

    tools: Sequence[Tool] = ()
    unavailable: Mapping[str, str] = {}
    servers: Mapping[str, str] = {}
    """The server of each tool, by the tool's name."""

    def only(self, allowed: Collection[str] | None) -> Offered:
        """Returns those of the allowed servers; None allows all."""
        if allowed is None:
            return self
        servers = {tool: server for tool, server in self.servers.items() if server in allowed}
        unavailable = {server: reason for server, reason in self.unavailable.items() if server in allowed}
        return Offered([tool for tool in self.tools if tool.name in servers], unavailable, servers)


class Catalogue:
    """The tools of MCP servers. `ask` asks an actor; None in a process that only looks at the log."""

    def __init__(self, log: EventLog, ask: Ask | None = None) -> None:
        self._states, self._ask = aggregates(log), ask
        self._made: tuple[tuple[Any, ...], Offered] | None = None
        self._waited_in_vain: float | None = None

    async def offered(self, config: Config, user: str, taken: Collection[str], at_least: int | None = None) -> Offered:
        """Returns the tools, whose names are none of `taken`; the same objects as long as nothing changes.

        Waits up to `mcp.list_seconds` for servers that were never listed. `at_least`: see `Repository.load`.
        """
        state = await self._states.load(SCOPE, at_least=at_least)
        if not config.mcp.servers and not state.changed:
            return Offered()
        servers = in_force(config, state, lambda _: "")
        enabled = {name: config_of(server) for name, server in servers.items() if server.enabled}
        reasons: Mapping[str, str] = {}
        if unknown := [name for name, digest in enabled.items() if _is_unknown(state, name, digest)]:
            reasons = await self._list_servers(unknown, user, config.mcp.list_seconds)
            state = await self._states.load(SCOPE)
        key = (state.seq, config.hash, tuple(sorted(taken)))
        if self._made is None or self._made[0] != key:
            self._made = key, offered_tools(state, enabled, taken, config.mcp.direct_tools)
        offered = self._made[1]
        return offered._replace(unavailable={**offered.unavailable, **reasons}) if reasons else offered

    async def referenced(
        self, config: Config, text: str, only: Collection[str] | None, about: Mapping[str, str], at_least: int
    ) -> list[Json]:
        """Returns what a message records of the resources and prompts that it names. `about` is its user and thread;
        `only` are the servers of the agent (default: all). A failure is recorded, too.
        """
        if self._ask is None or ":" not in text:
            return []
        state = await self._states.load(SCOPE, at_least=at_least)
        enabled = (name for name, server in in_force(config, state, lambda _: "").items() if server.enabled)
        names = [name for name in enabled if only is None or name in only]
        known = {name: state.known[name].listing or Listing() for name in names if name in state.known}
        references = named(text, known)
        return list(await asyncio.gather(*(self._content(reference, about) for reference in references)))

    async def _content(self, reference: Reference, about: Mapping[str, str]) -> Json:
        assert self._ask is not None
        try:
            async with asyncio.timeout(REFERENCE_SECONDS):
                answer = await self._ask("mcp", {**reference.request, **about})
        except (SikaError, TimeoutError) as error:
            answer = {"text": str(error) or f"no answer within {REFERENCE_SECONDS:g} s", "failed": True}
        return recorded(reference, answer)

    async def _list_servers(self, names: Sequence[str], user: str, seconds: float) -> Mapping[str, str]:
        """Has servers listed, within a time. Returns the reasons of failures."""
        clock = asyncio.get_running_loop().time
        if self._ask is None or (self._waited_in_vain is not None and clock() - self._waited_in_vain < AGAIN_SECONDS):
            return {}
        try:
            async with asyncio.timeout(seconds):
                reasons = await self._ask("mcp", {"op": "list", "servers": list(names), "user": user})
            return {name: str(reason)[:MOST_REASON] for name, reason in reasons.items()}
        except (SikaError, TimeoutError) as error:
            self._waited_in_vain = clock()
            log.warning("MCP servers are not listed yet", servers=names, reason=str(error) or "no answer in time")
            return {}


def _is_unknown(state: Installed, name: str, digest: str) -> bool:
    known = state.known.get(name)
    if known is None:
        return True
    if known.failure is not None:
        return known.failure.config != digest or known.failure.again_at <= now()
    return known.config != digest


def offered_tools(state: Installed, enabled: Mapping[str, str], taken: Collection[str], direct: int) -> Offered:
    """Returns the tools of the enabled servers. Pure. `direct`: the most of which none is deferred."""
    offers: dict[tuple[str, str], Offer] = {}
    unavailable = {}
    for name in enabled:
        known = state.known.get(name)
        if known is None or known.failure is not None:
            reason = known.failure.reason if known and known.failure else "it was not listed yet"
            unavailable[name] = reason[:MOST_REASON]
        if known is not None and known.listing is not None and known.failure is None:
            offers |= {(name, offer.name): offer for offer in known.listing.tools}
    names = names_of(offers, taken)
    deferred = len(names) > direct
    tools = [_tool(name, *place, offers[place], deferred=deferred) for name, place in names.items()]
    return Offered(tools, unavailable, {name: server for name, (server, _) in names.items()})


def _tool(name: str, server: str, original: str, offer: Offer, *, deferred: bool) -> Tool:
    effect = offer.effect
    schema, originals = plain_names(offer.schema)

    async def call(ctx: ToolContext, **arguments: Any) -> Result:
        request = {
            "op": "call",
            "server": server,
            "tool": original,
            "arguments": {originals.get(name, name): value for name, value in arguments.items()},
            "effect": effect,
            "user": ctx.user,
            "thread": ctx.thread,
            "run": ctx.run,
            "subagent": ctx.subagent,
            "once": effect == "once",
            "key": ctx.call_id,
            "resumed": ctx.resumed,
        }
        answers: dict[str, Any] = {}
        while asks := (answer := await ctx.call("mcp", {**request, "answers": answers})).get("asks"):
            answers[asks["id"]] = await _answered(ctx, asks)
            request["resumed"] = True
        artifact = {key: answer[key] for key in ("structured", "files") if answer.get(key)}
        artifact = {("structured_content" if key == "structured" else key): value for key, value in artifact.items()}
        return Result(answer["text"], artifact=artifact or None, failed=bool(answer.get("failed")))

    description = offer.description or f"The tool {original} of the MCP server {server}."
    return Tool(name, description, call, effect, f"{GROUP}:{server}", deferred, {"properties": {}, **schema})


async def _answered(ctx: ToolContext, asks: Mapping[str, Any]) -> Any:
    """Returns the answer to what a server asks during a call."""
    question = msgspec.convert(asks["question"], Question | None)
    response = await ctx.ask(question) if question is not None else Response(accepted=True)
    if asks["kind"] == "elicit":
        return msgspec.to_builtins(response)
    if not response.accepted:
        return {"error": "the person declined"}
    try:
        return msgspec.to_builtins(await ctx.complete(msgspec.convert(asks["sample"], Prompt)))
    except SikaError as error:
        return {"error": str(error)}


def prompt_lines(tools: Sequence[Tool], servers: Mapping[str, str], most: int = 60) -> list[str]:
    """Returns the lines by which the prompt lists deferred tools: their names, or with many, those of the servers."""
    if len(tools) <= most:
        return [tool.name for tool in tools]
    lines = [tool.name for tool in tools if tool.name not in servers]
    counts: dict[str, int] = {}
    for tool in tools:
        if tool.name in servers:
            counts[servers[tool.name]] = counts.get(servers[tool.name], 0) + 1
    return [*lines, *(f"{prefix_of(server)}* ({counted(count, 'tool')})" for server, count in counts.items())]
