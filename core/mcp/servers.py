"""The MCP servers of an installation: what is configured beside the files, and what each server offers.

One aggregate holds both, so that every process plans with the same tools and asks no server for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from core.config.mcp import McpServer
from core.config.mcp_oauth import OAuth
from core.config.redaction import is_secret, redactor, telling
from core.config.sections import Secret
from core.config.settings import Config
from core.control import unmasked
from core.errors import Invalid, NotFound, SikaError
from core.events import Event, Json, Record
from core.identity.seal import SEALED, Seal
from core.log.repository import Repository
from core.log.store import EventLog
from core.mcp.authorisation import Server
from core.mcp.schemas import sound
from core.mcp.seen import Seen, first, versions
from core.phrases import Phrase
from core.ports.mcp_frames import Listing, Offer, Problem

KIND = "mcp"
SCOPE = "server"
"""Id of the aggregate of the whole installation."""
MOST_SERVERS = 100
PAUSES = (30.0, 60.0, 300.0, 600.0)
"""Seconds between attempts to list a server that fails."""


class McpConfigured(Event, frozen=True):
    """These servers are configured otherwise than in the files. None: the server was removed. Values of `env` and
    `headers`, secrets of `oauth`, and arguments and a `url` with a secret are sealed (`core.identity.seal`).
    """

    phrase = Phrase(
        "MCP servers configured",
        "MCP 服务器已配置",
        "<{servers}><!servers?as in the files><, by {by}>",
        "<{servers}><!servers?与文件一致><，{by}>",
    )
    servers: Mapping[str, Json | None]
    by: str | None = None
    """The administrator who changed it."""


class McpListed(Event, frozen=True):
    """A server has offered these tools, resources and prompts."""

    phrase = Phrase(
        "MCP server listed",
        "MCP 服务器已列出",
        "{server}: {tools:count} tool<tools:count!=1?s>, {resources:count} resource<resources:count!=1?s>"
        ", {prompts:count} prompt<prompts:count!=1?s>"
        "<problems?, {problems:count} problem><problems&problems:count!=1?s>",
        "{server}：{tools:count} 个工具，{resources:count} 个资源，{prompts:count} 个提示"
        "<problems?，{problems:count} 个问题>",
    )
    server: str
    config: str
    """Names the configuration of the server at that time."""
    hash: str
    tools: list[Json]
    resources: list[Json] = []  # noqa: RUF012
    prompts: list[Json] = []  # noqa: RUF012
    problems: list[Json] | None = None
    """What is wrong with tools or lists (`Problem`). None: of a time at which schemas were not judged."""


class McpFailed(Event, frozen=True):
    """A server could not be started or listed."""

    phrase = Phrase(
        "MCP server did not answer",
        "MCP 服务器没有回答",
        "{server}: {reason}<; again at {again_at}>",
        "{server}：{reason}<；{again_at} 重试>",
    )
    server: str
    config: str
    reason: str
    attempt: int = 1
    again_at: str = ""
    """Time of the next attempt."""


class McpForgotten(Event, frozen=True):
    """The lists were dropped, and are asked for again when they are needed: of one server, or of all."""

    phrase = Phrase(
        "MCP lists dropped",
        "MCP 列表已丢弃",
        "<{server}><!server?all servers><, by {by}>",
        "<{server}><!server?所有服务器><，{by}>",
    )
    server: str | None = None
    by: str | None = None


class McpAccepted(Event, frozen=True):
    """An administrator accepts what a server says of its tools (`core.mcp.seen`): their versions by name. `by` is the
    user; None for a command on the server's machine.
    """

    phrase = Phrase(
        "Tools of an MCP server accepted",
        "MCP 服务器的工具已接受",
        "{server}: {versions:count} tool<versions:count!=1?s><, by {by}>",
        "{server}：{versions:count} 个工具<，{by}>",
    )
    server: str
    config: str
    versions: Mapping[str, str]
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """The state of a server."""

    config: str
    listing: Listing | None = None
    hash: str = ""
    failure: McpFailed | None = None
    """The failure since the listing."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The servers beside the files, and what is known of all."""

    changed: Mapping[str, Json | None] = field(default_factory=dict)
    known: Mapping[str, Known] = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)
    """By server. What was seen stays when lists are dropped."""
    resets: int = 0
    """The number of times that all lists were dropped."""
    seq: int = 0


