"""`sika log list`: the recorded threads as lines, with totals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from channels.terminal.text import Style, age, one_line
from core.replay.listing import Listing, Summary

FAILED = ("error",)


def show(
    listing: Listing, write: Callable[[str], None], *, now: datetime, style: Style, width: int, raw: bool = False
) -> None:
    """Writes the threads of a listing, and the totals of all that meet its conditions."""
    for line in (
        [msgspec.json.encode(summary).decode() for summary in listing.summaries]
        if raw
        else lines(listing, now, style, width)
    ):
        write(line)


def lines(listing: Listing, now: datetime, style: Style, width: int) -> list[str]:
    """Returns the lines: id, age, user, status, counts, and the title or first message."""
    if not listing.threads:
        return ["no thread meets this"]
    shown = [_line(summary, now, style, width) for summary in listing.summaries]
    more = listing.threads - len(shown)
    rest = [style.dim(f"… and {more} more (--limit)")] if more else []
    tokens = f"{listing.tokens.input:,}+{listing.tokens.output:,} tokens".replace(",", " ")
    counted = f"{listing.threads} threads, {listing.runs} runs, {tokens}, {listing.failures} failed runs"
    counted += f", {listing.stopped} stopped by a policy" if listing.stopped else ""
    return [*shown, *rest, style.bold(counted)]


def _line(summary: Summary, now: datetime, style: Style, width: int) -> str:
    failures = f"✗{summary.failures}" if summary.failures else f"■{summary.stopped}" if summary.stopped else ""
    head = (
        f"{summary.thread}  {age(summary.updated_at, now):>6}  {one_line(summary.user or '-', 12):<12} "
        f"{summary.status:<11} {summary.runs:>3} runs {failures:>4}  "
    )
    line = head + one_line(f"“{summary.text}”" if summary.text else "", max(20, width - len(head)))
    return style.red(line) if summary.status in FAILED else line
