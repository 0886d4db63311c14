"""The commands that talk to the agent: `sika chat`, `sika acp`, and `sika threads`."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from channels.cli.common import FAILED, OK, Add, count, options_of

if TYPE_CHECKING:
    from channels.client.here import Access, Here
    from channels.terminal.console.screen import Screen


def chat_commands(add: Add) -> None:
    chat = add("chat", _chat, "talk to the agent")
    chat.add_argument("message", nargs="?", help="one message; without it, a conversation")
    thread = chat.add_mutually_exclusive_group()
    thread.add_argument("--thread", metavar="ID", help="go on with this thread, or begin one of this name")
    thread.add_argument("--continue", dest="latest", action="store_true", help="go on with the latest thread")
    chat.add_argument("--url", help="a server elsewhere")
    chat.add_argument("--here", action="store_true", help="let the agent work on the current directory")
    chat.add_argument("--read-only", action="store_true", help="with --here: it changes nothing there")
    show = "with --here: a file that it may read although it looks like a secret, as .env.test; may be repeated"
    chat.add_argument("--show", metavar="NAME", action="append", default=[], help=show)
    who = chat.add_argument_group("who answers, and how (/model, /agent, /mode and /effort change it later)")
    who.add_argument("--model", metavar="NAME", help="a model of the configuration; the first one answers by default")
    who.add_argument("--agent", metavar="NAME", help="a custom agent (`sika agent list`)")
    who.add_argument("--mode", choices=("flash", "thinking", "pro", "ultra"), help="as in the page: how much it thinks")
    who.add_argument("--effort", choices=("minimal", "low", "medium", "high"), help="of models that can be told")
    switch = argparse.BooleanOptionalAction
    who.add_argument("--plan", action=switch, help="let the agent keep a list of steps; by default it does")
    who.add_argument("--subagents", action=switch, help="let it delegate work to subagents; by default it does")
    shown = chat.add_argument_group("what is shown (for programs, standard output is the answer and nothing else)")
    shown.add_argument("--json", action="store_true", help="with a message: print the answer and what it took as JSON")
    shown.add_argument("--quiet", action="store_true", help="print answers and errors only")
    shown.add_argument("--cost", action="store_true", help="print tokens and cost after each turn")

    acp = add("acp", _acp, "be an agent of an editor (Agent Client Protocol on standard input and output)")
    acp.add_argument("--url", help="a server elsewhere")

    folders = add("folders", _folders, "the folders that you let the agent work on")
    folders.add_argument(
        "--allow", metavar="PATH", help="agree to a folder, as the question of `sika chat --here` does"
    )
    folders.add_argument("--read-only", action="store_true", help="with --allow: to reading only")
    folders.add_argument("--forget", metavar="PATH", help="be asked again")

    threads = add("threads", _threads, "the latest threads: id, owner, status, age, title or first words")
    threads.add_argument("--user", metavar="ID", help="only of this user")
    threads.add_argument("--limit", type=count, default=20, metavar="N", help="default: 20")


async def _chat(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from channels.client.servers import announced, healthy
    from channels.terminal.console.prompt import piped
    from core.errors import Invalid, Unavailable

    if arguments.message is None and (arguments.json or arguments.quiet):
        raise Invalid("--json and --quiet go with a message: sika chat --json MESSAGE")
    settle_home(arguments)
    options = options_of(arguments)
    if not await _agreed(arguments):
        return FAILED
    text = "" if sys.stdin.isatty() or arguments.message is None else await piped()
    if arguments.url:
        if not await healthy(arguments.url.rstrip("/")):
            raise Unavailable(f"{arguments.url}: no server answers there")
        return await _talk(arguments, text, arguments.url, lambda: None)
    url = announced(options.home)
    if url is not None and await healthy(url):
        return await _talk(arguments, text, url, lambda: announced(options.home))
    if not arguments.quiet:
        print("no server is running: starting one for this talk", file=sys.stderr)
    from actors.wiring import compose

    async with compose.serve(replace(options, port=0)) as url:
        return await _talk(arguments, text, url, lambda: None)


async def _talk(arguments: argparse.Namespace, piped: str, url: str, locate: Callable[[], str | None]) -> int:
    from functools import partial

    from channels.client.aio import AsyncSikaClient
    from channels.client.errors import ClientError
    from channels.client.here import Consents
    from channels.client.servers import is_local
    from channels.terminal.chat.chat import API_KEY, COMMANDS, Chat, explained
    from channels.terminal.chat.choices import Choices
    from channels.terminal.chat.files import host_path
    from channels.terminal.console.interrupts import interrupts
    from channels.terminal.console.prompt import Completions, Piped, Prompt
    from core.errors import SikaError

    def shown(thread: str, path: str) -> str:
        return f"{url}/api/threads/{thread}/artifacts{path}" if arguments.url else host_path(home, thread, path)

    home = options_of(arguments).home
    here, consents = _here(arguments), None if arguments.url and not is_local(url) else Consents(home)
    key = os.environ.get(API_KEY) or None
    names = ("model", "agent", "mode", "effort", "plan", "subagents")
    chosen = Choices(**{name: getattr(arguments, name) for name in names})
    connect = partial(AsyncSikaClient, url=url, api_key=key, locate=locate)
    answers = io.StringIO() if arguments.json else sys.stdout
    try:
        with interrupts() as pressed:
            async with Chat(
                connect,
                pressed,
                _screen(arguments, answers),
                thread=arguments.thread,
                latest=arguments.latest,
                here=here,
                consents=consents,
                locate=shown,
                chosen=chosen,
                costs=arguments.cost,
            ) as chat:
                if arguments.message is not None:
                    code = await chat.once(arguments.message, piped)
                    if isinstance(answers, io.StringIO):
                        print(json.dumps({"answer": answers.getvalue().rstrip("\n"), **await chat.report()}))
                    return code
                history = home / "chat_history" if home.is_dir() else None
                lines = Prompt(history, Completions(COMMANDS, chat.words)) if sys.stdin.isatty() else Piped()
                return await chat.converse(lines, url)
    except ClientError as error:
        raise SikaError(explained(error)) from error


def _screen(arguments: argparse.Namespace, answers: TextIO) -> Screen:
    """Returns the screen: of a terminal, or of a program that gets the answers only."""
    from channels.terminal.console.screen import Screen

    if answers is sys.stdout and answers.isatty() and not arguments.quiet:
        return Screen(sys.stdout, sys.stderr)
    return Screen(io.StringIO() if arguments.quiet else sys.stderr, sys.stderr, answers, quiet=arguments.quiet)


def settle_home(arguments: argparse.Namespace) -> None:
    """Lets work on a folder of the person's use an installation outside of it: `~/.sika`, if none is named or here.

    A server that starts in the folder would keep its data there, and read its configuration from there.
    """
    named = ("SIKA_HOME", "DEER_FLOW_HOME", "DEER_FLOW_PROJECT_ROOT")
    if not arguments.here or arguments.home or any(map(os.environ.get, named)) or Path(".sika").exists():
        return
    os.environ["DEER_FLOW_PROJECT_ROOT"] = str(Path.home() / ".sika")


def _here(arguments: argparse.Namespace) -> Here | None:
    from channels.client.here import Here

    if not arguments.here:
        return None
    access: Access = "read-only" if arguments.read_only else "read-write"
    return Here(os.path.realpath(os.getcwd()), access, tuple(arguments.show))


async def _agreed(arguments: argparse.Namespace) -> bool:
    """Asks the person about the folder, once. Raises `Invalid` if nobody can be asked."""
    from channels.client.here import Consents, is_yes, question
    from channels.client.servers import is_local
    from channels.terminal.console.prompt import ask
    from core.errors import Invalid

    here = _here(arguments)
    if here is None:
        if arguments.read_only or arguments.show:
            raise Invalid("--read-only and --show belong to --here")
        return True
    if arguments.url and not is_local(arguments.url):
        raise Invalid(f"--here: {arguments.url} is another machine, which does not see this folder")
    consents = Consents(options_of(arguments).home)
    if consents.covers(here):
        return True
    if not sys.stdin.isatty():
        raise Invalid(f"--here: nobody has agreed to {here.line} yet: run it at a terminal once, or `sika folders`")
    print(question(here), file=sys.stderr)
    if not is_yes(await ask("Do you agree (y/n)", "n", False)):
        return False
    consents.agree(here)
    return True


async def _folders(arguments: argparse.Namespace) -> int:
    from channels.client.here import Consents, Here
    from channels.terminal.text import one_line
    from core.errors import NotFound

    arguments.here = True
    settle_home(arguments)
    consents = Consents(options_of(arguments).home)
    if arguments.allow:
        access: Access = "read-only" if arguments.read_only else "read-write"
        consents.agree(Here(os.path.realpath(arguments.allow), access))
    if arguments.forget and not consents.forget(path := os.path.realpath(arguments.forget)):
        raise NotFound(f"{path}: not among the folders")
    for path, consent in sorted(consents.all().items()):
        shown = f"  shows {', '.join(consent.show)}" if consent.show else ""
        print(f"{consent.access:<10}  {consent.at[:10]}  {one_line(path, 500)}{one_line(shown, 500)}")
    return OK


async def _acp(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from actors.wiring import compose
    from channels.acp.agent import serve
    from channels.client.aio import AsyncSikaClient
    from channels.client.errors import ClientError
    from channels.client.here import Consents
    from channels.client.servers import announced, healthy, is_local
    from channels.terminal.chat.chat import API_KEY, explained
    from core.errors import SikaError

    arguments.here = True
    settle_home(arguments)
    options = options_of(arguments)
    url = arguments.url or announced(options.home)
    consents = Consents(options.home) if not arguments.url or is_local(arguments.url) else None

    async def talk(url: str, locate: Callable[[], str | None]) -> int:
        key = os.environ.get(API_KEY) or None
        try:
            async with AsyncSikaClient(url=url, api_key=key, locate=locate) as client:
                await serve(client, consents)
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
