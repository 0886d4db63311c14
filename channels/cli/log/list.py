"""`sika log list`: the recorded threads as lines, with totals."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import anyio.to_thread
import msgspec

from channels.cli.common import OK, width
from channels.cli.log.sources import moment_of, over_threads, source_of
from channels.cli.verbs import Parser
from channels.terminal.text import Style, age, one_line, style_of
from core.config.load import home
from core.phrases import counted
from core.replay.listing import Filter, Listing, Summary, listed_in_views, threads_of_file

FAILED = ("error",)


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("--status", default="", help="of the last run: success, paused, error, interrupted, running …")
    parser.add_argument("--text", default="", help="in the title or the first message")
    over_threads(parser, errors="with a run that failed or was stopped")


async def run(arguments: argparse.Namespace) -> int:
    now = datetime.now(UTC)
    conditions = Filter(
        user=arguments.user,
        status=arguments.status,
        since=moment_of(arguments.since, now),
        text=arguments.text,
        model=arguments.model,
        errors=arguments.errors,
    )
    listing = await _listing(arguments, conditions)
    show(listing, print, now=now, style=style_of(sys.stdout), width=width(), raw=arguments.json)
    return OK


async def _listing(arguments: argparse.Namespace, conditions: Filter) -> Listing:
    """Returns the threads of a file or of the data directory. Without read models the log is read, once and whole."""
    if not arguments.file:
        path = home(arguments.home)
        listing = await anyio.to_thread.run_sync(listed_in_views, path, conditions, arguments.limit)
        if listing is not None:
            return listing
    async with source_of(arguments) as (source, _):
        return await threads_of_file(source, conditions, arguments.limit)


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
    sums = f"{counted(listing.threads, 'thread')}, {counted(listing.runs, 'run')}, {tokens}, "
    sums += counted(listing.failures, "failed run")
    sums += f", {listing.stopped} stopped by a policy" if listing.stopped else ""
    return [*shown, *rest, style.bold(sums)]


def _line(summary: Summary, now: datetime, style: Style, width: int) -> str:
    failures = f"✗{summary.failures}" if summary.failures else f"■{summary.stopped}" if summary.stopped else ""
    head = (
        f"{summary.thread}  {age(summary.updated_at, now):>6}  {one_line(summary.user or '-', 12):<12} "
        f"{summary.status:<11} {summary.runs:>3} {'run ' if summary.runs == 1 else 'runs'} {failures:>4}  "
    )
    line = head + one_line(f"“{summary.text}”" if summary.text else "", max(20, width - len(head)))
    return style.red(line) if summary.status in FAILED else line
