"""`sika log state`: what the events of a thread fold to."""

from __future__ import annotations

import argparse
import sys

from channels.cli.common import OK
from channels.cli.log.sources import THREAD, source_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help=THREAD)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--at", metavar="EVENT", help="after this event (default: the last)")
    parser.add_argument("--path", metavar="PATH", help="a part of it, such as messages[-1].content")


async def run(arguments: argparse.Namespace) -> int:
    from channels.terminal.log import views as log
    from channels.terminal.text import style_of

    async with source_of(arguments) as (source, _):
        style, at, path = style_of(sys.stdout), arguments.at, arguments.path
        await log.state(source, arguments.thread, print, raw=arguments.json, style=style, at=at, path=path)
    return OK
