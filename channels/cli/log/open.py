"""`sika log open`: the timeline of a thread in the browser, at a moment if one is named."""

from __future__ import annotations

import argparse
import sys
from urllib.parse import quote

from channels.cli.common import OK, server_of
from channels.cli.log.sources import file_of, source_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help="a thread's id, the beginning of one, @last, @last-failed")
    parser.add_argument("place", nargs="?", metavar="EVENT|CALL", help="the moment to begin at")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


async def run(arguments: argparse.Namespace) -> int:
    import webbrowser

    import anyio.to_thread

    address = f"{await server_of(arguments)}/#/timeline/{await _place(arguments)}"
    print(address)
    if sys.stdout.isatty() and not arguments.no_browser:
        await anyio.to_thread.run_sync(webbrowser.open, address)
    return OK


async def _place(arguments: argparse.Namespace) -> str:
    """Returns the part of the address that names the thread and the moment."""
    from core.errors import Invalid
    from core.replay.causes import find
    from core.replay.named import aggregate_of
    from core.replay.source import records_of

    if file_of(arguments.thread):
        raise Invalid(f"log open: {arguments.thread} is a file; drop it on the page, at /#/timeline/file")
    async with source_of(arguments) as (source, _):
        aggregate = await aggregate_of(source, arguments.thread)
        place = quote(aggregate.id, safe="")
        if arguments.place is None:
            return place
        return f"{place}/{find(await records_of(source, aggregate), arguments.place, aggregate).seq}"
