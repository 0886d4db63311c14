"""`sika log show`: the steps of a thread, one line each; or one event in full."""

from __future__ import annotations

import argparse
import sys

from channels.cli.common import OK, count, digest, prices_of, story, width
from channels.cli.log.sources import THREAD, source_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help=THREAD)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("place", nargs="?", metavar="EVENT|CALL", help="this event in full")
    parser.add_argument("--brief", action="store_true", help="what went as usual on one line per stretch")
    parser.add_argument("--events", action="store_true", help="a line for each event")
    parser.add_argument(
        "--errors", action="store_true", help="only what went wrong or was stopped by a policy, also commands"
    )
    parser.add_argument("--type", action="append", default=[], metavar="TYPE", help="only this type: tool.*")
    parser.add_argument("--grep", metavar="REGEX", help="only events with this text")
    parser.add_argument("--run", metavar="RUN", help="only this run: its number, its id, @last, @last-failed")
    parser.add_argument("--until", metavar="EVENT", help="only events up to this one")
    parser.add_argument("--after", type=count, default=0, metavar="EVENT", help="only events after this one")


async def run(arguments: argparse.Namespace) -> int:
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
