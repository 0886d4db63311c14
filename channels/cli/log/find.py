"""`sika log find`: events of all threads that meet a query, as they are found."""

from __future__ import annotations

from collections.abc import Callable

from channels.terminal.log.story import Story
from channels.terminal.text import Style, one_line
from core.replay.find import Query, find
from core.replay.money import Prices
from core.replay.source import Source

ID = 13
"""Characters of an id in a line: the time of a UUIDv7."""


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
        more = f"{count} events: the limit (--limit)" if count >= limit else f"{count} events"
        write(style.bold(more))
    return count
