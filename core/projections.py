"""Read models in SQLite: what the log cannot be asked quickly (search, count, which thread a run belongs to).

They are derived: the file may be deleted at any time, is never shared between processes, and needs no migrations:
another `VERSION`, a log it does not fit, or damage, and it is built again from the log. The position in the log is
stored in the same transaction as the rows.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiosqlite
import anyio
import msgspec
import structlog

from core.errors import Invalid, Refused, Unavailable
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
from core.log import EventLog

log = structlog.get_logger("sika.projections")

VERSION = 1
BATCH_SECONDS = 0.25
"""How long rows may be gathered before they are committed: the delay of a search behind the log."""
BATCH = 1000
WAIT_SECONDS = 10.0
WAL_PAGES = 100
"""Pages of 4 KiB that SQLite's write-ahead log may have before it is folded in; the default of 1 000 is more than most
views."""

SCHEMA = """
CREATE TABLE position (version INTEGER NOT NULL, seq INTEGER NOT NULL);
CREATE TABLE threads (
    thread_id TEXT PRIMARY KEY, user TEXT NOT NULL, metadata TEXT NOT NULL, status TEXT NOT NULL,
    title TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX threads_by_update ON threads (user, updated_at);
CREATE TABLE runs (run_id TEXT PRIMARY KEY, thread_id TEXT NOT NULL, status TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX runs_by_thread ON runs (thread_id, status);
"""

SORTABLE = ("thread_id", "status", "created_at", "updated_at", "state_updated_at")

_TOUCH = """
UPDATE threads SET updated_at = :at, status = CASE
    WHEN EXISTS (SELECT 1 FROM runs WHERE thread_id = :thread AND status IN ('pending', 'running')) THEN 'busy'
    ELSE coalesce(:status, status) END
WHERE thread_id = :thread
"""
_ENDED: Mapping[type, tuple[str, str]] = {
    RunCompleted: ("success", "idle"),
    RunFailed: ("error", "error"),
    RunCancelled: ("interrupted", "interrupted"),
    RunRolledBack: ("rolled_back", "idle"),
}


MOST_PROCESSES = 64


@contextmanager
def own_file(home: Path) -> Iterator[Path]:
    """A file for this process's views: `views.db`, or `views-2.db` … if processes of a cluster share the data
    directory.
    """
    for number in range(1, MOST_PROCESSES + 1):
        name = "views" if number == 1 else f"views-{number}"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(home / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Invalid(f"data directory {home} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield home / f"{name}.db"
        finally:
            os.close(descriptor)
        return
    raise Refused(f"data directory {home}: {MOST_PROCESSES} processes use it already")


class ThreadRow(NamedTuple):
    """One hit of a thread search."""

    thread_id: str
    user: str
    metadata: dict[str, Any]
    status: str
    title: str | None
    created_at: str
    updated_at: str


class Views:
    """The read models of one process. `run` keeps them up to date; the rest reads."""

    def __init__(self, path: Path, log: EventLog) -> None:
        self.path = path
        self.log = log
        self.seq = 0
        """Everything up to this log sequence is in the rows."""
        self._db: aiosqlite.Connection | None = None
        """Open and fit to be read."""
        self._opened: aiosqlite.Connection | None = None
        self._progress = asyncio.Event()

    async def run(self) -> None:
        """Runs for as long as the process: applies events as they come, and starts over if the file is damaged."""
        while True:
            try:
                await self._follow(await self._open())
            except (sqlite3.DatabaseError, _Unfit) as error:
                if isinstance(error, sqlite3.OperationalError) and "disk" in str(error):
                    log.error("views cannot be written; searches are out of date", error=str(error))
                    await self.close()
                    await asyncio.sleep(5)
                    continue
                log.warning("views are built again from the log", reason=str(error))
                await self.discard()
            except Unavailable as error:
                log.warning("views wait for the log", error=str(error))
                await asyncio.sleep(1)

    async def rebuild(self) -> None:
        """Build the rows again from the log; searches see the log as far as it has got."""
        if self._db is not None:
            await self._db.execute("UPDATE position SET version = -1")
            await self._db.commit()
            await self._db.close()  # the follower stumbles, finds another version, and starts over

    async def close(self) -> None:
        opened, self._opened, self._db = self._opened, None, None
        if opened is not None:
            await opened.close()

    async def discard(self) -> None:
        await self.close()
        self.seq = 0
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    async def reached(self, seq: int) -> None:
        """Wait until everything up to a sequence is in the rows. Raises `Unavailable` after 10 s."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self.seq < seq:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError as error:
            raise Unavailable("the search index is behind; try again") from error

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def thread_of(self, run_id: str) -> str | None:
        """The thread a run belongs to."""
        rows = await self._rows("SELECT thread_id FROM runs WHERE run_id = ?", (run_id,))
        return str(rows[0][0]) if rows else None

    async def search(
        self,
        *,
        user: str,
        metadata: Mapping[str, Any] | None = None,
        status: str | None = None,
        ids: Sequence[str] | None = None,
        sort_by: str = "updated_at",
        descending: bool = True,
        limit: int = 10,
        offset: int = 0,
    ) -> tuple[list[ThreadRow], int]:
        """A page of a user's threads, and how many there are in all. Metadata values must be equal."""
        if sort_by not in SORTABLE:
            raise Invalid(f"sort_by: one of {', '.join(SORTABLE)}, got {sort_by!r}")
        where, values = _where(user, metadata or {}, status, ids)
        column = "updated_at" if sort_by == "state_updated_at" else sort_by
        order = f"{column} {'DESC' if descending else 'ASC'}, thread_id {'DESC' if descending else 'ASC'}"
        [(total,)] = await self._rows(f"SELECT count(*) FROM threads WHERE {where}", values)
        rows = await self._rows(
            f"SELECT thread_id, user, metadata, status, title, created_at, updated_at FROM threads"
            f" WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
            (*values, limit, offset),
        )
        return [ThreadRow(r[0], r[1], msgspec.json.decode(r[2]), *r[3:]) for r in rows], total

    async def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        if self._db is None:
            raise Unavailable("the search index is being built; try again")
        try:
            return list(await self._db.execute_fetchall(sql, values))
        except (sqlite3.Error, ValueError) as error:
            raise Unavailable(f"the search index is being repaired; try again ({error})") from error

    # ── following ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _open(self) -> aiosqlite.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with anyio.CancelScope(shield=True):  # half a connection could not be closed
            db = self._opened = await aiosqlite.connect(self.path)
        await db.execute("PRAGMA journal_mode = WAL")
        await db.execute("PRAGMA synchronous = NORMAL")
        await db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        if fresh:
            await db.executescript(SCHEMA)
            await db.execute("INSERT INTO position VALUES (?, 0)", (VERSION,))
            await db.commit()
        found = list(await db.execute_fetchall("SELECT version, seq FROM position"))
        if not found or found[0][0] != VERSION:
            raise _Unfit("another version of the rows")
        self.seq = int(found[0][1])
        if self.seq > await self.log.last():
            raise _Unfit("the log is another one")
        self._db = db
        return db

    async def _follow(self, db: aiosqlite.Connection) -> None:
        with self.log.listen(None) as ear:
            behind = True
            while True:
                if behind:
                    await self._catch_up(db)
                records, behind = await ear.take()
                if not behind:
                    await self._apply(db, [record for record in records if record.seq > self.seq])
                await asyncio.sleep(BATCH_SECONDS)

    async def _catch_up(self, db: aiosqlite.Connection) -> None:
        batch: list[Record] = []
        async for record in self.log.between(self.seq, await self.log.last()):
            batch.append(record)
            if len(batch) >= BATCH:
                await self._apply(db, batch)
                batch = []
        await self._apply(db, batch)

    async def _apply(self, db: aiosqlite.Connection, records: Sequence[Record]) -> None:
        """One transaction: the rows and the position. A handful of statements, however many events."""
        if not records:
            return
        batch = _Batch()
        for record in records:
            batch.add(record)
        for sql, rows in batch.statements():
            if rows:
                await db.executemany(sql, rows)
        await db.execute("UPDATE position SET seq = ?", (records[-1].seq,))
        await db.commit()
        self.seq = records[-1].seq
        self._progress.set()


class _Unfit(Exception):
    """The file does not fit this build or this log."""


def _where(
    user: str, metadata: Mapping[str, Any], status: str | None, ids: Sequence[str] | None
) -> tuple[str, tuple[Any, ...]]:
    clauses = ["user = ?"]
    values: list[Any] = [user]
    for key, wanted in metadata.items():
        clauses.append("json_extract(metadata, ?) IS ?")
        values += ['$."' + key.replace('"', "") + '"', wanted if isinstance(wanted, str | int | float | None) else None]
    if status is not None:
        clauses.append("status = ?")
        values.append(status)
    if ids is not None:
        clauses.append(f"thread_id IN ({', '.join('?' * len(ids))})")
        values += ids
    return " AND ".join(clauses), tuple(values)


class _Batch:
    """What a sequence of events amounts to, by table: the last word on each row is what counts."""

    def __init__(self) -> None:
        self.created: list[tuple[str, str, str, str, str]] = []
        self.annotated: list[tuple[str, str]] = []
        self.titled: list[tuple[Any, str]] = []
        self.runs: dict[str, tuple[str, str]] = {}
        self.touched: dict[str, tuple[str, str | None]] = {}
        """Thread id → (time, status when no run is open; None if no run ended)."""
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
                metadata = msgspec.json.encode(event.metadata).decode()
                self.created.append((thread, event.user, metadata, record.at, record.at))
            case ThreadAnnotated():
                self.annotated.append((msgspec.json.encode(event.metadata).decode(), thread))
            case ThreadErased():
                self.erased.append((thread,))
            case StatePatched() if "title" in event.values:
                self.titled.append((event.values["title"], thread))
            case RunRequested():
                self.runs[run] = (thread, "pending")
            case RunStarted():
                self.runs[run] = (thread, "running")
            case RunCompleted() | RunFailed() | RunCancelled() | RunRolledBack():
                run_status, thread_status = _ENDED[type(event)]
                self.runs[run] = (thread, run_status)
                self.touched[thread] = (record.at, thread_status)
                return
        self.touched[thread] = (record.at, self.touched.get(thread, ("", None))[1])

    def statements(self) -> Iterable[tuple[str, Sequence[Sequence[Any] | Mapping[str, Any]]]]:
        yield "INSERT OR REPLACE INTO threads VALUES (?, ?, ?, 'idle', NULL, ?, ?)", self.created
        yield "UPDATE threads SET metadata = json_patch(metadata, ?) WHERE thread_id = ?", self.annotated
        yield "UPDATE threads SET title = ? WHERE thread_id = ?", self.titled
        runs = [(run, thread, status) for run, (thread, status) in self.runs.items()]
        yield "INSERT INTO runs VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET status = excluded.status", runs
        touched = [{"thread": t, "at": at, "status": status} for t, (at, status) in self.touched.items()]
        yield _TOUCH, touched
        yield "DELETE FROM threads WHERE thread_id = ?", self.erased
        yield "DELETE FROM runs WHERE thread_id = ?", self.erased
