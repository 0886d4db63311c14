"""`sika mcp`: the MCP servers, what they offer, a call of one of their tools, and Sika as one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from anyio import move_on_after, sleep

from channels.cli.common import FAILED, OK, client_of, options_of
from channels.cli.verbs import Parser
from channels.client.servers import announced
from channels.terminal.chat.chat import API_KEY
from channels.terminal.table import table
from channels.terminal.text import clean, one_line
from core.config import extensions, load
from core.config.load import ConfigSource
from core.config.mcp import McpServer
from core.errors import Invalid, NotFound, Refused, Unavailable
from core.identity.principal import LOCAL
from core.identity.seal import Seal
from core.log.repository import Repository
from core.mcp.names import names_of
from core.mcp.servers import SCOPE, Directory, Installed, Known, config_of, failure_of, parsed, state_of
from core.mcp.servers import Directory as Servers
from core.phrases import counted
from core.ports.mcp_frames import Listing, Problem
from core.runtime.readiness import Finding
from core.runtime.system import System


def arguments(parser: Parser) -> None:
    add_verb = parser.below()
    serving = add_verb("serve", _mcp_serve, "offer the running server's conversations on standard input and output")
    serving.add_argument("--url", help="a server elsewhere")
    subparser = add_verb("login", _mcp_login, "log in to an MCP server with an account of yours")
    subparser.add_argument("server", help="its name in the configuration")
    subparser.add_argument("--register", action="store_true", help="as a new client: it has forgotten the last one")
    subparser.add_argument("--no-browser", action="store_true", help="only print the address")
    add_verb("logout", _mcp_logout, "give your access to an MCP server up").add_argument("server")
    add_verb("list", _mcp_list, "the MCP servers, and what is wrong with them")
    adding = add_verb("add", _mcp_add, "add an MCP server to extensions_config.json beside the configuration")
    adding.add_argument("server", help="its name: its tools begin with it")
    adding.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="COMMAND", help="of a stdio server, with its arguments"
    )
    adding.add_argument("--url", help="of a server that is reached over HTTP")
    adding.add_argument("--sse", action="store_true", help="by the older transport")
    adding.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="$NAME as value is resolved")
    adding.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    adding.add_argument("--trusted", action="store_true", help="run it on this machine without a sandbox")
    testing = add_verb("test", _mcp_test, "list servers anew, and say why one cannot be listed")
    testing.add_argument("server", nargs="*", help="default: all that are enabled")
    accepting = add_verb("accept", _mcp_accept, "accept what a server says of its tools since it changed them")
    accepting.add_argument("server")
    add_verb("tools", _mcp_tools, "the tools that servers offer").add_argument("server", nargs="?")
    calling = add_verb("call", _mcp_call, "call a tool")
    calling.add_argument("tool", help="its name as `sika mcp tools` shows it")
    calling.add_argument("arguments", nargs="?", default="{}", help="a JSON object")


async def _mcp_serve(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp_serve

    home, url = options_of(arguments).home, (arguments.url or "").rstrip("/")
    locate = (lambda: url) if url else (lambda: announced(home))
    if locate() is None:
        raise Unavailable(f"no server is running in {home}; start one with `sika serve`, or name one with --url")
    await mcp_serve.serve(locate, os.environ.get(API_KEY) or None)
    return OK


async def _mcp_login(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp_login

    async with client_of(arguments) as client:
        browser = not arguments.no_browser and sys.stdout.isatty()
        await mcp_login.login(client, arguments.server, sys.stdout, register=arguments.register, browser=browser)
    return OK


async def _mcp_logout(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp_login

    async with client_of(arguments) as client:
        await mcp_login.logout(client, arguments.server, sys.stdout)
    return OK


@asynccontextmanager
async def _mcp(arguments: argparse.Namespace) -> AsyncIterator[tuple[System, Servers]]:
    """The running system, and its MCP servers."""
    from actors.wiring import compose

    options = options_of(arguments)
    async with compose.attach(options) as system:
        yield system, Servers(system.log, ConfigSource(options.config).current, Seal(options.home))


async def _mcp_list(arguments: argparse.Namespace) -> int:
    async with _mcp(arguments) as (_, directory):
        print("\n".join(await servers(directory)))
    return OK


async def _mcp_add(arguments: argparse.Namespace) -> int:
    config = load.find(arguments.config)
    folder = config.parent if config else Path.cwd()
    file = extensions.find(folder, os.environ) or folder / extensions.NAMES[0]
    if arguments.url:
        transport = "sse" if arguments.sse else "http"
        settings = {"type": transport, "url": arguments.url, "headers": pairs(arguments.header, ":")}
    else:
        program = [*arguments.program[arguments.program[:1] == ["--"] :], ""]
        settings = {"command": program[0], "args": program[1:-1], "env": pairs(arguments.env, "=")}
    add(file, arguments.server, settings | ({"trusted": True} if arguments.trusted else {}))
    print(f"{arguments.server} is in {file}; `sika mcp test {arguments.server}` tries it")
    return OK


async def _mcp_test(arguments: argparse.Namespace) -> int:
    async with _mcp(arguments) as (system, directory):
        lines, good = await test(directory, system.call, arguments.server, USER)
    print("\n".join(lines))
    return OK if good else FAILED


async def _mcp_accept(arguments: argparse.Namespace) -> int:
    async with _mcp(arguments) as (_, directory):
        print(await accept(directory, arguments.server))
    return OK


async def _mcp_tools(arguments: argparse.Namespace) -> int:
    async with _mcp(arguments) as (_, directory):
        print("\n".join(await tools(directory, arguments.server)))
    return OK


async def _mcp_call(arguments: argparse.Namespace) -> int:
    async with _mcp(arguments) as (system, directory):
        text, good = await call(directory, system.call, arguments.tool, arguments.arguments, USER)
    print(text)
    return OK if good else FAILED


Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
USER = LOCAL.user
READ_SECONDS = 3.0
INTERCEPTORS = "mcp.interceptors"
"""Beginning of reasons that are in our configuration, not in a server."""


async def servers(directory: Directory) -> Iterator[str]:
    """Returns a line for each server: its transport, its state and what is wrong with it."""
    return _lines(await directory.all(), await directory.states.load(SCOPE))


def _lines(configured: Mapping[str, McpServer], state: Installed) -> Iterator[str]:
    if not configured:
        yield "no MCP servers; `sika mcp add` adds one"
        return
    rows = (_cells(name, server, state) for name, server in configured.items())
    yield from table(rows, ("SERVER", "TYPE", "STATE", "TOOLS"), right=[3])


def _cells(name: str, server: McpServer, state: Installed) -> Sequence[object]:
    known = state.known.get(name)
    failure = failure_of(server, known)
    tools = len(known.listing.tools) if known is not None and known.listing is not None else 0
    fresh = known is not None and known.config == config_of(server)
    word = state_of(server, known)
    seen = state.seen.get(name)
    changed = f"changed since they were seen: {', '.join(seen.changed)}" if seen and fresh and seen.changed else ""
    wrong = "; ".join(_problem(problem) for problem in _problems_of(known)) if fresh else ""
    text = failure.reason if failure else server.problem or changed or wrong or server.description
    return one_line(name, 80), server.transport, word, tools or "", one_line(clean(text), 200)


def _problems_of(known: Known | None) -> Sequence[Problem]:
    return known.listing.problems if known is not None and known.listing is not None else ()


def _problem(problem: Problem) -> str:
    name, reason = one_line(problem.tool, 80), one_line(problem.reason, 300)
    return f"{name} is left out: {reason}" if name and problem.left_out else f"{name}: {reason}" if name else reason


async def health(
    states: Repository[Installed], configured: Callable[[Installed], Mapping[str, McpServer]]
) -> list[Finding]:
    """Says of each server how it is, and of each tool that is left out or changed why, for `sika doctor`."""
    state = await states.load(SCOPE)
    servers = configured(state).items()
    return [finding for name, server in servers for finding in _findings(name, server, state.known.get(name))]


def _findings(name: str, server: McpServer, known: Known | None) -> Iterator[Finding]:
    if (state := state_of(server, known)) == "off":
        return
    again = f"`sika mcp test {name}` tries it"
    if failure := failure_of(server, known):
        yield Finding("MCP", "warn", f"{name} failed: {one_line(failure.reason, 300)}", f"{again} again")
    elif state == "untried":
        yield _untried(name, server, again)
    else:
        listing = (known and known.listing) or Listing()
        yield Finding("MCP", "ok", f"{name} is {state}: {counted(len(listing.tools), 'tool')}")
        ours = [problem for problem in listing.problems if problem.reason.startswith(INTERCEPTORS)]
        yield from (
            Finding("MCP", "warn", f"{name}: {_problem(problem)}", "correct the configuration") for problem in ours
        )
        *most, last = [_problem(problem) for problem in listing.problems if problem not in ours] or [""]
        yield from (Finding("MCP", "warn", f"{name}: {text}") for text in most)
        if last:
            yield Finding("MCP", "warn", f"{name}: {last}", "tell the server's maintainer; its other tools work")


def _untried(name: str, server: McpServer, advice: str) -> Finding:
    if server.problem:
        return Finding("MCP", "warn", f"{name} cannot be started: {server.problem}", "correct its settings")
    return Finding("MCP", "warn", f"{name} was not tried yet", advice)


def unreached(servers: Mapping[str, McpServer]) -> list[Finding]:
    """Says of configured servers what is known while no server of Sika runs: what their settings lack."""
    advice = "`sika serve` has to run; then `sika mcp test` tries them"
    return [_untried(name, server, advice) for name, server in servers.items() if server.enabled]


async def accept(directory: Directory, name: str) -> str:
    """Accepts what a server says of its tools now. Returns a line that names those that were changed."""
    changed = await directory.accept(name, by=None, actor="cli")
    return f"{name}: accepted {clean(', '.join(changed))}" if changed else f"{name}: nothing has changed"


async def changes(states: Repository[Installed]) -> list[Finding]:
    """Names servers whose tools are described otherwise than when they were seen, for `sika doctor`."""
    state = await states.load(SCOPE)
    return [
        Finding(
            "MCP",
            "warn",
            f"{name} describes tools otherwise than when they were seen: {', '.join(seen.changed)}",
            f"read them with `sika mcp tools {name}`, then `sika mcp accept {name}`",
        )
        for name, seen in state.seen.items()
        if seen.changed and name in state.known
    ]


async def test(directory: Directory, ask: Ask, names: Sequence[str], user: str) -> tuple[list[str], bool]:
    """Lists servers anew. Returns a line for each, and whether all could be listed."""
    configured = await directory.all()
    if unknown := [name for name in names if name not in configured]:
        raise NotFound(f"there is no MCP server {unknown[0]!r}; there are: {', '.join(configured) or 'none'}")
    chosen = list(names) or [name for name, server in configured.items() if server.enabled]
    failures = await _failures(ask, {"op": "list", "servers": chosen, "user": user, "again": True})
    known = (await directory.states.load(SCOPE)).known
    lines = []
    for name in chosen:
        listing = known[name].listing if name in known else None
        count = len(listing.tools) if listing is not None else 0
        lines.append(f"{name}: {clean(failures[name])}" if name in failures else f"{name}: {counted(count, 'tool')}")
    return lines, not failures


async def _failures(ask: Ask, request: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the failures. The running server may not have read a changed file yet: it has some seconds for that."""
    with move_on_after(READ_SECONDS):
        while True:
            try:
                return dict(await ask("mcp", request))
            except NotFound:
                await sleep(0.2)
    return dict(await ask("mcp", request))


