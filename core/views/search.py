"""The SQL of a search for threads, and its indexes: a page costs what it shows, not what lies there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from core.views import fulltext
from core.views.rows import as_text, comparable

SORTABLE = ("thread_id", "status", "created_at", "updated_at", "state_updated_at", "pinned")
FEW = 5000
"""Threads that are looked up and sorted; more are walked in the order of an index until the page is full."""
MOST_MATCHES = 5000
"""Messages in which a search finds its words, the newest; threads that only have older ones are not found."""

_METADATA = "SELECT json_group_object(m.key, json(m.value)) FROM metadata m WHERE m.thread = t.id AND shown"
WAITS = "(paused IS NOT NULL OR asks) AND status != 'busy'"
"""Whether a thread waits for answers of a person."""
COLUMNS = f"thread_id, t.user, ({_METADATA}), status, title, created_at, t.updated_at, state_updated_at, seq, ({WAITS})"
_NEWEST = """
NOT EXISTS (SELECT 1 FROM messages n WHERE n.thread = m.thread AND n.id > m.id
    AND n.key IN (m.key, CASE m.key WHEN 0 THEN 0 ELSE 1 END))
"""
"""Nothing came after it with the same key, and nothing that removed all messages (`rows._key`)."""
SNIPPETS = """
SELECT t.thread_id, m.message, snippet(texts, 0, '', '', '…', 24)
FROM texts CROSS JOIN messages m ON m.id = texts.rowid CROSS JOIN threads t ON t.id = m.thread
WHERE texts MATCH ? AND texts.rowid BETWEEN ? AND ? AND +texts.rowid IN ({ids}) ORDER BY m.id DESC
"""
MOST_SNIPPETS = 3
"""Limit of the snippets of one thread."""


Pair = tuple[str, str]
"""A metadata key, and a value as it is stored."""


class Statement(NamedTuple):
    """SQL, and its values."""

    sql: str
    values: Sequence[Any]


class Order(NamedTuple):
    """A column, and the thread's id where it is the same. Those that are pinned are ordered by their last change."""

    column: str = "updated_at"
    descending: bool = True

    def by(self, table: str) -> str:
        direction = "DESC" if self.descending else "ASC"
        if self.column == "pinned":
            return f"t.pinned {direction}, t.updated_at {direction}, t.thread_id {direction}"
        return f"{table}.{self.column} {direction}, t.thread_id {direction}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """Which threads of a user: all that are set must hold."""

    user: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values must be equal. A thread that names no assistant counts as one of the default assistant's."""
    status: str | None = None
    ids: Sequence[str] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the state. What they find are *candidates*, which had such a value at some time."""
    query: str | None = None
    """Words that must be in a message or the title."""

    @property
    def narrow(self) -> bool:
        """Tells whether rows are found by something else than metadata and status."""
        return self.ids is not None or self.query is not None or bool(self.values)

    def candidates(self, order: Order) -> Statement:
        """For narrow filters: the ids of the rows of all hits in their order, with those of the messages that have the
        words.
        """
        clauses, values = self.clauses(self._pairs())
        clauses[0] = "+t.user = ?"  # rows are looked up: the order of no index helps
        for key, value in self.values.items():
            clauses.append("t.id IN (SELECT thread FROM written WHERE user = ? AND key = ? AND value = ?)")
            values += [self.user, key, comparable(value)]
        if self.ids is not None:
            clauses.append(f"t.thread_id IN ({', '.join('?' * len(self.ids))})")
            values += self.ids
        condition = " AND ".join(clauses)
        if self.query is None:
            return Statement(f"SELECT t.id, NULL FROM threads t WHERE {condition} ORDER BY {order.by('t')}", values)
        match = matching(self.user, self.query)
        if match is None:
            return Statement("SELECT NULL, NULL WHERE false", [])
        hits = (
            "SELECT m.thread, m.id AS message"
            " FROM texts CROSS JOIN messages m ON m.id = texts.rowid CROSS JOIN threads t ON t.id = m.thread"
            f" WHERE texts MATCH ? AND {condition} AND {_NEWEST} ORDER BY texts.rowid DESC LIMIT ?"
        )
        sql = f"SELECT t.id, message FROM ({hits}) CROSS JOIN threads t ON t.id = thread ORDER BY {order.by('t')}"
        return Statement(f"{sql}, message DESC", [match, *values, MOST_MATCHES])

    def counts(self) -> Statement:
        """Counts the threads with each metadata value, and (key and value "") how many there are, as far as they have
        the status.
        """
        pairs = [("", ""), *self._pairs()]
        status = "" if self.status is None else " AND c.status = ?"
        sql = (
            f"WITH pairs (key, value) AS (VALUES {', '.join(['(?, ?)'] * len(pairs))})"
            " SELECT p.key, p.value, sum(threads) FROM pairs p CROSS JOIN thread_counts c"
            f" ON c.user = ? AND c.key = p.key AND c.value = p.value{status} GROUP BY 1, 2"
        )
        values = [*(word for pair in pairs for word in pair), self.user]
        return Statement(sql, values if self.status is None else [*values, self.status])

    def plan(self, counts: Mapping[Pair, int]) -> Plan:
        """Plans how to find the hits of filters that are not narrow. A value that all threads have selects nothing."""
        every = counts.get(("", ""), 0)
        pairs = [pair for pair in self._pairs() if counts.get(pair, 0) < every]
        pairs.sort(key=lambda pair: counts.get(pair, 0))
        return Plan(self, pairs, every, counts.get(pairs[0], 0) if pairs else every)

    def _pairs(self) -> list[Pair]:
        return [(key, as_text(value)) for key, value in self.metadata.items()]

    def clauses(self, pairs: Sequence[Pair]) -> tuple[list[str], list[Any]]:
        """Conditions on `threads t`, the user's first, and their values."""
        clauses, values = ["t.user = ?"], [self.user]
        if self.status is not None:
            clauses.append("t.status = ?")
            values.append(self.status)
        for pair in pairs:
            clauses.append("EXISTS (SELECT 1 FROM metadata m WHERE m.thread = t.id AND m.key = ? AND m.value = ?)")
            values += pair
        return clauses, values


