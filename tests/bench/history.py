"""A long past: events as the product writes them, put straight into the read models or into the stream.

An append waits for its acknowledgement, so that 300 000 threads would take an hour. Here the events are the product's
structs in its envelope and encoding. The rows come from the product's own row batch, the messages of the stream have
the headers and guards of `EventLog.append`, and one of `WINDOW` is acknowledged.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import msgspec

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
    thread,
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
OPEN = 20
"""Threads with an open run, the first ones."""
LEFT = 5000
"""Threads of a project that was left long ago, the first ones."""
DAILY = 1000
"""Threads a day."""
COMMON = words(1)
"""A word that all threads have."""


def name(number: int) -> str:
    return f"grown-{number:06}"


def records(count: int, *, seq: int = 0) -> Iterator[Record]:
    """The events of so many threads, thread by thread; their sequences follow `seq`."""
    end = datetime.now(UTC)
    for number in range(count):
        at = end - (count - number) * timedelta(days=1) / DAILY
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


def write_rows(path: Path, count: int) -> None:
    """Make read models of so many threads. They fit no log until `adopt`."""
    events = records(count)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
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


async def adopt(path: Path, log: EventLog, views: Path) -> None:
    """Put read models in the place of those of a server that does not run: they fit its log from then on."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE position SET log = ?, seq = ?", (await log.identity(), await log.last()))
        db.commit()
    path.replace(views)


async def publish(log: EventLog, count: int) -> None:
    """Write the first threads into the stream, which nobody else writes to meanwhile."""
    await store(log, records(count, seq=await log.last()))


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
        subject = log.bus.names.log(thread(aggregate))
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


def _events(number: int) -> Iterator[tuple[Event, str | None]]:
    run = f"{name(number)}-run"
    kind = number // OF_A_KIND
    metadata = {"kind": kind, "quarter": number % 4, "era": "left" if number < LEFT else "now"}
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
    if number < OPEN:
        return
    yield ModelCompleted(message=answer), run
    if number % 1000 == 1:
        yield RunFailed(error="Broken", text="as every thousandth"), run
    elif number % 1000 == 2:
        yield RunPaused(next=["tools"]), run
    else:
        yield RunCompleted(), run
