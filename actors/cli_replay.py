"""The commands `sika log replay|whatif|fork`: recorded runs executed again, or otherwise, or gone on with."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from actors.cli_common import FAILED, OK, Add, Subparsers, options_of

if TYPE_CHECKING:
    from core.replay.source import Source
    from core.thread.replay import Look, Report

_PERIOD = re.compile(r"(\d{1,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def replay_commands(add: Add, log: Subparsers[argparse.ArgumentParser]) -> None:
    """Adds the commands to the group `log`."""
    replay = add("replay", _replay, "execute the recorded runs again on their outcomes, and compare", log)
    replay.add_argument("thread", nargs="?")
    replay.add_argument("--until", metavar="EVENT", help="only events up to this one")
    replay.add_argument(
        "--break", action="append", default=[], dest="breakpoints", metavar="'TYPE FIELD=VALUE …'",
        help="stop at such steps, as 'tool.requested name=bash'; ''step'' stops at each",
    )  # fmt: skip
    replay.add_argument("--all", action="store_true", help="every recorded thread")
    replay.add_argument(
        "--since", type=_period, metavar="7d", help="with --all: threads with events since (m, h, d, w)"
    )
    replay.add_argument("--processes", type=int, metavar="N", help="with --all: processes (default: one per core)")


def _period(text: str) -> timedelta:
    if match := _PERIOD.fullmatch(text):
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    raise argparse.ArgumentTypeError(f"a period is a number and one of m, h, d, w, such as 7d; got {text!r}")


async def _replay(arguments: argparse.Namespace) -> int:
    from core.errors import Invalid

    if arguments.all == (arguments.thread is not None):
        raise Invalid("log replay: name a thread, or --all")
    if arguments.all:
        if arguments.breakpoints or arguments.until:
            raise Invalid("log replay: --break and --until are for one thread")
        return await _replay_all(arguments)
    if arguments.since or arguments.processes:
        raise Invalid("log replay: --since and --processes are for --all")
    from actors.cli_log import _source

    async with _source(arguments) as source:
        return await _replay_one(arguments, source)


async def _replay_one(arguments: argparse.Namespace, source: Source) -> int:
    from channels.terminal.debugger import Prompt
    from channels.terminal.replay import replayed
    from channels.terminal.text import style_of
    from core.replay.breakpoints import Breakpoint
    from core.replay.causes import find
    from core.replay.debugger import Debugger
    from core.replay.source import aggregate_of, records_of

    aggregate = await aggregate_of(source, arguments.thread)
    until = arguments.until and find(await records_of(source, aggregate), arguments.until, aggregate).seq
    report: Report | None = None
    with anyio.CancelScope() as scope:
        look: Look | None = None
        if arguments.breakpoints:
            stops = [Breakpoint.of(text) for text in arguments.breakpoints if text != "step"]
            look = Debugger(stops, Prompt(scope, style_of(sys.stdout)).ask).look
        report = await _replayed(arguments, source, aggregate.id, until, look)
    if report is None:
        print("the replay was ended at a breakpoint")
        return OK
    text, code = replayed(report, aggregate.id)
    print(text)
    return code


async def _replayed(
    arguments: argparse.Namespace, source: Source, thread: str, until: int | None, look: Look | None
) -> Report:
    from actors import rehearsal

    return await rehearsal.replay(source, thread, until, options_of(arguments), look=look)


async def _replay_all(arguments: argparse.Namespace) -> int:
    from actors import compose, rehearsal_all
    from channels.terminal.replay import Progress, summary

    options, since = options_of(arguments), arguments.since
    progress = Progress(sys.stderr)
    async with compose.nearest(options) as place:
        reports = await rehearsal_all.replay_all(options, place, since, arguments.processes, progress.show)
    progress.end()
    lines, differing = summary(reports)
    print("\n".join(lines))
    return FAILED if differing else OK
