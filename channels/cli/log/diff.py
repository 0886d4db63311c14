"""`sika log diff`: two threads, runs or moments beside each other."""

from __future__ import annotations

import argparse
import sys

from channels.cli.common import FAILED, OK, prices_of
from channels.cli.log.sources import THREAD, source_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help=THREAD)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("other")
    parser.add_argument("--whole", action="store_true", help="the steps before the first difference, too")


async def run(arguments: argparse.Namespace) -> int:
    from channels.terminal.log import views as log
    from channels.terminal.text import style_of

    async with source_of(arguments) as (source, _):
        sides, style = (arguments.thread, arguments.other), style_of(sys.stdout)
        shape = {"raw": arguments.json, "whole": arguments.whole, "style": style, "prices": prices_of(arguments)}
        different = await log.diff(source, *sides, print, **shape)
    return FAILED if different else OK