async def tools(directory: Directory, name: str | None) -> Iterator[str]:
    """Returns a line for each tool, as the agent calls it, and for each resource and prompt, as a message names it."""
    configured, state = await directory.all(), await directory.states.load(SCOPE)
    if name is not None and name not in configured:
        raise NotFound(f"there is no MCP server {name!r}; there are: {', '.join(configured) or 'none'}")
    return _tools([server for server in configured if name in (None, server)], state)


def _tools(names: Sequence[str], state: Installed) -> Iterator[str]:
    listings = {name: known.listing for name in names if (known := state.known.get(name)) and known.listing}
    offers = {(name, offer.name): offer for name, listing in listings.items() for offer in listing.tools}
    for shown, place in names_of(offers, ()).items():
        offer = offers[place]
        yield f"{shown}  ({offer.effect})  {one_line(clean(offer.description), 120)}"
    for server, listing in listings.items():
        for offer in listing.resources:
            text = one_line(clean(f"{offer.name} {offer.description}"), 120)
            yield f"@{server}:{one_line(offer.uri, 200)}  (resource)  {text}"
        for offer in listing.prompts:
            words = " ".join([offer.name, *offer.schema])
            yield f"/{server}:{one_line(words, 200)}  (prompt)  {one_line(clean(offer.description), 120)}".rstrip()


