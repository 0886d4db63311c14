"""A long past: events as the product writes them, put straight into the stream and into the read models.

An append waits for the disk, so that 300 000 threads would take an hour. Here the events are the product's structs in
its envelope and encoding. The messages of the stream have the headers and guards of `EventLog.append`, one of `WINDOW`
is acknowledged, and the disk is waited for at the end. The rows come from the product's own row batch, out of the
same events at the same time.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import msgspec

from actors.wiring import compose
from core.bus import embedded
from core.events import (
    Event,
    ModelCompleted,
    Record,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunStarted,
    ThreadCreated,
    encode,
    written,
)
from core.identity.principal import LOCAL
from core.ids import stamp
from core.log.store import EventLog
from core.views import rows, tables
from tests.bench.processes import Broken
from tests.support.model_server import words

WINDOW = 500
STORED_SECONDS = 30.0
BATCH = 1000
OF_A_KIND = 10
"""Threads with the same rare metadata, and with the same rare word."""
PAUSED = 20
"""Threads with a run that is paused, the first ones."""
LEFT = 5000
"""Threads of a project that was left long ago, the first ones."""
DAILY = 1000
"""Threads a day."""
EVENTS = 5
"""Of each thread."""
COMMON = words(1)
"""A word that all threads have."""


def name(number: int) -> str:
    return f"grown-{number:06}"


@dataclass(frozen=True)
class Stretch:
    """The threads from one number to another, in a log in which the others come before."""

    first: int
    end: int
    began: datetime
    """When the thread number 0 was made."""

    def records(self) -> Iterator[Record]:
        """The events, thread by thread."""
        seq = self.first * EVENTS
        for number in range(self.first, self.end):
            at = self.began + number * timedelta(days=1) / DAILY
            for event, run in _events(number):
                seq += 1
                envelope = written(
                    event,
                    id=f"{number}-{seq}",
                    at=stamp(at),
                    kind="thread",
                    aggregate_id=name(number),
                    actor="lead",
                    run=run,
                    cause=None,
                )
                at += timedelta(milliseconds=1)
                yield Record(seq, encode(event, envelope))


async def extend(home: Path, config: Path, stretch: Stretch) -> None:
    """Write threads into the log of a data directory and into its read models, on which no server runs."""
    with ProcessPoolExecutor(1, get_context("spawn")) as beside, late_to_disk():
        views = asyncio.wrap_future(beside.submit(write_rows, home / "views.db", stretch))
        async with compose.attach(compose.Options(home, config)) as running:
            await _publish(running.log, stretch)
            await views
            await _adopt(home / "views.db", running.log)
            await leave(running.log)


def write_rows(path: Path, stretch: Stretch) -> None:
    """Add threads to read models, or make them. They fit no log until they are adopted."""
    events, fresh = stretch.records(), not path.exists()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        if fresh:
            db.executescript(tables.SCHEMA)
            db.execute("INSERT INTO position VALUES (?, '', 0)", (rows.VERSION,))
        while some := list(islice(events, BATCH)):
            batch = rows.Batch()
            for record in some:
                batch.add(record)
            for sql, values in batch.statements():
                if values:
                    db.executemany(sql, values)
            db.commit()


async def _publish(log: EventLog, stretch: Stretch) -> None:
    """Write the events into the stream, which nobody else writes to meanwhile."""
    if await log.last() != stretch.first * EVENTS:
        raise Broken(f"the log ends at {await log.last()}, not at {stretch.first * EVENTS}")
    await store(log, stretch.records())


async def store(log: EventLog, events: Iterable[Record]) -> None:
    """Write events into the stream; their sequences follow its last."""
    tips: dict[str, int] = {}
    for record in events:
        aggregate = record.aggregate.id
        headers = {
            "Nats-Msg-Id": record.id,
            "Nats-Expected-Last-Subject-Sequence": str(tips.get(aggregate, 0)),
            "Sika-Type": record.type,
        }
        tips = {aggregate: record.seq}
        subject = log.bus.names.log(record.aggregate)
        if record.seq % WINDOW:
            await log.bus.publish(subject, record.raw, headers)
            continue
        stored = msgspec.json.decode((await log.bus.ask(subject, record.raw, headers)).data)
        if stored.get("seq") != record.seq:
            raise Broken(f"event {record.seq} of the history was not stored: {stored}")
    deadline = time.monotonic() + STORED_SECONDS
    while await log.last() < record.seq:  # the end of the last window
        if time.monotonic() > deadline:
            raise Broken(f"{record.seq} events were published, the log ends at {await log.last()}")
        await asyncio.sleep(0.05)


async def _adopt(views: Path, log: EventLog) -> None:
    """The read models fit the log from now on."""
    last = await log.last()
    with closing(sqlite3.connect(views)) as db:
        db.execute("UPDATE position SET log = ?, seq = ?", (await log.identity(), last))
        db.commit()
    await leave(log)


async def leave(log: EventLog) -> None:
    """Lets no actor look for work in what is in the log: those that execute runs would begin with its first event."""
    for actor in ("lead", "subagents"):
        await log.bus.ask(log.bus.names.place(actor), b"%d" % await log.last())


@contextmanager
def late_to_disk() -> Iterator[None]:
    """A nats-server that starts meanwhile acknowledges what is not on the disk yet."""
    config = embedded._CONFIG
    embedded._CONFIG = config.replace("sync_interval: always", "sync_interval: 10s")
    try:
        yield
    finally:
        embedded._CONFIG = config


def _events(number: int) -> Iterator[tuple[Event, str | None]]:
    run = f"{name(number)}-run"
    kind = number // OF_A_KIND
    era = "left" if number < LEFT else "now"
    metadata = {"kind": kind, "quarter": number % 4, "third": number % 3, "era": era}
    question = {"type": "human", "id": f"{run}-h", "content": f"Question about kind{kind}x?"}
    answer = {
        "type": "ai",
        "id": f"{run}-a",
        "content": words(50),
        "usage_metadata": {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150},
    }
    yield ThreadCreated(user=LOCAL.user, metadata=metadata), None
    yield RunRequested(input={"messages": [question]}), run
    yield RunStarted(attempt=1, worker="bench", lease=1, model="tokens-50"), run
    yield ModelCompleted(message=answer), run
    if number < PAUSED:
        yield RunPaused(next=["tools"]), run
    elif number % 1000 == 500:
        yield RunFailed(error="Broken", text="as every thousandth"), run
    else:
        yield RunCompleted(), run
