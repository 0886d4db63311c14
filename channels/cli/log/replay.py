"""`sika log replay`: recorded runs executed again on their outcomes, and compared."""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, options_of
from channels.cli.log.sources import source_of
from channels.cli.verbs import Parser

if TYPE_CHECKING:
    from core.replay.source import Source
    from core.runs.replay import Look, Report


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", nargs="?")
    parser.add_argument("--until", metavar="EVENT", help="only events up to this one")
    parser.add_argument(
        "--break", action="append", default=[], dest="breakpoints", metavar="'TYPE FIELD=VALUE …'",
        help="stop at such steps, as 'tool.requested name=bash'; 'step' stops at each",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="every recorded thread")
    parser.add_argument(
        "--since", type=_period, metavar="7d", help="with --all: threads with events since (min, h, d, w)"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="with --all: processes (default: one per core)")


def _period(text: str) -> timedelta:
    from channels.terminal.text import period

    if length := period(text):
        return length
    raise argparse.ArgumentTypeError(f"a period is a number and a unit, such as 90min, 12h, 7d, 8w; got {text!r}")


async def run(arguments: argparse.Namespace) -> int:
    from core.errors import Invalid

    if arguments.all == (arguments.thread is not None):
        raise Invalid("log replay: name a thread, or --all")
    if arguments.all:
        if arguments.breakpoints or arguments.until:
            raise Invalid("log replay: --break and --until are for one thread")
        return await _replay_all(arguments)
    if arguments.since or arguments.processes:
        raise Invalid("log replay: --since and --processes are for --all")
    async with source_of(arguments) as (source, _):
        return await _replay_one(arguments, source)


async def _replay_one(arguments: argparse.Namespace, source: Source) -> int:
    import anyio

    from actors.debugging import rehearsal
    from channels.cli.log.report import replayed
    from channels.cli.log.stepping import Prompt
    from channels.terminal.text import style_of
    from core.replay.breakpoints import Breakpoint
    from core.replay.causes import find
    from core.replay.debugger import Debugger
    from core.replay.named import aggregate_of
    from core.replay.source import records_of

    aggregate = await aggregate_of(source, arguments.thread)
    until = arguments.until and find(await records_of(source, aggregate), arguments.until, aggregate).seq
    report: Report | None = None
    with anyio.CancelScope() as scope:
        look: Look | None = None
        if arguments.breakpoints:
            stops = [Breakpoint.of(text) for text in arguments.breakpoints if text != "step"]
            look = Debugger(stops, Prompt(scope, style_of(sys.stdout)).ask).look
        report = await rehearsal.replay(source, aggregate.id, until, options_of(arguments), look=look)
    if report is None:
        print("the replay was ended at a breakpoint")
        return OK
    text, code = replayed(report, aggregate.id)
    print(text)
    return code


async def _replay_all(arguments: argparse.Namespace) -> int:
    from actors.debugging import rehearsal_all
    from actors.wiring import compose
    from channels.cli.log.report import Progress, summary

    options, since = options_of(arguments), arguments.since
    progress = Progress(sys.stderr)
    async with compose.nearest(options) as place:
        reports = await rehearsal_all.replay_all(options, place, since, arguments.processes, progress.show)
    progress.end()
    lines, differing = summary(reports)
    print("\n".join(lines))
    return FAILED if differing else OK