@dataclass(frozen=True, slots=True)
class Plan:
    """Finds the threads with some metadata and a status: by the rarest value, or in order until there are
    enough.
    """

    filters: Filters
    pairs: Sequence[Pair]
    """The metadata that select anything, the rarest first."""
    every: int
    """The number of threads with the status."""
    least: int
    """The most threads that there can be."""

    @property
    def total(self) -> int | None:
        """The number of threads, if it is known."""
        return self.least if len(self.pairs) < 2 or not self.least else None

    def counting(self, *, newest: bool = False) -> Statement:
        """Counts the threads; `newest`: among the `FEW` with the rarest value that changed last."""
        rarest, *others = self.pairs
        clauses, values = self.filters.clauses(others)
        rare = (
            "SELECT thread FROM metadata INDEXED BY metadata_by_value"
            " WHERE user = ? AND key = ? AND value = ? ORDER BY updated_at DESC LIMIT ?"
        )
        sql = f"SELECT count(*) FROM ({rare}) CROSS JOIN threads t ON t.id = thread WHERE {' AND '.join(clauses)}"
        return Statement(sql, [self.filters.user, *rarest, FEW if newest else -1, *values])

    def page(self, order: Order, limit: int, offset: int) -> Statement:
        """The ids of the rows of a page, in their order."""
        by_value = self.pairs and self.every > FEW and (order.column == "updated_at" or self.least <= FEW)
        source, clauses, values = self._by_value() if by_value else self._in_order(order)
        by = order.by("m" if by_value and order.column == "updated_at" else "t")
        sql = f"SELECT t.id FROM {source} WHERE {clauses} ORDER BY {by} LIMIT ? OFFSET ?"
        return Statement(sql, [*values, limit, offset])

    def _by_value(self) -> tuple[str, str, list[Any]]:
        """From the threads with the rarest value on, those that changed last first."""
        rarest, *others = self.pairs
        clauses, values = self.filters.clauses(others)
        clauses[0] = "m.user = ? AND m.key = ? AND m.value = ?"
        source = "metadata m INDEXED BY metadata_by_value CROSS JOIN threads t ON t.id = m.thread"
        return source, " AND ".join(clauses), [self.filters.user, *rarest, *values[1:]]

    def _in_order(self, order: Order) -> tuple[str, str, list[Any]]:
        """From all threads of the user, or those with the status if they are few or an index has both."""
        clauses, values = self.filters.clauses(self.pairs)
        source = "threads t"
        if self.filters.status is not None and order.column in ("created_at", "state_updated_at", "pinned"):
            if self.every <= FEW:
                source = "threads t INDEXED BY threads_by_status"
            else:
                clauses[1] = "+t.status = ?"
        return source, " AND ".join(clauses), values


def matching(user: str, query: str) -> str | None:
    """The full-text expression for a user's messages; None if the query has no words."""
    words = fulltext.expression(query)
    return f'owner : "{user.encode().hex()}" AND text : ({words})' if words else None
