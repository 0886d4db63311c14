"""`sika log tail`: the events of a thread, and new ones as they come."""

from __future__ import annotations

import argparse

from channels.cli.common import OK, count, options_of, story
from channels.cli.log.sources import THREAD, file_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help=THREAD)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--after", type=count, default=0, metavar="EVENT", help="only events after this one")


async def run(arguments: argparse.Namespace) -> int:
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