def fold(records: Iterable[Record], state: Installed) -> Installed:
    for record in records:
        state = replace(_after(state, record.event), seq=record.seq)
    return state


def _after(state: Installed, event: Any) -> Installed:
    match event:
        case McpConfigured(servers=servers):
            return replace(state, changed=servers)
        case McpListed(server=server):
            listing = listing_of(event)
            tools = listing.tools
            known = {**state.known, server: Known(event.config, listing, event.hash)}
            before = state.seen.get(server)
            same = before is not None and before.config == event.config
            seen = before.after(tools) if before and same else first(event.config, tools)
            return replace(state, known=known, seen={**state.seen, server: seen})
        case McpAccepted(server=server):
            offered = state.known[server].listing if server in state.known else None
            accepted = Seen(event.config, event.versions).after(offered.tools if offered else ())
            return replace(state, seen={**state.seen, server: accepted})
        case McpFailed(server=server):
            failed = state.known.get(server) or Known(event.config)
            return replace(state, known={**state.known, server: replace(failed, failure=event)})
        case McpForgotten(server=server):
            if server is None:
                return replace(state, known={}, resets=state.resets + 1)
            return replace(state, known={name: there for name, there in state.known.items() if name != server})
    return state


def listing_of(event: McpListed) -> Listing:
    """Returns the lists of a fact, as a model may read them. Those of earlier versions are judged now."""
    tools, resources, prompts = (tuple(_offers(raw)) for raw in (event.tools, event.resources, event.prompts))
    if event.problems is None:
        tools, problems = _judged(tools)
    else:
        problems = tuple(_problems(event.problems))
    return Listing(tools=tools, resources=resources, prompts=prompts, problems=problems)


def _offers(raw: Sequence[Json]) -> Iterable[Offer]:
    """Yields what a server offers, as a model may read it. Names stay: the server is called by them."""
    for fields in raw:
        try:
            offer = msgspec.convert(fields, Offer)
            text, schema = unmasked(offer.description), unmasked(offer.schema)
        except (msgspec.ValidationError, RecursionError):
            continue
        yield msgspec.structs.replace(offer, description=text, schema=schema)


def _problems(raw: Sequence[Json]) -> Iterator[Problem]:
    for fields in raw:
        try:
            problem = msgspec.convert(fields, Problem)
            yield msgspec.structs.replace(problem, tool=unmasked(problem.tool), reason=unmasked(problem.reason))
        except (msgspec.ValidationError, RecursionError):
            continue


def _judged(offers: Iterable[Offer]) -> tuple[tuple[Offer, ...], tuple[Problem, ...]]:
    """Returns the tools of an earlier list with schemas that providers take, and what is wrong with the others."""
    tools, problems = list[Offer](), list[Problem]()
    for offer in offers:
        try:
            schema, note = sound(offer.schema)
        except Invalid as error:
            problems.append(Problem(tool=offer.name, reason=str(error), left_out=True))
            continue
        tools.append(msgspec.structs.replace(offer, schema=schema))
        problems += [Problem(tool=offer.name, reason=f"left out of its schema: {note}")] if note else []
    return tuple(tools), tuple(problems)


def aggregates(log: EventLog) -> Repository[Installed]:
    """Returns the repository; its only id is `SCOPE`."""
    return Repository(log, KIND, fold, Installed())


# ── configuration ───────────────────────────────────────────────────────────────────────────────────────────────────

