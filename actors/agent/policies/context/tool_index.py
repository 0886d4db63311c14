"""Tools found by words: BM25 over the stems of their names, descriptions and arguments, as memory is searched."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import lru_cache
from threading import Lock

from core.memory.words import words

KEPT = 4
"""Indexes that are kept: of the tools of that many kinds of runs."""
MOST_TERMS = 40
"""Limit of the words of a question."""
_WEIGHTS = "3.0, 1.0, 0.5"
"""Weights of the name, the description and the arguments."""
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


Entry = tuple[str, str, str]
"""The name of a tool, its description and the names of its arguments."""


def ranked(query: str, entries: tuple[Entry, ...]) -> dict[int, float]:
    """Returns the entries that share words with a query, by their positions, with how well they fit. Takes up to a
    second for a thousand entries that were not searched before.
    """
    terms = list(dict.fromkeys(_words(query)))[:MOST_TERMS]
    if not terms or not entries:
        return {}
    match = " OR ".join(f'"{term}"' for term in terms)
    sql = f"SELECT rowid, -bm25(t, {_WEIGHTS}) FROM t WHERE t MATCH ?"
    with _lock:
        return dict(_index(entries).execute(sql, (match,)).fetchall())


_lock = Lock()


@lru_cache(KEPT)
def _index(entries: tuple[Entry, ...]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.execute("CREATE VIRTUAL TABLE t USING fts5(name, about, arguments, tokenize = 'unicode61')")
    rows = ((n, *(" ".join(_words(text)) for text in entry)) for n, entry in enumerate(entries))
    db.executemany("INSERT INTO t(rowid, name, about, arguments) VALUES (?, ?, ?, ?)", rows)
    return db


def _words(text: str) -> Iterator[str]:
    """Yields the stems of a text, those of the parts of its names (`web_fetch`, `addNumbers`) among them."""
    yield from words(" ".join(_PARTS.findall(text)) if text.isascii() else text.replace("_", " "))
