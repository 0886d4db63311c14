"""`sika threads`: the latest threads."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import anyio.to_thread

from channels.cli.common import OK, count, options_of
from channels.cli.verbs import Parser
from channels.terminal.text import age, one_line
from core.views.overview import newest


def arguments(parser: Parser) -> None:
    parser.runs(_threads)
    parser.add_argument("--user", metavar="ID", help="only of this user")
    parser.add_argument("--limit", type=count, default=20, metavar="N", help="default: 20")


async def _threads(arguments: argparse.Namespace) -> int:
    home = options_of(arguments).home
    now = datetime.now(UTC)
    for thread in await anyio.to_thread.run_sync(newest, home, arguments.user, arguments.limit):
        facts = f"{one_line(thread.user, 36):<10} {thread.status:<11} {age(thread.updated_at, now):>6}"
        print(f"{thread.thread_id:<36}  {facts}  {one_line(thread.title, 60) or '(empty)'}")
    return OK
