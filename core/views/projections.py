"""Read models in SQLite: what the log cannot be asked quickly (search, full text, which thread a run belongs to).

They are derived: the file may be deleted at any time, is never shared between processes, and needs no migrations:
another `rows.VERSION`, a log it does not fit, or damage, and it is built again from the log. The position in the log is
stored in the same transaction as the rows.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import structlog

from core.errors import Invalid, Refused, Unavailable, ungrouped
from core.events import Record
from core.files.paths import make_home
from core.ids import stamp
from core.log.store import EventLog
from core.views import fulltext
from core.views.database import Database, Unfit
from core.views.search import COLUMNS, MOST_SNIPPETS, SNIPPETS, SORTABLE, WAITS, Filters, Order, Plan, matching

log = structlog.get_logger("sika.projections")

BATCH_SECONDS = 0.25
"""Time for which rows are gathered before they are committed. A caller that waits for them (`reached`) has them at
once.
"""
BATCH = 1000
BATCH_BYTES = 8 << 20
"""Events of one transaction, and of the memory for it."""
WAIT_SECONDS = 10.0

CLEAN_SECONDS = 0.25
"""Pause between two pieces of the work that takes deleted text out of the file."""
ABANDONED_SECONDS = 86400.0
"""Age of the file of a process that does not run, from which on it is removed: nobody takes deleted text out of it."""
RETRY_SECONDS = 5.0
"""Pause when the file cannot be written: a full disk is not filled less by hurry."""
VARIABLES = 30_000
"""Values in one statement; SQLite takes 32 766."""
MOST_PROCESSES = 64


@contextmanager
def own_file(home: Path) -> Iterator[tuple[Path, int]]:
    """A file for this process's views: `views.db`, or `views-2.db` … if processes of a cluster share the data
    directory; and the number, which no other process has meanwhile.
    """
    for number in range(1, MOST_PROCESSES + 1):
        name = "views" if number == 1 else f"views-{number}"
        try:
            make_home(home)
            descriptor = os.open(home / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Invalid(f"data directory {home} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield home / f"{name}.db", number
        finally:
            os.close(descriptor)
        return
    raise Refused(f"data directory {home}: {MOST_PROCESSES} processes use it already")


def remove_abandoned(home: Path) -> None:
    """Removes the read models of processes that have not run for a day; they are built again from the log."""
    for path in home.glob("views*.db"):
        with suppress(OSError), path.with_suffix(".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - max(file.stat().st_mtime for file in home.glob(f"{path.name}*")) > ABANDONED_SECONDS:
                for file in home.glob(f"{path.name}*"):
                    file.unlink()


class ThreadRow(NamedTuple):
    """One hit of a thread search."""

    thread_id: str
    user: str
    metadata: dict[str, Any]
    status: str
    title: str | None
    created_at: str
    updated_at: str
    state_updated_at: str
    seq: int
    """The thread's last event."""
    waiting: bool = False
    """True if it waits for answers of a person."""
    matches: Sequence[int] = ()
    """Rows of the newest messages that have the words of the query."""


class Snippet(NamedTuple):
    """A piece of a message (None: of the title) with the words that were looked for."""

    thread_id: str
    message_id: str | None
    text: str