SECRETS = ("env", "headers")
"""Fields of a server whose values are secrets."""
OAUTH_SECRETS = ("client_secret", "refresh_token")
PURPOSE = "mcp"
"""Purpose of the seals (`core.identity.seal`)."""


def plain(server: McpServer) -> Json:
    """Returns a server as JSON, with its secrets in plain text."""
    raw: Json = msgspec.to_builtins(server, enc_hook=_revealed)
    if isinstance(oauth := raw.get("oauth"), dict):
        raw["oauth"] = {**oauth.pop("extra"), **oauth}
    return {**raw.pop("extra"), **raw}


def with_secrets(raw: Mapping[str, Any], change: Callable[[str], str]) -> Json:
    """Returns a server as JSON with each of its secrets changed."""
    changed = dict(raw)
    for name in SECRETS:
        changed[name] = {key: change(str(value)) for key, value in (raw.get(name) or {}).items()}
    if isinstance(oauth := raw.get("oauth"), Mapping):
        changed["oauth"] = {k: change(v) if k in OAUTH_SECRETS and v else v for k, v in oauth.items()}
    if raw.get("args"):
        changed["args"] = list(_arguments([str(word) for word in raw["args"]], change))
    if raw.get("url"):
        changed["url"] = _within(str(raw["url"]), change)
    for name, value in raw.items():
        if name not in McpServer.__struct_fields__ and is_secret(name) and isinstance(value, str):
            changed[name] = change(value)
    return changed


def _arguments(words: Sequence[str], change: Callable[[str], str]) -> Iterator[str]:
    """Yields arguments with their secrets changed: those that look like one, and what follows an option like
    `--api-key`.
    """
    option = ""
    for word in words:
        yield change(word) if telling(option) and not word.startswith("-") else _within(word, change)
        option = word.lstrip("-") if word.startswith("-") else ""


def _within(text: str, change: Callable[[str], str]) -> str:
    """Returns a text with the sealed texts in it changed, or if there are none what looks like a secret."""
    if SEALED.search(text):
        return SEALED.sub(lambda sealed: change(sealed[0]), text)
    return redactor.replaced(text, lambda secret: secret if SEALED.fullmatch(secret) else change(secret))


def parsed(name: str, raw: Mapping[str, Any]) -> McpServer:
    """Returns a server of JSON. Raises `Invalid` with the place of what is wrong."""
    fields = McpServer.__struct_fields__
    extra = {key: value for key, value in raw.items() if key not in fields}
    own = {key: value for key, value in raw.items() if key in fields and value is not None}
    if isinstance(oauth := own.get("oauth"), Mapping):
        own["oauth"] = {key: value for key, value in oauth.items() if key in OAuth.__struct_fields__}
    try:
        return msgspec.convert({**own, "extra": extra}, McpServer, strict=False, dec_hook=_secret)
    except msgspec.ValidationError as error:
        text, _, place = str(error).replace("`", "").partition(" - at $")
        raise Invalid(f"mcp_servers.{name}{place}: {text[:1].lower()}{text[1:]}") from None


