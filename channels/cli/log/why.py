"""`sika log why`: the causes of an event or a call, from the person's message on."""

from __future__ import annotations

import argparse
import sys

from channels.cli.common import OK, width
from channels.cli.log.sources import THREAD, source_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help=THREAD)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("place", metavar="EVENT|CALL", help="its number, a call's id, an event's id")


async def run(arguments: argparse.Namespace) -> int:
    from channels.terminal.log import views as log
    from channels.terminal.text import style_of

    async with source_of(arguments) as (source, _):
        style, place = style_of(sys.stdout), arguments.place
        await log.why(source, arguments.thread, place, print, raw=arguments.json, style=style, width=width())
    return OK
