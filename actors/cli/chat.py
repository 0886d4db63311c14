"""The commands that talk to the agent: `sika chat`, `sika acp`, and `sika threads`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from actors.cli.common import OK, Add, count, options_of


def chat_commands(add: Add) -> None:
    chat = add("chat", _chat, "talk to the agent")
    chat.add_argument("message", nargs="?", help="one message; without it, a conversation")
    thread = chat.add_mutually_exclusive_group()
    thread.add_argument("--thread", metavar="ID", help="go on with this thread, or begin one of this name")
    thread.add_argument("--continue", dest="latest", action="store_true", help="go on with the latest thread")
    chat.add_argument("--url", help="a server elsewhere")
    chat.add_argument("--plan", action="store_true", help="let the agent keep a list of steps (it does so by default)")

    acp = add("acp", _acp, "be an agent of an editor (Agent Client Protocol on standard input and output)")
    acp.add_argument("--url", help="a server elsewhere")

    threads = add("threads", _threads, "the latest threads: id, owner, status, age, title or first words")
    threads.add_argument("--user", metavar="ID", help="only of this user")
    threads.add_argument("--limit", type=count, default=20, metavar="N", help="default: 20")


async def _chat(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from channels.client.servers import announced, healthy
    from channels.terminal.prompt import piped
    from core.errors import Unavailable

    options = options_of(arguments)
    text = "" if sys.stdin.isatty() or arguments.message is None else await piped()
    if arguments.url:
        if not await healthy(arguments.url.rstrip("/")):
            raise Unavailable(f"{arguments.url}: no server answers there")
        return await _talk(arguments, text, arguments.url, lambda: None)
    url = announced(options.home)
    if url is not None and await healthy(url):
        return await _talk(arguments, text, url, lambda: announced(options.home))
    print("no server is running: starting one for this talk", file=sys.stderr)
    from actors.wiring import compose

    async with compose.serve(replace(options, port=0)) as url:
        return await _talk(arguments, text, url, lambda: None)


async def _talk(arguments: argparse.Namespace, piped: str, url: str, locate: Callable[[], str | None]) -> int:
    from functools import partial

    from channels.client.aio import AsyncSikaClient
    from channels.client.errors import ClientError
    from channels.client.options import Defaults
    from channels.terminal.chat import API_KEY, COMMANDS, Chat, explained
    from channels.terminal.files import host_path
    from channels.terminal.interrupts import interrupts
    from channels.terminal.prompt import Piped, Prompt
    from channels.terminal.screen import Screen
    from core.errors import SikaError

    def shown(thread: str, path: str) -> str:
        return f"{url}/api/threads/{thread}/artifacts{path}" if arguments.url else host_path(home, thread, path)

    home = options_of(arguments).home
    key = os.environ.get(API_KEY) or None
    plan: Defaults = {"plan_mode": True} if arguments.plan else {}
    connect = partial(AsyncSikaClient, url=url, api_key=key, locate=locate, **plan)
    try:
        with interrupts() as pressed:
            screen = Screen(sys.stdout, sys.stderr)
            thread, latest = arguments.thread, arguments.latest
            async with Chat(connect, pressed, screen, thread=thread, latest=latest, locate=shown) as chat:
                if arguments.message is not None:
                    return await chat.once(arguments.message, piped)
                history = home / "chat_history" if home.is_dir() else None
                lines = Prompt(history, COMMANDS, chat.threads) if sys.stdin.isatty() else Piped()
                return await chat.converse(lines, url)
    except ClientError as error:
        raise SikaError(explained(error)) from error


async def _acp(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from actors.wiring import compose
    from channels.acp.agent import serve
    from channels.client.aio import AsyncSikaClient
    from channels.client.errors import ClientError
    from channels.client.servers import announced, healthy
    from channels.terminal.chat import API_KEY, explained
    from core.errors import SikaError

    options = options_of(arguments)
    url = arguments.url or announced(options.home)

    async def talk(url: str, locate: Callable[[], str | None]) -> int:
        key = os.environ.get(API_KEY) or None
        try:
            async with AsyncSikaClient(url=url, api_key=key, locate=locate) as client:
                await serve(client)
        except ClientError as error:
            raise SikaError(explained(error)) from error
        return OK

    if arguments.url:
        return await talk(arguments.url, lambda: None)
    if url is not None and await healthy(url):
        return await talk(url, lambda: announced(options.home))
    async with compose.serve(replace(options, port=0)) as url:
        return await talk(url, lambda: None)


async def _threads(arguments: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    import anyio.to_thread

    from channels.terminal.text import age, one_line
    from core.views.overview import newest

    home = options_of(arguments).home
    now = datetime.now(UTC)
    for thread in await anyio.to_thread.run_sync(newest, home, arguments.user, arguments.limit):
        facts = f"{one_line(thread.user, 36):<10} {thread.status:<11} {age(thread.updated_at, now):>6}"
        print(f"{thread.thread_id:<36}  {facts}  {one_line(thread.title, 60) or '(empty)'}")
    return OK