class Directory:
    """The servers that are configured now, with their secrets."""

    def __init__(self, log: EventLog, config: Callable[[], Config], seal: Seal) -> None:
        self.states = aggregates(log)
        self._config, self._seal = config, seal

    async def all(self) -> Mapping[str, McpServer]:
        """Returns all servers by name. Raises `Unavailable`."""
        state = await self.states.load(SCOPE)
        return in_force(self._config(), state, lambda text: self._seal.open(text, PURPOSE))

    async def change(
        self,
        decide: Callable[[Mapping[str, McpServer], Config, Callable[[str], str]], McpConfigured],
        *,
        actor: str,
        by: str | None = None,
    ) -> Mapping[str, McpServer]:
        """Appends what `decide` makes of the present servers, the files and the seal. Returns the servers after it."""
        config = self._config()

        def decision(state: Installed) -> Sequence[Event]:
            present = in_force(config, state, lambda text: self._seal.open(text, PURPOSE))
            event = decide(present, config, lambda text: self._seal.seal(text, PURPOSE))
            return [msgspec.structs.replace(event, by=by)]

        await self.states.decide(SCOPE, decision, actor=actor)
        return await self.all()

    async def forget(self, *, actor: str, by: str | None = None) -> None:
        """Drops what is known of all servers; each process ends its sessions with them before it uses one again."""
        await self.states.decide(SCOPE, lambda _: [McpForgotten(by=by)], actor=actor)

    async def accept(self, name: str, *, by: str | None, actor: str) -> Sequence[str]:
        """Accepts what a server says of its tools now. Returns those that were changed. Raises `NotFound`."""
        changed: Sequence[str] = ()

        def decision(state: Installed) -> Sequence[Event]:
            nonlocal changed
            known, seen = state.known.get(name), state.seen.get(name)
            if known is None or known.listing is None or seen is None:
                raise NotFound(f"there is no list of an MCP server {name[:80]!r}")
            changed = seen.changed
            accepted = McpAccepted(server=name, config=known.config, versions=versions(known.listing.tools), by=by)
            return [accepted] if changed else []

        await self.states.decide(SCOPE, decision, actor=actor)
        return changed

    async def server(self, name: str) -> McpServer:
        """Returns an enabled server. Raises `NotFound`."""
        server = (await self.all()).get(name)
        if server is None or not server.enabled:
            raise NotFound(f"the MCP server {name[:80]!r} is not there (any more)")
        return server

    async def authorised(self, name: str, user: str) -> Server:
        """Returns a server as far as authorisation goes (`core.mcp.authorisation.Servers`). Raises `NotFound`."""
        server = await self.server(name)
        return Server(name, server.url or "", server.oauth)


def in_force(config: Config, state: Installed, opened: Callable[[str], str]) -> Mapping[str, McpServer]:
    """Returns all servers by name: those of the files as they are configured now. `opened` opens a sealed text.

    A server whose secrets cannot be opened is disabled, with the reason as its description.
    """
    servers = dict(config.mcp.servers)

    def plain_text(text: str) -> str:  # arguments and addresses of earlier facts are not sealed
        return opened(text) if SEALED.fullmatch(text) else text

    for name, raw in state.changed.items():
        if raw is None:
            servers.pop(name, None)
            continue
        try:
            servers[name] = parsed(name, with_secrets(raw, plain_text))
        except SikaError as error:
            servers[name] = McpServer(enabled=False, description=f"cannot be used: {error}")
    return dict(sorted(servers.items()))


def state_of(server: McpServer, known: Known | None) -> str:
    """Returns how a server is: `off`, `untried` as it is configured now, `failed`, `partly` (some tools are left out)
    or `fine`.
    """
    if not server.enabled:
        return "off"
    if failure_of(server, known) is not None:
        return "failed"
    if known is None or known.listing is None or known.config != config_of(server):
        return "untried"
    return "partly" if any(problem.left_out for problem in known.listing.problems) else "fine"


def failure_of(server: McpServer, known: Known | None) -> McpFailed | None:
    """Returns the failure of a server as it is configured now; None if it did not fail since."""
    failure = known.failure if known is not None else None
    return failure if failure is not None and failure.config == config_of(server) else None


def config_of(server: McpServer) -> str:
    """Returns a short name of a server's configuration, without its secrets."""
    raw = with_secrets(plain(server), lambda _: "")
    relevant = {key: value for key, value in raw.items() if key not in ("enabled", "description", "tool_call_timeout")}
    return hashlib.sha256(msgspec.json.encode(relevant, order="sorted")).hexdigest()[:12]


def _revealed(value: Any) -> Any:
    return value.reveal() if isinstance(value, Secret) else str(value)


def _secret(kind: type[Any], value: Any) -> Any:
    if kind is Secret and isinstance(value, str | int | float) and not isinstance(value, bool):
        return Secret(str(value))
    raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
