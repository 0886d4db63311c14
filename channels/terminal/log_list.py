"""`sika log list`: the recorded threads as lines, with totals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from channels.terminal.text import Style, age, one_line
from core.replay.listing import Filter, Summary, listed, totals
from core.replay.source import Source

FAILED = ("error",)
SHORTEST_ID = 8
"""Least characters of an id that are shown."""


async def show(
    source: Source,
    conditions: Filter,
    write: Callable[[str], None],
    *,
    now: datetime,
    style: Style,
    width: int,
    limit: int,
    raw: bool = False,
) -> None:
    """Writes the newest threads that meet conditions, up to `limit`, and the totals of all that meet them."""
    summaries = await listed(source, conditions)
    if raw:
        for summary in summaries[:limit]:
            write(msgspec.json.encode(summary).decode())
        return
    for line in lines(summaries, limit, now, style, width):
        write(line)


def lines(summaries: Sequence[Summary], limit: int, now: datetime, style: Style, width: int) -> list[str]:
    """Returns the lines: id, age, user, status, counts, and the title or first message."""
    if not summaries:
        return ["no thread meets this"]
    shown = [_line(summary, now, style, width) for summary in summaries[:limit]]
    rest = [style.dim(f"… and {len(summaries) - limit} more (--limit)")] if len(summaries) > limit else []
    runs, events, failures, used = totals(summaries)
    tokens = f"{used.input:,}+{used.output:,} tokens".replace(",", " ")
    counted = f"{len(summaries)} threads, {runs} runs, {events} events, {tokens}, {failures} failures"
    return [*shown, *rest, style.bold(counted)]


def _line(summary: Summary, now: datetime, style: Style, width: int) -> str:
    failures = f"✗{summary.failures}" if summary.failures else ""
    head = (
        f"{summary.thread}  {age(summary.updated_at, now):>6}  {one_line(summary.user or '-', 12):<12} "
        f"{summary.status:<11} {summary.runs:>3} runs {summary.events:>6} events {failures:>4}  "
    )
    line = head + one_line(f"“{summary.text}”" if summary.text else "", max(20, width - len(head)))
    return style.red(line) if summary.status in FAILED else line
