"""Read-only SQL on the read models."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from core.errors import Invalid, NotFound, Unavailable
from core.views import tables
from core.views.sql import query


@pytest.fixture
def views(tmp_path: Path) -> Path:
    path = tmp_path / "views.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(tables.SCHEMA)
        connection.execute("INSERT INTO position VALUES (7, 'log', 42)")
        connection.execute("INSERT INTO threads VALUES (1, 't1', 'ada', 'idle', 'Hats', NULL, '1', '2', '2', 9, 0, 0)")
        connection.execute("INSERT INTO messages VALUES (1, 1, 5, 'm', NULL, 'a red hat')")
        connection.execute("INSERT INTO texts (rowid, text, owner) SELECT id, text, owner FROM owned_texts")
        connection.commit()
    return path


def test_a_query(views: Path) -> None:
    table = query(views, "WITH one AS (SELECT thread_id, upper(title) AS t FROM threads) SELECT * FROM one")
    assert (table.columns, table.rows, table.more, table.position) == (["thread_id", "t"], [("t1", "HATS")], False, 42)
    assert query(views, "SELECT count(*) FROM texts WHERE texts MATCH 'hat'").rows == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM threads",
        "UPDATE threads SET title = 'x'",
        "INSERT INTO position VALUES (1, 'x', 1)",
        "CREATE TEMP TABLE x (y)",
        "ATTACH ':memory:' AS other",
        "ATTACH '/tmp/other.db' AS other",
        "VACUUM INTO '/tmp/copy.db'",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "BEGIN IMMEDIATE",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT 1; DELETE FROM threads",
        "INSERT INTO texts (texts) VALUES ('rebuild')",
        "SELEC 1",
        "",
    ],
)
def test_only_reads_are_answered(views: Path, sql: str) -> None:
    before = views.read_bytes()
    with pytest.raises(Invalid, match="sql: "):
        query(views, sql)
    assert views.read_bytes() == before


def test_limits(views: Path) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n{}) SELECT i FROM n"
    table = query(views, numbers.format(""), limit=3)
    assert ([row[0] for row in table.rows], table.more) == ([1, 2, 3], True)
    with pytest.raises(Unavailable, match=r"sql: no answer within 0\.2 s"):
        query(views, f"SELECT max(i) FROM ({numbers.format('')})", seconds=0.2)
    with pytest.raises(Invalid, match="too big"):
        query(views, "SELECT zeroblob(100000000)")


def test_without_read_models(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"views\.db: there are no read models"):
        query(tmp_path / "views.db", "SELECT 1")
