"""One SQLite file of read models: a connection that writes, and some that read meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import aiosqlite
import anyio

from core.errors import Unavailable
from core.events import Record
from core.files.paths import private_file
from core.log.store import EventLog
from core.runs.finish import finished
from core.views import rows, tables

WAL_PAGES = 100
"""Pages of 4 KiB that SQLite's write-ahead log may have before it is folded in; the default of 1 000 is more than most
views."""
READERS = 3
"""Connections that read: a slow question holds up few others."""
ANSWER_SECONDS = 30.0
"""Limit of a query's time."""
MERGE_PAGES = 64
"""Pages of the full-text index that are merged at one go."""
_BESIDE = ("-wal", "-shm")
_ERASES_WORDS = sqlite3.sqlite_version_info >= (3, 42)
"""True if SQLite can take the words of a deleted text out of the full-text index at once. Older ones keep them until
the index is merged as a whole.
"""
_UNCLEAN, _CLEAN = "PRAGMA user_version = 1", "PRAGMA user_version = 0"
"""Says in the file whether text that was deleted may still be there, also after a crash."""
_SHAPE = "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view', 'index') AND sql IS NOT NULL"


class Unfit(Exception):
    """The file does not fit this build or this log."""


class Database:
    """The read models in one file. Use it in one task, but for `query`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seq = 0
        """Everything up to this log sequence is in the rows."""
        self.outdated = False
        """The rows are of another version, of which questions may still be asked."""
        self._failing = False
        """There are rows of models that failed."""
        self._writer: aiosqlite.Connection | None = None
        self._readers = 0
        self._idle: asyncio.Queue[aiosqlite.Connection] = asyncio.Queue()
        """Connections that read, and have nothing to do."""
        self._opened: list[aiosqlite.Connection] = []
        self._writing = asyncio.Lock()
        self.unclean = asyncio.Event()
        """Text that was deleted may still be in the files: `clean` is to be called until this is cleared."""
        self._merge = -MERGE_PAGES
        """Pages to merge; negative where a merge of the whole index begins."""

    async def open(self, log: EventLog) -> None:
        """Open the file, or make it. Raises `Unfit` if it cannot be used, and `sqlite3.Error`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists() or not self.path.stat().st_size
        with suppress(OSError):  # SQLite says what is wrong
            private_file(self.path)  # what SQLite makes beside it gets its mode
            for beside in self.path.parent.glob(f"{self.path.name}-*"):
                private_file(beside)
        writer = self._writer = await self._connect(str(self.path))
        await writer.execute("PRAGMA journal_mode = WAL")
        await writer.execute("PRAGMA synchronous = NORMAL")
        await writer.execute("PRAGMA secure_delete = ON")
        await writer.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        identity = await log.identity()
        if fresh:
            await writer.executescript(tables.SCHEMA)
            await writer.execute("INSERT INTO position VALUES (?, ?, 0)", (rows.VERSION, identity))
            await writer.commit()
        await self._check(writer, identity, await log.last())
        self._failing = await self._has_failures()
        if _ERASES_WORDS:
            await writer.execute("INSERT INTO texts (texts, rank) VALUES ('secure-delete', 1)")
            await writer.commit()
        await writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(unclean,)] = await writer.execute_fetchall("PRAGMA user_version")
        if unclean:
            self.unclean.set()
        while self._readers < READERS:
            self._idle.put_nowait(await self._connect(f"{self.path.resolve().as_uri()}?mode=ro"))
            self._readers += 1

    async def _connect(self, path: str) -> aiosqlite.Connection:
        async def connect() -> aiosqlite.Connection:
            connection = await aiosqlite.connect(path, uri=path.startswith("file:"))
            self._opened.append(connection)
            return connection

        return await finished(connect())  # aiosqlite leaves one that is given up meanwhile to the collector

    async def _check(self, writer: aiosqlite.Connection, identity: str, last: int) -> None:
        try:
            [(version, log, self.seq)] = await writer.execute_fetchall("SELECT version, log, seq FROM position")
        except (sqlite3.OperationalError, ValueError) as error:  # another version's table, or none
            raise Unfit(f"not ours: {error}") from error
        if log != identity or self.seq > last:
            raise Unfit("the log is another one")
        self.outdated = version != rows.VERSION
        if self.outdated and {(name, sql) for name, sql in await writer.execute_fetchall(_SHAPE)} != _shape():
            raise Unfit("another version of the tables")

    async def query(self, sql: str, values: Sequence[Any], within: float) -> list[tuple[Any, ...]]:
        """Any question; it cannot change rows. Raises `Unavailable` if no connection is free within so many seconds, or
        there is no answer within `ANSWER_SECONDS`; and `sqlite3.Error`.
        """
        try:
            async with asyncio.timeout(within):
                reader = await self._idle.get()
        except TimeoutError as error:
            raise Unavailable("the search index has too many questions; try again") from error
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return [tuple(row) for row in await reader.execute_fetchall(sql, values)]
        except TimeoutError as error:
            raise Unavailable(f"the search index did not answer within {ANSWER_SECONDS:g} s") from error
        finally:
            with suppress(ValueError):  # it is closed
                await reader.interrupt()  # if it was not waited for
            self._idle.put_nowait(reader)

    async def apply(self, records: Sequence[Record]) -> None:
        """One transaction: the rows and the position. A bounded number of statements, however many events."""
        if not records:
            return
        batch = rows.Batch(self._failing)
        for record in records:
            batch.add(record)
        async with self._writing:
            await self._write(batch, records[-1].seq)
            self._failing = batch.failing and await self._has_failures()
        self.seq = records[-1].seq
        if batch.forgets:
            self._merge = -MERGE_PAGES
            self.unclean.set()

    async def _write(self, batch: rows.Batch, seq: int) -> None:
        assert self._writer is not None
        try:
            for sql, values in batch.statements():
                if values:
                    await self._writer.executemany(sql, values)
            await self._writer.execute("UPDATE position SET seq = ?", (seq,))
            if batch.forgets:
                await self._writer.execute(_UNCLEAN)
            await self._writer.commit()
        except BaseException:  # cancelled, too: what comes next must not find half a batch
            with suppress(sqlite3.Error, ValueError):
                await self._writer.rollback()  # it is in the queue of the thread before a cancellation can come
            raise

    async def _has_failures(self) -> bool:
        assert self._writer is not None
        return bool(await self._writer.execute_fetchall("SELECT 1 FROM model_failures LIMIT 1"))

    async def clean(self) -> None:
        """Takes deleted text out of the full-text index, a piece at a time, and then out of the write-ahead log. A
        question that is being answered may hold that up: call again.
        """
        assert self._writer is not None
        async with self._writing:
            if not _ERASES_WORDS and await self._merge_words():
                return
            await self._writer.execute(_CLEAN)
            await self._writer.execute("PRAGMA busy_timeout = 0")
            [(busy, *_)] = await self._writer.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
            await self._writer.execute("PRAGMA busy_timeout = 5000")
        if not busy:
            self.unclean.clear()

    async def _merge_words(self) -> bool:
        """Merges a piece of the full-text index. Returns whether there is more to merge."""
        assert self._writer is not None
        before = self._writer.total_changes
        await self._writer.execute("INSERT INTO texts (texts, rank) VALUES ('merge', ?)", (self._merge,))
        await self._writer.commit()
        self._merge = MERGE_PAGES
        return self._writer.total_changes - before >= 2

    async def close(self) -> None:
        """Questions that wait or are being answered come to their end first; nobody may ask another."""
        opened, self._opened, self._writer = self._opened, [], None

        async def close() -> None:
            with anyio.move_on_after(ANSWER_SECONDS):
                while self._readers:  # questions that wait for a connection come first
                    await self._idle.get()
                    self._readers -= 1
            for connection in reversed(opened):
                await connection.close()

        await finished(close())  # their threads must not outlive the event loop

    async def replace(self, other: Path) -> None:
        """Take the place of another file; both are closed. If the process dies meanwhile, either is there in full."""
        for path in (self.path, other):
            if path.exists():
                await asyncio.to_thread(_fold_in, path)
        self.path.replace(other)
        self.path = other

    def discard(self) -> None:
        """Remove the file, which is closed."""
        for suffix in ("", *_BESIDE):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def _fold_in(path: Path) -> None:
    """Put what is beside a file into it: a log left beside another file would be taken for that one's."""
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in _BESIDE:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _shape() -> set[tuple[str, str]]:
    """Tables, views and indexes of this build, by name."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(tables.SCHEMA)
        return set(db.execute(_SHAPE))