class Views:
    """The read models of one process. `run` keeps them up to date; the rest reads."""

    def __init__(self, path: Path, log: EventLog) -> None:
        self.path = path
        self.log = log
        self.seq = 0
        """Everything up to this log sequence is in the rows."""
        self._database: Database | None = None
        """Open and fit to be read."""
        self._readable = asyncio.Event()
        self._hurry = asyncio.Event()
        """Somebody waits for rows that are being gathered."""
        self._progress = asyncio.Event()
        self._anew = asyncio.Event()
        """The rows are to be built from the log."""

    async def run(self) -> None:
        """Runs for as long as the process: applies events as they come; builds the rows anew if they are damaged."""
        try:
            while True:
                await self._keep()
        finally:
            await self.close()

    async def _keep(self) -> None:
        """Follows the log until the rows were built anew, or until something is wrong."""
        try:
            if self._database is None and not self._anew.is_set():
                await self._use(Database(self.path))
            with ungrouped(sqlite3.Error, Unfit):
                await self._follow_and_rebuild()
        except Unfit as error:
            log.info("views are built from the log", reason=str(error))
            self._anew.set()
        except sqlite3.OperationalError as error:
            log.error("views cannot be written; searches are out of date", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        except sqlite3.DatabaseError as error:
            log.warning("views are damaged and built again from the log", reason=str(error))
            await self.close()
            self._anew.set()
        except Unavailable as error:
            log.warning("views wait for the log", error=str(error))
            await asyncio.sleep(1)

    async def _follow_and_rebuild(self) -> None:
        draft = Database(self.path.with_name(f"{self.path.name}.new"))
        try:
            async with anyio.create_task_group() as tasks:
                if self._database is not None:
                    tasks.start_soon(self._follow, self._database)
                    tasks.start_soon(_keep_clean, self._database)
                await self._anew.wait()
                draft.discard()
                await draft.open(self.log)
                await self._catch_up(draft)
                tasks.cancel_scope.cancel()
            await self._catch_up(draft)  # no row that was read is missing from now on
        finally:
            await draft.close()
        await self.close()
        await draft.replace(self.path)
        self._anew.clear()
        await self._use(draft)

    async def _use(self, database: Database) -> None:
        """Answer questions from these rows."""
        try:
            await database.open(self.log)
        except BaseException:
            await database.close()
            raise
        if database.outdated:
            log.info("views are built from the log; those of another version are read meanwhile")
            self._anew.set()
        self._database, self.seq = database, database.seq
        self._readable.set()
        self._progress.set()

    @property
    def readable(self) -> bool:
        """Tells whether questions are answered at once."""
        return self._readable.is_set()

    async def rebuild(self) -> None:
        """Have the rows built again from the log. Until that is done, the old ones are read, and follow the log."""
        self._anew.set()

    async def close(self) -> None:
        self._readable.clear()
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def reached(self, seq: int) -> None:
        """Wait until everything up to a sequence is in the rows. Raises `Unavailable` after 10 s."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self.seq < seq:
                    self._progress.clear()
                    self._hurry.set()
                    await self._progress.wait()
        except TimeoutError as error:
            raise Unavailable("the search index is behind; try again") from error

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Any question to the rows; it cannot change them. Raises `Unavailable`.

        For others to rely on: `threads` (thread_id, user, status, title, created_at, updated_at, state_updated_at);
        `runs` (run_id, thread_id, user, assistant, model, status, seq, created_at, started_at, ended_at, error), where
        `status` may also be `rolled_back`; and `usage` (run_id, model, caller, input_tokens, output_tokens,
        cache_read_tokens, calls).
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._readable.wait()
        except TimeoutError as error:
            raise Unavailable("the search index is being built; try again") from error
        assert self._database is not None
        try:
            return await self._database.query(sql, values, WAIT_SECONDS)
        except (sqlite3.OperationalError, ValueError) as error:
            raise Unavailable(f"the search index cannot be read; try again ({error})") from error
        except sqlite3.DatabaseError as error:
            await self.rebuild()
            raise Unavailable(f"the search index is being repaired; try again ({error})") from error

    async def open_threads(self, before: datetime) -> list[str]:
        """Ids of the threads that have an open run and in which nothing has happened since. Raises `Unavailable`."""
        sql = """
            SELECT DISTINCT t.thread_id FROM all_runs r CROSS JOIN threads t ON t.id = r.thread
            WHERE r.status IN ('pending', 'running') AND t.updated_at < ?
        """
        return [name for (name,) in await self.query(sql, [stamp(before)])]

    async def current(self) -> None:
        """Wait until the rows have all that was in the log when this was called, by whichever process."""
        await self.reached(await self.log.last())

    async def thread_of(self, run_id: str) -> str | None:
        """The thread a run belongs to."""
        rows = await self.query("SELECT thread_id FROM runs WHERE run_id = ?", (run_id,))
        return str(rows[0][0]) if rows else None

    async def open_runs(self, user: str, statuses: Sequence[str]) -> list[tuple[str, str]]:
        """A user's runs that are pending or running, whichever is asked for, as (thread, run)."""
        marks = ", ".join("?" * len(statuses))
        sql = f"SELECT thread_id, run_id FROM runs WHERE user = ? AND status IN ({marks})"
        return [(thread_id, run_id) for thread_id, run_id in await self.query(sql, (user, *statuses))]

    async def waiting(self, user: str, limit: int, offset: int) -> tuple[list[tuple[str, int]], int]:
        """Returns threads of a user that wait for answers of a person, those that changed last first, each with its
        last event; and how many there are.
        """
        order = "ORDER BY updated_at DESC, thread_id DESC LIMIT ? OFFSET ?"
        sql = f"SELECT thread_id, seq FROM threads WHERE user = ? AND {WAITS} {order}"
        rows = await self.query(sql, (user, limit, offset))
        return [(thread_id, seq) for thread_id, seq in rows], await self.count_waiting(user)

    async def count_waiting(self, user: str) -> int:
        """Counts the threads of a user that wait for answers of a person."""
        [(total,)] = await self.query(f"SELECT count(*) FROM threads WHERE user = ? AND {WAITS}", (user,))
        return int(total)

    async def open_counts(self) -> dict[str, int]:
        """Counts the pending and the running runs of all users."""
        sql = "SELECT status, count(*) FROM all_runs WHERE status IN ('pending', 'running') GROUP BY status"
        return {"pending": 0, "running": 0} | dict(await self.query(sql))

    async def search(
        self,
        *,
        user: str,
        metadata: Mapping[str, Any] | None = None,
        status: str | None = None,
        ids: Sequence[str] | None = None,
        values: Mapping[str, Any] | None = None,
        query: str | None = None,
        sort_by: str = "updated_at",
        descending: bool = True,
        limit: int = 10,
        offset: int = 0,
    ) -> tuple[list[ThreadRow], int]:
        """A page of a user's threads (see `core.views.search.Filters`), and how many there are in all.

        Of threads with the words of a query those count that are among the newest `MOST_MATCHES` matches. Where more
        than `FEW` threads have each of several metadata values, the total is a lower bound, which is exact from the
        last page on; `count` is exact.
        """
        if sort_by not in SORTABLE:
            raise Invalid(f"sort_by: one of {', '.join(SORTABLE)}, got {sort_by!r}")
        order = Order(sort_by, descending)
        filters = Filters(user=user, metadata=metadata or {}, status=status, ids=ids, values=values or {}, query=query)
        if filters.narrow:
            matches = await self._matches(filters, order)
            return await self._rows(list(matches)[offset : offset + limit], matches), len(matches)
        plan = await self._plan(filters)
        if not plan.least:
            return [], 0
        page = [identity for (identity,) in await self.query(*plan.page(order, limit + 1, offset))]
        return await self._rows(page[:limit], {}), await self._total(plan, limit, offset, len(page))

    async def count(self, filters: Filters) -> int:
        """Counts the threads of a user; with a query, those with its words, as in `search`."""
        if filters.narrow:
            return len(await self._matches(filters, Order()))
        plan = await self._plan(filters)
        if plan.total is not None:
            return plan.total
        [(total,)] = await self.query(*plan.counting())
        return int(total)

    async def _matches(self, filters: Filters, order: Order) -> dict[int, list[int]]:
        """The ids of the rows of all hits in their order, with those of the messages that have the words."""
        matches: dict[int, list[int]] = {}
        for identity, message in await self.query(*filters.candidates(order)):
            matches.setdefault(identity, []).extend([message] if message is not None else [])
        return matches

    async def _plan(self, filters: Filters) -> Plan:
        return filters.plan({(key, value): count for key, value, count in await self.query(*filters.counts())})

    async def _total(self, plan: Plan, limit: int, offset: int, length: int) -> int:
        """Counts the threads, or returns the least number, if `length` of `limit` + 1 are at this offset."""
        if plan.total is not None:
            return plan.total
        if 0 < length <= limit or not (length or offset):
            return offset + length
        [(newest,)] = await self.query(*plan.counting(newest=True))
        return max(int(newest), offset + length if length else 0)

    async def _rows(self, ids: Sequence[int], matches: Mapping[int, Sequence[int]]) -> list[ThreadRow]:
        """Threads by the ids of their rows, in this order, as far as they are there still."""
        by_id: dict[int, ThreadRow] = {}
        for start in range(0, len(ids), VARIABLES):
            some = ids[start : start + VARIABLES]
            sql = f"SELECT t.id, {COLUMNS} FROM threads t WHERE t.id IN ({', '.join('?' * len(some))})"
            for identity, name, user, metadata, *rest, waits in await self.query(sql, some):
                texts = tuple(matches.get(identity, ())[:MOST_SNIPPETS])
                by_id[identity] = ThreadRow._make(
                    (name, user, msgspec.json.decode(metadata), *rest, bool(waits), texts)
                )
        return [by_id[identity] for identity in ids if identity in by_id]

    async def snippets(self, query: str, threads: Sequence[ThreadRow]) -> list[Snippet]:
        """Where the words of a query were found in these threads of one user, the newest first."""
        ids = sorted(identity for row in threads for identity in row.matches)
        match = matching(threads[0].user, query) if ids else None
        if match is None:
            return []
        sql = SNIPPETS.format(ids=", ".join("?" * len(ids)))
        rows = await self.query(sql, (match, ids[0], ids[-1], *ids))
        return [Snippet(r[0], r[1] or None, fulltext.unsegmented(r[2])) for r in rows]

    # ── following ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _follow(self, database: Database) -> None:
        with self.log.listen(None, bodies=False) as listener:
            behind = True
            while True:
                if behind:
                    await self._catch_up(database)
                records, behind = await listener.take()
                if not behind:
                    await self._apply(database, _each(record for record in records if record.seq > database.seq))
                with suppress(TimeoutError):
                    async with asyncio.timeout(BATCH_SECONDS):
                        await self._hurry.wait()
                self._hurry.clear()

    async def _catch_up(self, database: Database) -> None:
        last = await self.log.last()
        await self._apply(database, self.log.between(database.seq, last, bodies=False))
        database.seq = max(database.seq, last)  # events that are not there were erased
        self._reached(database)

    async def _apply(self, database: Database, records: AsyncIterator[Record]) -> None:
        batch, size = list[Record](), 0
        async for record in records:
            batch.append(await self.log.whole(record))
            size += len(batch[-1].raw)
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                await database.apply(batch)
                self._reached(database)
                batch, size = [], 0
        await database.apply(batch)
        self._reached(database)

    def _reached(self, database: Database) -> None:
        if database is self._database:
            self.seq = database.seq
            self._progress.set()


async def _each(records: Iterable[Record]) -> AsyncIterator[Record]:
    for record in records:
        yield record


async def _keep_clean(database: Database) -> None:
    """Takes the text of deleted threads out of the files."""
    while True:
        await database.unclean.wait()
        await database.clean()
        await asyncio.sleep(CLEAN_SECONDS)