async def call(directory: Directory, ask: Ask, name: str, arguments: str, user: str) -> tuple[str, bool]:
    """Calls a tool by the name that `tools` shows. Returns its text, and whether it succeeded."""
    try:
        parsed_arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Invalid(f"the arguments are no JSON object: {error}") from None
    state = await directory.states.load(SCOPE)
    configured = await directory.all()
    listings = {server: known.listing for server, known in state.known.items() if server in configured}
    offers = {(server, offer.name): offer for server, listing in listings.items() if listing for offer in listing.tools}
    place = names_of(offers, ()).get(name)
    if place is None:
        raise NotFound(f"there is no tool {name!r}; see `sika mcp tools`, and `sika mcp test` for servers")
    request = {"op": "call", "server": place[0], "tool": place[1], "arguments": parsed_arguments, "user": user}
    answer = await ask("mcp", {**request, "once": True})
    return clean(str(answer["text"])), not answer.get("failed")


def add(file: Path, name: str, settings: Mapping[str, Any]) -> None:
    """Adds a server to the file beside the configuration. Keeps what else is there.

    Raises `Refused` if there is a server of this name, `Invalid` for settings that are wrong.
    """
    if problem := parsed(name, settings).problem:
        raise Invalid(problem)
    text = file.read_text() if file.exists() else ""
    extensions.read(text, file.name, os.environ)
    content = json.loads(text) if text.strip() else {}
    servers = content.setdefault("mcpServers", {})
    if name in servers:
        raise Refused(f"{file.name}: there is a server {name!r} already")
    servers[name] = dict(settings)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as draft:
        draft.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    os.replace(draft.name, file)


def pairs(texts: Sequence[str], separator: str) -> dict[str, str]:
    """Returns texts such as `NAME=value` as a mapping. Raises `Invalid`."""
    for text in texts:
        if separator not in text:
            raise Invalid(f"{text!r}: expected NAME{separator}VALUE")
    return {name.strip(): value.strip() for name, _, value in (text.partition(separator) for text in texts)}
