"""`sika log fork`: a thread of its own, as another one was at a moment."""

from __future__ import annotations

import argparse

from channels.cli.common import OK, options_of
from channels.cli.log.sources import source_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(run, writes=True)
    parser.add_argument("thread", help="a thread, or an exported file")
    parser.add_argument("--at", required=True, metavar="EVENT", help="the last event that is kept")
    parser.add_argument("--id", metavar="ID", help="the id of the new thread (default: a new one)")


async def run(arguments: argparse.Namespace) -> int:
    from actors.debugging.forks import fork_thread
    from core.ids import uuid7
    from core.replay.causes import find
    from core.replay.named import aggregate_of
    from core.replay.source import records_of

    options = options_of(arguments)
    async with source_of(arguments, server=True) as (source, system):
        assert system is not None
        aggregate = await aggregate_of(source, arguments.thread)
        at = find(await records_of(source, aggregate), arguments.at, aggregate).seq
        forked = await fork_thread(system.threads, source, options.home, aggregate, at, arguments.id or uuid7())
    print(f"thread {forked.thread}" if forked.new else f"thread {forked.thread} is there already")
    for text in forked.not_restored:
        print(f"  not restored  {text}")
    return OK
