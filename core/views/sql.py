"""Read-only SQL on the read models' file, over a connection of its own.

The connection is opened read-only, and an authorizer lets only reads through: no ATTACH, no PRAGMA, no writing, no
loading of extensions. A query has a time limit and a row limit. Blocks: call it in a thread.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import Invalid, NotFound, Unavailable

QUERY_SECONDS = 10.0
MOST_ROWS = 10_000
MOST_BYTES = 8 << 20
"""Limit of a value, and of a row, in bytes."""
_STEPS = 10_000
"""Instructions of SQLite's machine between two looks at the clock: some 100 µs."""
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN = frozenset({"load_extension", "readfile", "writefile", "fts3_tokenizer"})
_HEADS = ("select", "with", "values")


class Table(NamedTuple):
    """The result of a query. `more`: there are rows beyond the limit."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool
    position: int
    """The sequence of the log up to which the read models are."""


def query(path: Path, sql: str, *, limit: int = MOST_ROWS, seconds: float = QUERY_SECONDS) -> Table:
    """Answers a query. Raises `NotFound` without a file, `Invalid` for what is no read, `Unavailable` after a time."""
    if not path.is_file():
        raise NotFound(f"{path.name}: there are no read models in this data directory; a server makes them")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=seconds)) as connection:
            return _answered(connection, sql, limit, seconds)
    except sqlite3.Error as error:
        raise Invalid(f"sql: {error}") from error


def _answered(connection: sqlite3.Connection, sql: str, limit: int, seconds: float) -> Table:
    connection.execute("PRAGMA query_only = ON")
    [(position,)] = connection.execute("SELECT seq FROM position").fetchall()
    connection.execute("SELECT rowid FROM texts LIMIT 0")  # opens the full-text index, which no authorizer lets through
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    connection.set_authorizer(_authorized)
    until = time.monotonic() + seconds
    connection.set_progress_handler(lambda: int(time.monotonic() > until), _STEPS)
    try:
        cursor = connection.execute(sql)
        rows = cursor.fetchmany(limit + 1)
    except sqlite3.OperationalError as error:
        if time.monotonic() > until:
            raise Unavailable(f"sql: no answer within {seconds:g} s") from error
        raise
    if cursor.description is None:
        raise Invalid(f"sql: a query is expected: {', '.join(_HEADS)}")
    return Table([column[0] for column in cursor.description], rows[:limit], len(rows) > limit, position)


def _authorized(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Lets reads through. FTS5 asks for the version of the file by itself."""
    if action == sqlite3.SQLITE_PRAGMA and first == "data_version":
        return sqlite3.SQLITE_OK
    allowed = action in _READS and (second or "").lower() not in _FORBIDDEN
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
