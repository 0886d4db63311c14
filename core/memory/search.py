"""The facts that bear on a text: BM25 over our own words, in a table in memory for each memory.

A fact has two columns: its text, and the keywords that the model wrote with it, which count less. Confidence and age
break ties. The table is made anew when the memory has changed. It is nobody else's, so other users' facts change no
order, and nothing of it lies on a disk.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from threading import Lock
from typing import NamedTuple

import anyio.to_thread

from core.cache import ByteCache
from core.memory.facts import Fact, Memory
from core.memory.words import words

KEPT_BYTES = 32 << 20
"""Limit of all tables, in bytes of their words."""
MOST_TERMS = 120
"""Limit of the words of a question."""
MOST_HITS = 250
KEYWORD_WEIGHT = 0.6
CONFIDENCE_WEIGHT = RECENCY_WEIGHT = 0.1
HALF_LIFE_DAYS = 90
BYTES_PER_ROW = 200


class Hit(NamedTuple):
    """A fact and how well it fits: 1 is the best of its question."""

    fact: Fact
    score: float


class Searches:
    """Searches in memories. Keeps the tables of those that were searched last."""

    def __init__(self) -> None:
        self._tables: ByteCache[str, _Table] = ByteCache(KEPT_BYTES)
        self._words: ByteCache[str, str] = ByteCache(KEPT_BYTES)
        self._lock = Lock()

    async def relevant(self, identity: str, memory: Memory, question: str) -> list[Hit]:
        """Returns the facts that share words with a question, the best first. `identity` names the memory."""
        if not memory.facts:
            return []
        return await anyio.to_thread.run_sync(self._search, identity, memory, question)

    def _search(self, identity: str, memory: Memory, question: str) -> list[Hit]:
        with self._lock:
            table = self._tables.get(identity)
            if table is None or table.facts is not memory.facts:
                table = _Table(
                    memory,
                    [(self._of(fact.content), self._of(" ".join(fact.keywords))) for fact in memory.facts.values()],
                )
                self._tables.put(identity, table, table.size)
            return table.search(question)

    def _of(self, text: str) -> str:
        if (known := self._words.get(text)) is None:
            known = " ".join(words(text))
            self._words.put(text, known, len(text) + len(known) + BYTES_PER_ROW)
        return known


class _Table:
    """The facts of one memory in FTS5."""

    def __init__(self, memory: Memory, rows: Sequence[tuple[str, str]]) -> None:
        self.facts = memory.facts
        self._facts = list(memory.facts.values())
        self.size = sum(len(text) + len(keywords) + BYTES_PER_ROW for text, keywords in rows)
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.execute("CREATE VIRTUAL TABLE f USING fts5(text, keywords, tokenize = 'unicode61')")
        self._db.executemany("INSERT INTO f(rowid, text, keywords) VALUES (?, ?, ?)", _numbered(rows))

    def search(self, question: str) -> list[Hit]:
        terms = list(dict.fromkeys(words(question)))[:MOST_TERMS]
        if not terms:
            return []
        query = " OR ".join(f'"{term}"' for term in terms)
        bm25 = f"bm25(f, 1.0, {KEYWORD_WEIGHT})"
        sql = f"SELECT rowid, -{bm25} FROM f WHERE f MATCH ? ORDER BY {bm25} LIMIT {MOST_HITS}"
        with closing(self._db.execute(sql, (query,))) as cursor:
            rows = cursor.fetchall()
        best = max((score for _, score in rows), default=0) or 1
        now = datetime.now(UTC)
        hits = [Hit(fact := self._facts[row], score / best + _extra(fact, now)) for row, score in rows]
        return sorted(hits, key=lambda hit: -hit.score)

    def __del__(self) -> None:
        self._db.close()


def _numbered(rows: Sequence[tuple[str, str]]) -> list[tuple[int, str, str]]:
    return [(number, text, keywords) for number, (text, keywords) in enumerate(rows)]


def _extra(fact: Fact, now: datetime) -> float:
    """Returns what confidence and recency add to a score."""
    try:
        age = (now - datetime.fromisoformat(fact.seen_at or fact.created_at)).total_seconds() / 86400
    except (ValueError, TypeError):  # no time, or one without a zone
        age = math.inf
    recency: float = 0.5 ** (max(age, 0.0) / HALF_LIFE_DAYS)
    return CONFIDENCE_WEIGHT * fact.confidence + RECENCY_WEIGHT * recency
