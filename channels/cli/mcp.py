"""The commands `sika mcp …`: MCP servers, and Sika as one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, Add, client_of, options_of

if TYPE_CHECKING:
    from core.mcp.servers import Directory as Servers
    from core.runtime.system import System


def mcp_commands(add: Add) -> None:
    """Adds the group `mcp`."""
    mcp = add("mcp", None, "the Model Context Protocol").add_subparsers(required=True, metavar="WHAT")
    serving = add("serve", _mcp_serve, "offer the running server's conversations on standard input and output", mcp)
    serving.add_argument("--url", help="a server elsewhere")
    subparser = add("login", _mcp_login, "log in to an MCP server with an account of yours", mcp)
    subparser.add_argument("server", help="its name in the configuration")
    subparser.add_argument("--register", action="store_true", help="as a new client: it has forgotten the last one")
    subparser.add_argument("--no-browser", action="store_true", help="only print the address")
    add("logout", _mcp_logout, "give your access to an MCP server up", mcp).add_argument("server")
    add("list", _mcp_list, "the MCP servers, and what is wrong with them", mcp)
    adding = add("add", _mcp_add, "add an MCP server to extensions_config.json beside the configuration", mcp)
    adding.add_argument("server", help="its name: its tools begin with it")
    adding.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="COMMAND", help="of a stdio server, with its arguments"
    )
    adding.add_argument("--url", help="of a server that is reached over HTTP")
    adding.add_argument("--sse", action="store_true", help="by the older transport")
    adding.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="$NAME as value is resolved")
    adding.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    adding.add_argument("--trusted", action="store_true", help="run it on this machine without a sandbox")
    testing = add("test", _mcp_test, "list servers anew, and say why one cannot be listed", mcp)
    testing.add_argument("server", nargs="*", help="default: all that are enabled")
    accepting = add("accept", _mcp_accept, "accept what a server says of its tools since it changed them", mcp)
    accepting.add_argument("server")
    add("tools", _mcp_tools, "the tools that servers offer", mcp).add_argument("server", nargs="?")
    calling = add("call", _mcp_call, "call a tool", mcp)
    calling.add_argument("tool", help="its name as `sika mcp tools` shows it")
    calling.add_argument("arguments", nargs="?", default="{}", help="a JSON object")


async def _mcp_serve(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp_serve
    from channels.client.servers import announced
    from channels.terminal.chat.chat import API_KEY
    from core.errors import Unavailable

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
    from core.config.load import ConfigSource
    from core.identity.seal import Seal
    from core.mcp.servers import Directory as Servers

    options = options_of(arguments)
    async with compose.attach(options) as system:
        yield system, Servers(system.log, ConfigSource(options.config).current, Seal(options.home))


async def _mcp_list(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp

    async with _mcp(arguments) as (_, servers):
        print("\n".join(await mcp.servers(servers)))
    return OK


async def _mcp_add(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp
    from core.config import extensions, load

    config = load.find(arguments.config)
    folder = config.parent if config else Path.cwd()
    file = extensions.find(folder, os.environ) or folder / extensions.NAMES[0]
    if arguments.url:
        transport = "sse" if arguments.sse else "http"
        settings = {"type": transport, "url": arguments.url, "headers": mcp.pairs(arguments.header, ":")}
    else:
        program = [*arguments.program[arguments.program[:1] == ["--"] :], ""]
        settings = {"command": program[0], "args": program[1:-1], "env": mcp.pairs(arguments.env, "=")}
    mcp.add(file, arguments.server, settings | ({"trusted": True} if arguments.trusted else {}))
    print(f"{arguments.server} is in {file}; `sika mcp test {arguments.server}` tries it")
    return OK


async def _mcp_test(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp

    async with _mcp(arguments) as (system, servers):
        lines, good = await mcp.test(servers, system.call, arguments.server, mcp.USER)
    print("\n".join(lines))
    return OK if good else FAILED


async def _mcp_accept(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp

    async with _mcp(arguments) as (_, servers):
        print(await mcp.accept(servers, arguments.server))
    return OK


async def _mcp_tools(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp

    async with _mcp(arguments) as (_, servers):
        print("\n".join(await mcp.tools(servers, arguments.server)))
    return OK


async def _mcp_call(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import mcp

    async with _mcp(arguments) as (system, servers):
        text, good = await mcp.call(servers, system.call, arguments.tool, arguments.arguments, mcp.USER)
    print(text)
    return OK if good else FAILED
