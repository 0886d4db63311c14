"""`sika threads`: the latest threads."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime

import anyio.to_thread

from channels.cli.common import OK, count, options_of
from channels.cli.verbs import Parser
from channels.terminal.table import table
from channels.terminal.text import age, one_line
from core.views.overview import Summary, newest


def arguments(parser: Parser) -> None:
    parser.runs(_threads)
    parser.add_argument("--user", metavar="ID", help="only of this user")
    parser.add_argument("--limit", type=count, default=20, metavar="N", help="default: 20")


async def _threads(arguments: argparse.Namespace) -> int:
    home = options_of(arguments).home
    now = datetime.now(UTC)
    threads = await anyio.to_thread.run_sync(newest, home, arguments.user, arguments.limit)
    for line in table((_cells(thread, now) for thread in threads), right=[3]):
        print(line)
    return OK


def _cells(thread: Summary, now: datetime) -> Sequence[str]:
    title = one_line(thread.title, 60) or "(empty)"
    return thread.thread_id, one_line(thread.user, 36), thread.status, age(thread.updated_at, now), title
