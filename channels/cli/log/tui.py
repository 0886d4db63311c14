"""`sika log tui`: the events and states of a thread full screen."""

from __future__ import annotations

import argparse
import sys

from channels.cli.common import OK
from channels.cli.log.sources import THREAD, source_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help=THREAD)


async def run(arguments: argparse.Namespace) -> int:
    from core.errors import Invalid

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Invalid("log tui: needs a terminal; sika log show prints the events")
    from channels.terminal.tui import app

    async with source_of(arguments) as (source, _):
        await app.show(source, arguments.thread)
    return OK
