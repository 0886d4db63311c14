"""`sika log find`: events of all threads that meet a query, as they are found."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from channels.cli.common import FAILED, OK, prices_of, width
from channels.cli.log.sources import moment_of, over_threads, source_of
from channels.cli.verbs import Parser
from channels.terminal.log.story import Story
from channels.terminal.text import Style, one_line, style_of
from core.phrases import counted
from core.replay.find import Query, find
from core.replay.money import Prices
from core.replay.source import Source

ID = 13
"""Characters of an id in a line: the time of a UUIDv7."""


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("text", nargs="?", metavar="REGEX", help="text of the event")
    parser.add_argument("--type", action="append", default=[], metavar="TYPE", help="a type, or a pattern: tool.*")
    parser.add_argument("--tool", default="", help="calls of this tool")
    parser.add_argument("--seconds", type=float, default=0.0, help="that took at least so long")
    parser.add_argument("--cost", type=float, default=0.0, help="model calls that cost at least so much")
    parser.add_argument("--until", default="", metavar="TIME", help="ISO 8601, or an age: 90min, 12h, 7d")
    over_threads(parser, errors="what went wrong, or was stopped")


async def run(arguments: argparse.Namespace) -> int:
    now = datetime.now(UTC)
    query = Query.of(
        arguments.text,
        types=tuple(arguments.type),
        tool=arguments.tool,
        errors=arguments.errors,
        model=arguments.model,
        user=arguments.user,
        since=moment_of(arguments.since, now),
        until=moment_of(arguments.until, now),
        seconds=arguments.seconds,
        cost=arguments.cost,
    )
    prices = prices_of(arguments)
    shape = {"style": style_of(sys.stdout), "width": width(), "limit": arguments.limit, "raw": arguments.json}

    def write(line: str) -> None:
        print(line, flush=True)

    async with source_of(arguments) as (source, _):
        hits = await show(source, query, write, prices=prices, **shape)
    return OK if hits else FAILED


async def show(
    source: Source,
    query: Query,
    write: Callable[[str], None],
    *,
    prices: Prices,
    style: Style,
    width: int,
    limit: int,
    raw: bool = False,
) -> int:
    """Writes events that meet a query, up to `limit`; returns their number. A line begins with the log's id, and the
    number is the sequence of the stream.
    """
    story, count = Story(style, width), 0
    async for record in find(source, query, prices):
        count += 1
        if raw:
            write(f'{{"seq":{record.seq},' + record.raw.decode().removeprefix("{"))
        else:
            head = record.aggregate
            name = head.id if head.kind == "thread" else f"{head.kind}/{head.id}"
            write(f"{style.dim(one_line(name, max(ID, width)))} {story.line(record)}")
        if count >= limit:
            break
    if not raw:
        more = f"{counted(count, 'event')}{': the limit (--limit)' if count >= limit else ''}"
        write(style.bold(more))
    return count
