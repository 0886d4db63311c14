"""The rows of the read models: their tables, what an event does to them, what a search asks of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from core.errors import Invalid
from core.events import (
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunRolledBack,
    RunStarted,
    StatePatched,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
)

log = structlog.get_logger("sika.projections")

VERSION = 3

SCHEMA = """
CREATE TABLE position (version INTEGER NOT NULL, log TEXT NOT NULL, seq INTEGER NOT NULL);
CREATE TABLE threads (
    thread_id TEXT PRIMARY KEY, user TEXT NOT NULL, status TEXT NOT NULL,
    title TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX threads_by_update ON threads (user, updated_at);
CREATE TABLE metadata (
    thread_id TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (thread_id, key)
) WITHOUT ROWID;
CREATE INDEX metadata_by_value ON metadata (key, value);
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, thread_id TEXT NOT NULL, status TEXT NOT NULL, seq INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_thread ON runs (thread_id, status);
"""

TOUCH = """
UPDATE threads SET updated_at = ?2, status = CASE
    WHEN EXISTS (SELECT 1 FROM runs WHERE thread_id = ?1 AND status IN ('pending', 'running')) THEN 'busy'
    ELSE coalesce((SELECT CASE WHEN status IN ('error', 'interrupted') THEN status END
                   FROM runs WHERE thread_id = ?1 ORDER BY seq DESC LIMIT 1), 'idle') END
WHERE thread_id = ?1
"""
"""The thread's status as `core.state.ThreadState.status` has it."""
ENDED: Mapping[type, str] = {
    RunCompleted: "success",
    RunFailed: "error",
    RunCancelled: "interrupted",
    RunRolledBack: "rolled_back",
}


def as_text(value: Any) -> str:
    """A metadata value as it is stored and compared: equal values are equal texts; `false`, `0` and `null` differ."""
    return msgspec.json.encode(value, order="sorted").decode()


def where(
    user: str, metadata: Mapping[str, Any], status: str | None, ids: Sequence[str] | None
) -> tuple[str, tuple[Any, ...]]:
    """The condition of a search on `threads t`, and its values."""
    clauses = ["user = ?"]
    values: list[Any] = [user]
    for key, wanted in metadata.items():
        clauses.append(
            "EXISTS (SELECT 1 FROM metadata m WHERE m.thread_id = t.thread_id AND m.key = ? AND m.value = ?)"
        )
        values += [key, as_text(wanted)]
    if status is not None:
        clauses.append("status = ?")
        values.append(status)
    if ids is not None:
        clauses.append(f"thread_id IN ({', '.join('?' * len(ids))})")
        values += ids
    return " AND ".join(clauses), tuple(values)


class Batch:
    """What a sequence of events amounts to, by table: the last word on each row is what counts."""

    def __init__(self) -> None:
        self.created: list[tuple[str, str, str, str]] = []
        self.annotated: list[tuple[str, str, str]] = []
        self.titled: list[tuple[Any, str]] = []
        self.requested: list[tuple[str, str, int]] = []
        self.runs: dict[str, str] = {}
        self.touched: dict[str, str] = {}
        self.erased: list[tuple[str]] = []

    def add(self, record: Record) -> None:
        if record.head.kind != "thread":
            return
        try:
            event = record.event
        except Invalid as error:  # one event that cannot be read must not stop the others
            log.error("event skipped", id=record.id, error=str(error))
            return
        thread, run = record.head.aggregate, record.run or ""
        match event:
            case ThreadCreated():
                self.created.append((thread, event.user, record.at, record.at))
                self.annotated += [(thread, key, as_text(value)) for key, value in event.metadata.items()]
            case ThreadAnnotated():
                self.annotated += [(thread, key, as_text(value)) for key, value in event.metadata.items()]
            case ThreadErased():
                self.erased.append((thread,))
            case StatePatched() if "title" in event.values:
                self.titled.append((event.values["title"], thread))
            case RunRequested():
                self.requested.append((run, thread, record.seq))
            case RunStarted():
                self.runs[run] = "running"
            case RunCompleted() | RunFailed() | RunCancelled() | RunRolledBack():
                self.runs[run] = ENDED[type(event)]
        self.touched[thread] = record.at

    def statements(self) -> Iterable[tuple[str, Sequence[Sequence[Any]]]]:
        yield "INSERT OR REPLACE INTO threads VALUES (?, ?, 'idle', NULL, ?, ?)", self.created
        yield "INSERT OR REPLACE INTO metadata VALUES (?, ?, ?)", self.annotated
        yield "UPDATE threads SET title = ? WHERE thread_id = ?", self.titled
        yield "INSERT OR IGNORE INTO runs VALUES (?, ?, 'pending', ?)", self.requested
        yield "UPDATE runs SET status = ? WHERE run_id = ?", [(status, run) for run, status in self.runs.items()]
        yield TOUCH, list(self.touched.items())
        yield "DELETE FROM threads WHERE thread_id = ?", self.erased
        yield "DELETE FROM metadata WHERE thread_id = ?", self.erased
        yield "DELETE FROM runs WHERE thread_id = ?", self.erased
