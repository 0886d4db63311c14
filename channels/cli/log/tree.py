"""`sika log tree`: the runs of a thread as trees of what took time."""

from __future__ import annotations

import argparse
import sys

from channels.cli.common import OK, prices_of
from channels.cli.log.sources import THREAD, source_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help=THREAD)
    parser.add_argument("--json", action="store_true")


async def run(arguments: argparse.Namespace) -> int:
    from channels.terminal.log import views as log
    from channels.terminal.text import style_of

    async with source_of(arguments) as (source, _):
        style, prices = style_of(sys.stdout), prices_of(arguments)
        await log.tree(source, arguments.thread, print, raw=arguments.json, style=style, prices=prices)
    return OK
