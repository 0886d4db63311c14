"""The commands `sika log …`: what recorded threads show."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, count, digest, options_of, prices_of, story, width
from channels.cli.log.replaying import replay_commands
from channels.cli.log.sharing import share_commands, verify_file
from channels.cli.log.sources import file_of, source_of
from channels.cli.verbs import Below, Parser

if TYPE_CHECKING:
    from datetime import datetime

    from core.replay.listing import Filter, Listing

THREAD = "a thread's id, the beginning of one, @last, @last-failed, or subagent/ID; or an exported file"


def arguments(parser: Parser) -> None:
    add = parser.below()
    _overviews(add)
    for name, command, text in (
        ("show", _log_show, "the steps, one line each; or one event in full"),
        ("tail", _log_tail, "the events, and new ones as they come"),
        ("state", _log_state, "the state they fold to"),
        ("why", _log_why, "the causes of an event or a call, from the person's message on"),
        ("request", _log_request, "what a model call got: parameters, tools, system prompt, messages"),
        ("tree", _log_tree, "the runs as trees of what took time, with their subagents"),
        ("tui", _log_tui, "the events and states full screen, with a slider through time"),
        ("diff", _log_diff, "compare two threads, runs (THREAD#2) or moments (THREAD@EVENT)"),
        ("verify", _log_verify, "check that the log, or an exported file, is sound"),
    ):
        subparser = add(name, command, text)
        subparser.add_argument("thread", nargs="?" if name == "verify" else None, help=THREAD)
        if name == "verify":
            subparser.add_argument("--all", action="store_true", help="every thread of the log")
            subparser.add_argument("--against", metavar="FILE", help="compare it with an earlier export, too")
        if name == "diff":
            subparser.add_argument("other")
            subparser.add_argument("--whole", action="store_true", help="the steps before the first difference, too")
        if name == "why":
            subparser.add_argument("place", metavar="EVENT|CALL", help="its number, a call's id, an event's id")
        if name == "request":
            subparser.add_argument("place", metavar="EVENT", help="its answer or failure: a number, an event's id")
        if name == "state":
            subparser.add_argument("--at", metavar="EVENT", help="after this event (default: the last)")
            subparser.add_argument("--path", metavar="PATH", help="a part of it, such as messages[-1].content")
        if name in ("show", "tail", "state", "why", "request", "tree", "diff"):
            subparser.add_argument("--json", action="store_true")
        if name == "show":
            _of_show(subparser)
        if name in ("show", "tail"):
            subparser.add_argument("--after", type=count, default=0, metavar="EVENT", help="only events after this one")
    share_commands(add)
    replay_commands(add)


def _of_show(subparser: argparse.ArgumentParser) -> None:
    subparser.add_argument("place", nargs="?", metavar="EVENT|CALL", help="this event in full")
    subparser.add_argument("--brief", action="store_true", help="what went as usual on one line per stretch")
    subparser.add_argument("--events", action="store_true", help="a line for each event")
    subparser.add_argument(
        "--errors", action="store_true", help="only what went wrong or was stopped by a policy, also commands"
    )
    subparser.add_argument("--type", action="append", default=[], metavar="TYPE", help="only this type: tool.*")
    subparser.add_argument("--grep", metavar="REGEX", help="only events with this text")
    subparser.add_argument("--run", metavar="RUN", help="only this run: its number, its id, @last, @last-failed")
    subparser.add_argument("--until", metavar="EVENT", help="only events up to this one")


def _overviews(add: Below) -> None:
    """Adds the commands over all threads."""
    lists, finds = add("list", _log_list, "the threads, newest first"), add("find", _log_find, "events")
    finds.add_argument("text", nargs="?", metavar="REGEX", help="text of the event")
    finds.add_argument("--type", action="append", default=[], metavar="TYPE", help="a type, or a pattern: tool.*")
    finds.add_argument("--tool", default="", help="calls of this tool")
    finds.add_argument("--seconds", type=float, default=0.0, help="that took at least so long")
    finds.add_argument("--cost", type=float, default=0.0, help="model calls that cost at least so much")
    finds.add_argument("--until", default="", metavar="TIME", help="ISO 8601, or an age: 90min, 12h, 7d")
    lists.add_argument("--status", default="", help="of the last run: success, paused, error, interrupted, running …")
    lists.add_argument("--text", default="", help="in the title or the first message")
    for subparser in (lists, finds):
        subparser.add_argument("--user", default="")
        subparser.add_argument("--model", default="")
        failed = "with a run that failed or was stopped" if subparser is lists else "what went wrong, or was stopped"
        subparser.add_argument("--errors", action="store_true", help=failed)
        subparser.add_argument("--since", default="", metavar="TIME", help="ISO 8601, or an age: 90min, 12h, 7d")
        subparser.add_argument("--limit", type=count, default=100)
        subparser.add_argument("--json", action="store_true")
        subparser.add_argument("--in", dest="file", metavar="FILE", help="of an exported file, without a server")


async def _log_show(arguments: argparse.Namespace) -> int:
    from channels.terminal.log import views as log
    from channels.terminal.text import style_of
    from core.replay.find import Query

    style, raw = style_of(sys.stdout), arguments.json
    filters = arguments.errors or arguments.type or arguments.grep
    extent = log.Extent(arguments.run, str(arguments.after), arguments.until)
    async with source_of(arguments) as (source, _):
        if arguments.place is not None:
            await log.event(source, arguments.thread, arguments.place, print, raw=raw, style=style)
        elif raw or arguments.brief or arguments.events or filters:
            query = Query.of(arguments.grep, types=tuple(arguments.type), errors=arguments.errors)
            lines = digest() if arguments.brief else story()
            await log.show(source, arguments.thread, print, extent=extent, raw=raw, story=lines, query=query)
        else:
            prices = prices_of(arguments)
            await log.steps(source, arguments.thread, print, extent=extent, style=style, width=width(), prices=prices)
    return OK


async def _log_list(arguments: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from channels.cli.log import list as log_list
    from channels.terminal.text import style_of
    from core.replay.listing import Filter

    now = datetime.now(UTC)
    conditions = Filter(
        user=arguments.user,
        status=arguments.status,
        since=_time(arguments.since, now),
        text=arguments.text,
        model=arguments.model,
        errors=arguments.errors,
    )
    listing = await _listing(arguments, conditions)
    log_list.show(listing, print, now=now, style=style_of(sys.stdout), width=width(), raw=arguments.json)
    return OK


async def _listing(arguments: argparse.Namespace, conditions: Filter) -> Listing:
    """Returns the threads of a file or of the data directory. Without read models the log is read, once and whole."""
    import anyio.to_thread

    from core.config.load import home
    from core.replay.listing import listed_in_views, threads_of_file

    if not arguments.file:
        path = home(arguments.home)
        listing = await anyio.to_thread.run_sync(listed_in_views, path, conditions, arguments.limit)
        if listing is not None:
            return listing
    async with source_of(arguments) as (source, _):
        return await threads_of_file(source, conditions, arguments.limit)


async def _log_find(arguments: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from channels.cli.log import find as log_find
    from channels.terminal.text import style_of
    from core.replay.find import Query

    now = datetime.now(UTC)
    query = Query.of(
        arguments.text,
        types=tuple(arguments.type),
        tool=arguments.tool,
        errors=arguments.errors,
        model=arguments.model,
        user=arguments.user,
        since=_time(arguments.since, now),
        until=_time(arguments.until, now),
        seconds=arguments.seconds,
        cost=arguments.cost,
    )
    prices = prices_of(arguments)
    shape = {"style": style_of(sys.stdout), "width": width(), "limit": arguments.limit, "raw": arguments.json}

    def write(line: str) -> None:
        print(line, flush=True)

    async with source_of(arguments) as (source, _):
        hits = await log_find.show(source, query, write, prices=prices, **shape)
    return OK if hits else FAILED


def _time(text: str, now: datetime) -> str:
    """Returns a time as events have it, of an ISO time or an age. Raises `Invalid`."""
    from datetime import UTC, datetime

    from channels.terminal.text import period
    from core.errors import Invalid

    if not text:
        return ""
    try:
        if age := period(text):
            return (now - age).isoformat()
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"{text!r}: a time is ISO 8601, or an age such as 90min, 12h, 7d") from error
    return time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC).isoformat()


async def _log_tail(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.terminal.log import views as log
    from core.errors import Invalid

    def write(line: str) -> None:
        print(line, flush=True)

    if file := file_of(arguments.thread):
        raise Invalid(f"log tail: {file[0]} is a file, to which nothing comes; sika log show --events reads it")
    async with compose.attach(options_of(arguments)) as system:
        lines, after = story(), arguments.after
        await log.tail(system.log, arguments.thread, write, after=after, raw=arguments.json, story=lines)
    return OK


async def _log_state(arguments: argparse.Namespace) -> int:
    from channels.terminal.log import views as log
    from channels.terminal.text import style_of

    async with source_of(arguments) as (source, _):
        style, at, path = style_of(sys.stdout), arguments.at, arguments.path
        await log.state(source, arguments.thread, print, raw=arguments.json, style=style, at=at, path=path)
    return OK


async def _log_why(arguments: argparse.Namespace) -> int:
    from channels.terminal.log import views as log
    from channels.terminal.text import style_of

    async with source_of(arguments) as (source, _):
        style, place = style_of(sys.stdout), arguments.place
        await log.why(source, arguments.thread, place, print, raw=arguments.json, style=style, width=width())
    return OK


async def _log_request(arguments: argparse.Namespace) -> int:
    from channels.cli.log import request
    from channels.terminal.text import style_of

    async with source_of(arguments) as (source, _):
        style, place = style_of(sys.stdout), arguments.place
        await request.show(source, arguments.thread, place, print, raw=arguments.json, style=style)
    return OK


async def _log_tree(arguments: argparse.Namespace) -> int:
    from channels.terminal.log import views as log
    from channels.terminal.text import style_of

    async with source_of(arguments) as (source, _):
        style, prices = style_of(sys.stdout), prices_of(arguments)
        await log.tree(source, arguments.thread, print, raw=arguments.json, style=style, prices=prices)
    return OK


async def _log_tui(arguments: argparse.Namespace) -> int:
    from core.errors import Invalid

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Invalid("log tui: needs a terminal; sika log show prints the events")
    from channels.terminal.tui import app

    async with source_of(arguments) as (source, _):
        await app.show(source, arguments.thread)
    return OK


async def _log_diff(arguments: argparse.Namespace) -> int:
    from channels.terminal.log import views as log
    from channels.terminal.text import style_of

    async with source_of(arguments) as (source, _):
        sides, style = (arguments.thread, arguments.other), style_of(sys.stdout)
        shape = {"raw": arguments.json, "whole": arguments.whole, "style": style, "prices": prices_of(arguments)}
        different = await log.diff(source, *sides, print, **shape)
    return FAILED if different else OK


async def _log_verify(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.cli.log.verify import Verdict, verify, verify_all
    from core.errors import Invalid
    from core.replay.source import LogSource, aggregate_of

    if arguments.all == (arguments.thread is not None):
        raise Invalid("log verify: name a thread, or --all")
    if arguments.against or file_of(arguments.thread):
        return await verify_file(arguments)
    options = options_of(arguments)
    async with compose.attach(options) as system:
        if not arguments.all:
            source = LogSource(system.log, options.home)
            verdict = await verify(system.log, (await aggregate_of(source, arguments.thread)).id)
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
