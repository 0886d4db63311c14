"""`sika chat`: talk to the agent."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

from channels.cli.common import FAILED, options_of
from channels.cli.use.folders import settle_home
from channels.cli.verbs import Parser
from channels.client.aio import AsyncSikaClient
from channels.client.errors import ClientError
from channels.client.here import Access, Consents, Here, is_yes, question
from channels.client.servers import announced, healthy, is_local
from channels.terminal.chat.chat import API_KEY, COMMANDS, Chat, explained
from channels.terminal.chat.choices import Choices
from channels.terminal.chat.files import host_path
from channels.terminal.console.interrupts import interrupts
from channels.terminal.console.lines import Lines, Piped, ask, piped
from channels.terminal.console.screen import Screen
from core.errors import Invalid, SikaError, Unavailable


def arguments(parser: Parser) -> None:
    parser.runs(_chat)
    parser.add_argument("message", nargs="?", help="one message; without it, a conversation")
    thread = parser.add_mutually_exclusive_group()
    thread.add_argument("--thread", metavar="ID", help="go on with this thread, or begin one of this name")
    thread.add_argument("--continue", dest="latest", action="store_true", help="go on with the latest thread")
    parser.add_argument("--url", help="a server elsewhere")
    parser.add_argument("--here", action="store_true", help="let the agent work on the current directory")
    parser.add_argument("--read-only", action="store_true", help="with --here: it changes nothing there")
    show = "with --here: a file that it may read although it looks like a secret, as .env.test; may be repeated"
    parser.add_argument("--show", metavar="NAME", action="append", default=[], help=show)
    who = parser.add_argument_group("who answers, and how (/model, /agent, /mode and /effort change it later)")
    who.add_argument("--model", metavar="NAME", help="a model of the configuration; the first one answers by default")
    who.add_argument("--agent", metavar="NAME", help="a custom agent (`sika agent list`)")
    who.add_argument("--mode", choices=("flash", "thinking", "pro", "ultra"), help="as in the page: how much it thinks")
    who.add_argument("--effort", choices=("minimal", "low", "medium", "high"), help="of models that can be told")
    switch = argparse.BooleanOptionalAction
    who.add_argument("--plan", action=switch, help="let the agent keep a list of steps; by default it does")
    who.add_argument("--subagents", action=switch, help="let it delegate work to subagents; by default it does")
    shown = parser.add_argument_group("what is shown (for programs, standard output is the answer and nothing else)")
    shown.add_argument("--json", action="store_true", help="with a message: print the answer and what it took as JSON")
    shown.add_argument("--quiet", action="store_true", help="print answers and errors only")
    shown.add_argument("--cost", action="store_true", help="print tokens and cost after each turn")


async def _chat(arguments: argparse.Namespace) -> int:
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
    def place_of(thread: str, path: str) -> str:
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
                locate=place_of,
                chosen=chosen,
                costs=arguments.cost,
            ) as chat:
                if arguments.message is not None:
                    code = await chat.once(arguments.message, piped)
                    if isinstance(answers, io.StringIO):
                        print(json.dumps({"answer": answers.getvalue().rstrip("\n"), **await chat.report()}))
                    return code
                lines = _typed(home, chat) if sys.stdin.isatty() else Piped()
                return await chat.converse(lines, url)
    except ClientError as error:
        raise SikaError(explained(error)) from error


def _typed(home: Path, chat: Chat) -> Lines:
    """Returns the lines that the person types at the terminal."""
    from channels.terminal.console.prompt import Completions, Prompt  # takes 0.2 s

    history = home / "chat_history" if home.is_dir() else None
    return Prompt(history, Completions(COMMANDS, chat.words))


def _screen(arguments: argparse.Namespace, answers: TextIO) -> Screen:
    """Returns the screen: of a terminal, or of a program that gets the answers only."""
    if answers is sys.stdout and answers.isatty() and not arguments.quiet:
        return Screen(sys.stdout, sys.stderr)
    return Screen(io.StringIO() if arguments.quiet else sys.stderr, sys.stderr, answers, quiet=arguments.quiet)


def _here(arguments: argparse.Namespace) -> Here | None:
    if not arguments.here:
        return None
    access: Access = "read-only" if arguments.read_only else "read-write"
    return Here(os.path.realpath(os.getcwd()), access, tuple(arguments.show))


async def _agreed(arguments: argparse.Namespace) -> bool:
    """Asks the person about the folder, once. Raises `Invalid` if nobody can be asked."""
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
