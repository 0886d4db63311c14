"""`sika sql`: read-only SQL on the read models."""

from __future__ import annotations

import argparse
import sys

import anyio.to_thread
import msgspec

from channels.cli.common import OK, count
from channels.cli.verbs import Parser
from channels.terminal.text import clean
from core.config.load import home
from core.views.sql import query


def arguments(parser: Parser) -> None:
    parser.runs(_sql)
    parser.add_argument("query")
    parser.add_argument("--limit", type=count, default=1000)
    parser.add_argument("--json", action="store_true", help="one object a row")


async def _sql(arguments: argparse.Namespace) -> int:
    path = home(arguments.home) / "views.db"
    table = await anyio.to_thread.run_sync(lambda: query(path, arguments.query, limit=arguments.limit))
    if not arguments.json:
        print("\t".join(table.columns))
    for row in table.rows:
        if arguments.json:
            print(msgspec.json.encode(dict(zip(table.columns, row, strict=True)), enc_hook=str).decode())
        else:
            print("\t".join("" if value is None else " ".join(clean(str(value)).split()) for value in row))
    more = f"; there are more than {arguments.limit} rows (--limit)" if table.more else ""
    print(f"{len(table.rows)} rows, as of event {table.position} of the log{more}", file=sys.stderr)
    return OK
