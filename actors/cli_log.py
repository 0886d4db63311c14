"""The commands `sika log …`: what recorded threads show."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from actors.cli_common import FAILED, OK, Add, count, digest, options_of, story
from actors.cli_replay import replay_commands
from actors.cli_share import file_of, files_of, share_commands, verify_file

if TYPE_CHECKING:
    from core.replay.source import Source


def log_commands(add: Add) -> None:
    """Adds the group `log`."""
    log = add("log", None, "look into a thread's log").add_subparsers(required=True, metavar="WHAT")
    for name, command, text in (
        ("show", _log_show, "the events, one line each"),
        ("tail", _log_tail, "the events, and new ones as they come"),
        ("state", _log_state, "the state they fold to"),
        ("why", _log_why, "the causes of an event or a call, from the person's message on"),
        ("tree", _log_tree, "the runs as trees of what took time, with their subagents"),
        ("diff", _log_diff, "compare two threads, runs (THREAD#2) or moments (THREAD@EVENT)"),
        ("verify", _log_verify, "check that the log, or an exported file, is sound"),
    ):
        subparser = add(name, command, text, log)
        subparser.add_argument("thread", nargs="?" if name == "verify" else None)
        if name == "verify":
            subparser.add_argument("--all", action="store_true", help="every thread of the log")
            subparser.add_argument("--against", metavar="FILE", help="compare it with an earlier export, too")
        if name == "diff":
            subparser.add_argument("other")
            subparser.add_argument("--whole", action="store_true", help="the steps before the first difference, too")
        if name == "why":
            subparser.add_argument("place", metavar="EVENT|CALL", help="its number, a call's id, an event's id")
        if name == "state":
            subparser.add_argument("--at", metavar="EVENT", help="after this event (default: the last)")
            subparser.add_argument("--path", metavar="PATH", help="a part of it, such as messages[-1].content")
        if name in ("show", "tail", "state", "why", "tree", "diff"):
            subparser.add_argument("--json", action="store_true")
        if name == "show":
            subparser.add_argument("--brief", action="store_true", help="what went as usual on one line per stretch")
        if name in ("show", "tail"):
            subparser.add_argument("--after", type=count, default=0, metavar="SEQ", help="only events after this one")
    share_commands(add, log)
    replay_commands(add, log)


@asynccontextmanager
async def _source(arguments: argparse.Namespace) -> AsyncIterator[Source]:
    """Yields what recorded events are read from: the files that the arguments name, or the log of the data directory's
    server.
    """
    async with files_of(arguments) as files:
        if files and files.complete:
            yield files
            return
        from actors import compose
        from core.replay.source import LogSource

        async with compose.attach(options_of(arguments)) as system:
            files.beside = LogSource(system.log)
            yield files if files else files.beside


async def _log_show(arguments: argparse.Namespace) -> int:
    from channels.terminal import log

    async with _source(arguments) as source:
        lines, after = digest() if arguments.brief else story(), arguments.after
        await log.show(source, arguments.thread, print, after=after, raw=arguments.json, story=lines)
    return OK


async def _log_tail(arguments: argparse.Namespace) -> int:
    from actors import compose
    from channels.terminal import log

    def write(line: str) -> None:
        print(line, flush=True)

    async with compose.attach(options_of(arguments)) as system:
        lines, after = story(), arguments.after
        await log.tail(system.log, arguments.thread, write, after=after, raw=arguments.json, story=lines)
    return OK


async def _log_state(arguments: argparse.Namespace) -> int:
    from channels.terminal import log
    from channels.terminal.text import style_of

    async with _source(arguments) as source:
        style, at, path = style_of(sys.stdout), arguments.at, arguments.path
        await log.state(source, arguments.thread, print, raw=arguments.json, style=style, at=at, path=path)
    return OK


async def _log_why(arguments: argparse.Namespace) -> int:
    from channels.terminal import log
    from channels.terminal.text import style_of

    async with _source(arguments) as source:
        style, place = style_of(sys.stdout), arguments.place
        await log.why(source, arguments.thread, place, print, raw=arguments.json, style=style)
    return OK


async def _log_tree(arguments: argparse.Namespace) -> int:
    from channels.terminal import log
    from channels.terminal.text import style_of

    async with _source(arguments) as source:
        await log.tree(source, arguments.thread, print, raw=arguments.json, style=style_of(sys.stdout))
    return OK


async def _log_diff(arguments: argparse.Namespace) -> int:
    from channels.terminal import log
    from channels.terminal.text import style_of

    async with _source(arguments) as source:
        sides, style = (arguments.thread, arguments.other), style_of(sys.stdout)
        raw, whole = arguments.json, arguments.whole
        different = await log.diff(source, *sides, print, raw=raw, whole=whole, style=style)
    return FAILED if different else OK


async def _log_verify(arguments: argparse.Namespace) -> int:
    from actors import compose
    from channels.terminal.verify import Verdict, verify, verify_all
    from core.errors import Invalid

    if arguments.all == (arguments.thread is not None):
        raise Invalid("log verify: name a thread, or --all")
    if arguments.against or file_of(arguments.thread):
        return await verify_file(arguments)
    async with compose.attach(options_of(arguments)) as system:
        if not arguments.all:
            verdict = await verify(system.log, arguments.thread)
            print("\n".join(verdict.lines()))
            return FAILED if verdict.problems else OK
        verdicts: list[Verdict] = []
        async for thread_id, verdict in verify_all(system.log):
            verdicts.append(verdict)
            if verdict.problems:
                print(f"thread {thread_id}", *(f"  {line}" for line in verdict.lines()), sep="\n", flush=True)
    unsound = sum(bool(verdict.problems) for verdict in verdicts)
    events, runs = sum(verdict.events for verdict in verdicts), sum(verdict.runs for verdict in verdicts)
    counted = f"{len(verdicts)} threads, {events} events, {runs} runs"
    print(f"{unsound} threads have problems, of {counted}" if unsound else f"ok: {counted}")
    return FAILED if unsound else OK
