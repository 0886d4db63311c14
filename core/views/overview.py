"""The newest threads of a data directory, read from the views of its server, whether that runs or not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from core.errors import Unavailable
from core.views.rows import TITLE, VERSION

_NEWEST = """
SELECT thread_id, user, status, updated_at, coalesce(title, (
    SELECT text FROM messages m WHERE m.thread = t.id AND m.message != ?1 AND text IS NOT NULL ORDER BY id LIMIT 1
), '') FROM threads t WHERE ?2 IS NULL OR user = ?2 ORDER BY updated_at DESC, thread_id LIMIT ?3
"""


class Summary(NamedTuple):
    """A thread in a list."""

    thread_id: str
    user: str
    status: str
    updated_at: str
    title: str
    """Or else its first message; empty if it has none."""


def newest(home: Path, user: str | None, limit: int) -> list[Summary]:
    """The threads that changed last, of one user or of all. Raises `Unavailable` if there are no views to read."""
    path = newest_file(home)
    if path is None:
        raise Unavailable(f"{home}: no server has run here yet")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            if next(iter(db.execute("SELECT version FROM position")), None) != (VERSION,):
                raise Unavailable(f"{path}: of another version; start the server to have it made anew")
            return [Summary(*row) for row in db.execute(_NEWEST, (TITLE, user, limit))]
    except sqlite3.Error as error:
        raise Unavailable(f"{path}: {error}; start the server to have it made anew") from error


def newest_file(home: Path) -> Path | None:
    """The views that were written last: processes that share the data directory have one file each."""

    def written() -> Iterator[tuple[float, Path]]:
        for path in home.glob("views*.db"):
            log = path.with_name(path.name + "-wal")
            yield max(file.stat().st_mtime for file in (path, log) if file.exists()), path

    return max(written(), default=(0.0, None))[1]
