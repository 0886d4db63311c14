"""The read models: they follow the log, survive a kill, heal and rebuild themselves, find what they are asked for."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import aiosqlite
import anyio
import pytest

from core.bus.connection import Bus
from core.bus.streams import erase
from core.errors import Invalid, Refused, Unavailable
from core.events import (
    Event,
    Json,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRemoved,
    RunRequested,
    RunRolledBack,
    RunStarted,
    StatePatched,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadForked,
    ThreadPruned,
    ToolCompleted,
    thread,
)
from core.ids import assistant_id
from core.log.store import EventLog
from core.thread.fold import fold
from core.views import database, projections
from core.views import rows as rows_module
from core.views.database import Database
from core.views.model_failures import ModelFailure, model_failures
from core.views.overview import newest
from core.views.projections import Views, own_file, remove_abandoned
from tests.support.nats import DEADLINE, Nats, append, eventually, fresh, read, running_tasks

STARTED = RunStarted(attempt=1, worker="w", lease=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "BATCH_SECONDS", 0.01)


@asynccontextmanager
async def views_of(log: EventLog, path: Path) -> AsyncIterator[Views]:
    views = Views(path, log)
    async with running_tasks(views.run):
        yield views
    await views.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "views.db"


@pytest.fixture
async def views(log: EventLog, path: Path) -> AsyncIterator[Views]:
    async with views_of(log, path) as views:
        yield views


async def current(views: Views) -> None:
    """Everything that is in the log is in the rows, and they can be read."""

    async def there() -> bool:
        await views.search(user="nobody")
        return views.seq >= await views.log.last()

    await eventually(there)


async def write(log: EventLog, name: str, *events: tuple[Event, str | None] | Event) -> None:
    for event in events:
        fact, run = (event, None) if isinstance(event, Event) else event
        await log.append(thread(name), [fact], expected=await log.tip(thread(name)), actor="test", run=run)


async def made(log: EventLog, metadata: Json | None = None, user: str = "ada") -> str:
    name = fresh().id
    await write(log, name, ThreadCreated(user=user, metadata=metadata or {}))
    return name


TABLES = ("position", "threads", "metadata", "all_runs", "used", "written", "messages", "texts", "calls", "changes")
SUMS = {
    "thread_counts": """
        SELECT user, '', '', status, count(*) FROM threads GROUP BY 1, 4
        UNION ALL SELECT '', '', '', status, count(*) FROM threads GROUP BY 4
        UNION ALL SELECT m.user, key, value, status, count(*) FROM metadata m JOIN threads t ON t.id = m.thread
        GROUP BY 1, 2, 3, 4
    """,
    "run_counts": """
        SELECT user, substr(created_at, 1, 10), status, count(*) FROM runs GROUP BY 1, 2, 3
        UNION ALL SELECT '', substr(created_at, 1, 10), status, count(*) FROM runs GROUP BY 2, 3
    """,
    "usage_sums": """
        WITH u AS (
            SELECT user, assistant, substr(created_at, 1, 10) AS day, u.* FROM runs r JOIN usage u USING (run_id)
        )
        SELECT user, day, model, assistant, count(DISTINCT run_id), sum(input_tokens), sum(output_tokens),
            sum(cache_read_tokens), sum(calls) FROM u GROUP BY 1, 2, 3, 4
        UNION ALL SELECT '', day, model, assistant, count(DISTINCT run_id), sum(input_tokens), sum(output_tokens),
            sum(cache_read_tokens), sum(calls) FROM u GROUP BY 2, 3, 4
    """,
}


def rows(path: Path) -> dict[str, list[Any]]:
    """All that is stored; what is kept as a sum is the sum."""
    with closing(sqlite3.connect(path)) as db:
        for name, sql in SUMS.items():
            assert sorted(db.execute(f"SELECT * FROM {name}")) == sorted(db.execute(sql))
        return {name: sorted(db.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in TABLES}


async def status_of(views: Views, name: str) -> str:
    await current(views)
    [row], _ = await views.search(user="ada", ids=[name])
    return row.status


# ── following ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_big_events_are_applied_a_few_at_a_time(
    log: EventLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bodies are in memory for one transaction only, when the rows are built and when they follow."""
    monkeypatch.setattr(projections, "BATCH_BYTES", 1_000_000)
    sizes, apply, thread_ = list[int](), Database.apply, fresh()

    async def applying(database: Database, records: Sequence[Record]) -> None:
        sizes.append(sum(len(record.raw) for record in records))
        await apply(database, records)

    monkeypatch.setattr(Database, "apply", applying)
    big = [StatePatched(values={"text": "x" * 400_000}) for _ in range(10)]
    records = await append(log, thread_, ThreadCreated(user="ada"), *big)
    async with views_of(log, path) as views:
        await current(views)
        await append(log, thread_, *big, expected=records[-1].seq)
        await current(views)
    assert sum(sizes) > 8_000_000
    assert max(sizes) < 1_500_000


async def test_rows_follow_the_log(views: Views, log: EventLog) -> None:
    name, run = await made(log, {"a": 1}), fresh().id
    await write(log, name, ThreadAnnotated(metadata={"b": "x"}), StatePatched(values={"title": "Otters"}))
    await current(views)
    [row], total = await views.search(user="ada")
    assert (row.thread_id, row.user, row.metadata, row.status, row.title) == (
        *(name, "ada", {"a": 1, "b": "x"}, "idle", "Otters"),
    )
    records = await read(log, thread(name))
    assert (row.created_at, row.updated_at, total) == (records[0].at, records[-1].at, 1)
    assert await views.thread_of(run) is None
    await write(log, name, (RunRequested(), run))
    await current(views)
    assert await views.thread_of(run) == name
    await write(log, name, ThreadErased(by="ada"))
    await current(views)
    assert (await views.search(user="ada"), await views.thread_of(run)) == (([], 0), None)


ENDS: list[tuple[Event, str]] = [
    (RunCompleted(), "idle"),
    (RunFailed(error="E", text="t"), "error"),
    (RunCancelled(), "interrupted"),
    (RunRolledBack(), "idle"),
    (RunPaused(next=["tools"]), "interrupted"),
]


@pytest.mark.parametrize(("end", "status"), ENDS, ids=[type(end).__name__ for end, _ in ENDS])
@pytest.mark.parametrize("at_once", [True, False])
async def test_the_status_of_a_thread_is_the_folds(
    views: Views, log: EventLog, end: Event, status: str, at_once: bool
) -> None:
    name = await made(log)
    steps: list[Event] = [RunRequested(), STARTED, end]
    if at_once:
        records = await log.append(thread(name), steps, expected=await log.tip(thread(name)), actor="t", run="r1")
        assert len(records) == 3
        assert await status_of(views, name) == status
        return
    for step in steps:
        await write(log, name, (step, "r1"))
        assert await status_of(views, name) == fold(await read(log, thread(name))).status
    assert await status_of(views, name) == status
    await write(log, name, (RunRequested(), "r2"))
    assert await status_of(views, name) == "busy"


async def test_a_queued_run_that_is_cancelled_before_the_one_at_work_ends(views: Views, log: EventLog) -> None:
    name = await made(log)
    await write(log, name, (RunRequested(), "r1"), (STARTED, "r1"), (RunRequested(multitask="enqueue"), "r2"))
    await write(log, name, (RunCancelled(), "r2"), (RunCompleted(), "r1"))
    assert await status_of(views, name) == fold(await read(log, thread(name))).status


async def test_a_pause_ends_when_another_run_begins(views: Views, log: EventLog) -> None:
    name = await made(log)
    steps: list[tuple[Event, str] | Event] = [
        (RunRequested(), "r1"),
        (STARTED, "r1"),
        (RunPaused(next=["model"]), "r1"),
    ]
    steps += [StatePatched(values={"title": "x"}), (RunRequested(), "r2"), (RunCancelled(), "r2"), (RunRemoved(), "r2")]
    steps += [(RunRequested(), "r3"), (STARTED, "r3"), (RunFailed(error="E", text="t"), "r3"), (RunRemoved(), "r3")]
    seen = []
    for step in steps:
        await write(log, name, step)
        assert await status_of(views, name) == fold(await read(log, thread(name))).status
        seen.append(await status_of(views, name))
    assert [status for n, status in enumerate(seen) if status != seen[n - 1]] == ["busy", "interrupted"] * 2 + [
        *("busy", "error"),
    ]


async def test_when_the_state_changed(views: Views, log: EventLog) -> None:
    """As the fold has it: with the newest commit, not with every event."""
    name = await made(log)
    steps: list[tuple[Event, str] | Event] = [
        ThreadAnnotated(metadata={"a": 1}),
        StatePatched(values={"title": "x"}),
        *[(RunRequested(input={"messages": [human("h")]}), "r1"), (STARTED, "r1"), (said("m1", 1, 1), "r1")],
        *[(ToolCompleted(call_id="c", message=human("t")), "r1"), (MessageAdded(messages=[human("s")]), "r1")],
        *[(RunCompleted(), "r1"), (RunRequested(), "r2"), (STARTED, "r2"), (RunFailed(error="E", text=""), "r2")],
        ThreadForked(source="s", source_seq=1, patches=[{"title": "y"}]),
        ThreadPruned(user="ada", metadata={}, created_at="2026-01-01T00:00:00.000000+00:00", values={"title": "y"}),
    ]
    for step in steps:
        await write(log, name, step)
        await current(views)
        [row], _ = await views.search(user="ada")
        state = fold(await read(log, thread(name)))
        assert row.state_updated_at == (state.commits[-1].at if state.commits else state.created_at), step
        assert (row.updated_at, row.created_at, row.seq) == (state.updated_at, state.created_at, state.seq)


def human(identity: str, text: str = "?") -> Json:
    return {"type": "human", "id": identity, "content": text}


def said(identity: str, input_tokens: int, output_tokens: int, cached: int = 0, text: str = "!") -> ModelCompleted:
    usage = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "input_token_details": {"cache_read": cached},
    }
    return ModelCompleted(message={"type": "ai", "id": identity, "content": text, "usage_metadata": usage})


RUNS = """
SELECT run_id, thread_id, user, assistant, model, status, seq, created_at, started_at, ended_at, error FROM runs
ORDER BY seq
"""


@pytest.mark.parametrize("at_once", [True, False])
async def test_runs_and_what_they_used(views: Views, log: EventLog, at_once: bool) -> None:
    name = await made(log)
    one, two, three = (f"{name}-{number}" for number in range(3))
    first, again = (
        RunStarted(attempt=1, worker="w", lease=1, model="a"),
        RunStarted(attempt=2, worker="w", lease=1, model="b"),
    )
    silent = ModelCompleted(message={"type": "ai", "id": "m4", "content": ""})
    events: list[tuple[Event, str]] = [
        *[(RunRequested(assistant="x"), one), (first, one), (said("m1", 10, 5, 4), one), (said("m2", 20, 5), one)],
        *[(again, one), (said("m3", 1, 1), one), (RunFailed(error="E", text="broke"), one)],
        *[(RunRequested(), two), (STARTED, two), (silent, two), (RunRolledBack(), two)],
        *[(RunRequested(), three), (RunCancelled(), three), (RunRemoved(), three)],
    ]
    if not at_once:
        for event in events:
            await write(log, name, event)
            await current(views)
    else:
        await write(log, name, *events)
        await current(views)
    at = {(r.run, r.type, n): r for n, r in enumerate(await read(log, thread(name)))}
    runs = await views.query(RUNS)
    requested, started, *_ = [r for (run, kind, _), r in at.items() if run == one and not kind.startswith("model")]
    ended = next(r.at for (run, kind, _), r in at.items() if (run, kind) == (one, "run.failed"))
    assert runs[0] == (*(one, name, "ada", "x", "b", "error", requested.seq, requested.at, started.at, ended, "broke"),)
    assert [(run[0], run[4], run[5]) for run in runs[1:]] == [(two, None, "rolled_back")]
    assert await views.query("SELECT * FROM usage ORDER BY run_id, model") == [
        (one, "a", "test", 30, 10, 4, 2),
        (one, "b", "test", 1, 1, 0, 1),
        (two, "unknown", "test", 0, 0, 0, 1),
    ]
    assert (await views.thread_of(two), await views.thread_of(three)) == (name, None)
    await write(log, name, ThreadErased(by="ada"))
    await current(views)
    assert await views.query("SELECT * FROM runs") == await views.query("SELECT * FROM usage") == []


def failed(text: str, **more: Any) -> ModelFailed:
    return ModelFailed(error="E", text="at 10.0.0.7", attempt=1, max_attempts=1, public=text, **more)


STARTED_A = RunStarted(attempt=1, worker="w", lease=1, model="a")
BY_SPARE = ModelCompleted(
    message={"type": "ai", "id": "m", "content": "", "response_metadata": {"answered_by": "spare"}}
)
CALLS: list[tuple[list[Event], dict[str, str]]] = [
    ([failed("no")], {"a": "no"}),
    ([failed("no"), failed("never")], {"a": "never"}),
    ([failed("later", wait_ms=500)], {}),
    ([failed("now another", wait_ms=0)], {"a": "now another"}),
    ([failed("no"), failed("later", wait_ms=500)], {"a": "no"}),
    ([failed("no", model="spare")], {"spare": "no"}),
    ([failed("no"), said("m", 1, 1)], {}),
    ([said("m", 1, 1), failed("no")], {"a": "no"}),
    ([failed("no"), said("m", 1, 1), failed("no more")], {"a": "no more"}),
    ([failed("no", wait_ms=0), BY_SPARE], {"a": "no"}),
    ([failed("no", wait_ms=0), failed("nor I", model="spare"), BY_SPARE], {"a": "no"}),
    ([failed("no"), *[failed("this", reason=reason) for reason in ("context", "circuit_open", "time")]], {"a": "no"}),
]
"""What happens in a run of the model `a`, and the failures that are left."""


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(("events", "left"), CALLS)
async def test_the_last_failures_of_models(
    log: EventLog, path: Path, events: list[Event], left: dict[str, str], size: int
) -> None:
    """The same rows, however many events come at once, in one run or in several."""
    for several in (False, True):
        database, name = Database(path), await made(log)
        await database.open(log)
        await write(log, name, *[(event, "r") for event in (RunRequested(), STARTED_A)])
        for number, event in enumerate(events):
            if several and number:
                name = await made(log)
                await write(log, name, *[(event, f"r{number}") for event in (RunRequested(), STARTED_A)])
            await write(log, name, (event, f"r{number}" if several and number else "r"))
        records = [record async for record in log.between(0, await log.last())]
        for start in range(0, len(records), size):
            await database.apply(records[start : start + size])
        found = await database.query("SELECT model, text FROM model_failures", [], 5)
        await database.close()
        database.discard()
        assert dict(found) == left
        await write(log, name, *[(said("end", 1, 1), "r")])


async def test_answers_of_models_that_did_not_fail_write_nothing(log: EventLog, path: Path) -> None:
    """Nor do they read: the statement is not among those of their batch."""
    name = await made(log)
    await write(log, name, (RunRequested(), "r"), (STARTED_A, "r"), (said("m", 1, 1), "r"))
    records = [record async for record in log.between(0, await log.last())]
    for failing in (False, True):
        batch = rows_module.Batch(failing)
        for record in records:
            batch.add(record)
        values = dict(batch.statements())
        assert bool(values[rows_module.ANSWERED]) is failing
        assert not values[rows_module.FAILED]


async def test_failures_of_deleted_conversations_are_forgotten(views: Views, log: EventLog) -> None:
    """The provider's words may quote them."""
    name = await made(log)
    await write(log, name, (RunRequested(), "r"), (STARTED_A, "r"), (failed("not with 'my secret'"), "r"))
    await current(views)
    assert await model_failures(views) == {"a": ModelFailure(ANY, "generic", "not with 'my secret'")}
    await write(log, name, ThreadErased(by="ada"))
    await current(views)
    assert await model_failures(views) == {}


@pytest.mark.parametrize("sql", ["DELETE FROM threads", "CREATE TABLE x (y)", "PRAGMA journal_mode = DELETE", "no SQL"])
async def test_questions_change_nothing(views: Views, log: EventLog, sql: str) -> None:
    await made(log)
    await current(views)
    with pytest.raises(Unavailable):
        await views.query(sql)
    assert (await views.search(user="ada"))[1] == 1


async def test_questions_are_answered_while_rows_are_written(views: Views, log: EventLog) -> None:
    """And see all of a batch, or nothing of it."""
    writing = asyncio.ensure_future(busy(log, 40))
    while not writing.done():
        [(threads, metadata)] = await views.query(
            "SELECT (SELECT count(*) FROM threads), (SELECT count(DISTINCT thread) FROM metadata)"
        )
        assert threads == metadata
    await writing


async def test_the_first_run_says_what_the_thread_is_for(views: Views, log: EventLog) -> None:
    own = "0b0e8a4c-0000-4000-8000-000000000001"
    plain, named, custom = await made(log), await made(log, {"graph_id": "mine"}), await made(log)
    for name, assistant in ((plain, "lead_agent"), (named, "lead_agent"), (custom, own)):
        await write(log, name, (RunRequested(assistant=assistant), f"1{name}"))
        await current(views)
        await write(log, name, (RunRequested(assistant="another"), f"2{name}"))
    await current(views)
    known = {row.thread_id: row.metadata for row in (await views.search(user="ada"))[0]}
    identity = assistant_id("lead_agent")
    assert known[plain] == {"graph_id": "lead_agent", "assistant_id": identity}
    assert known[named] == {"graph_id": "mine", "assistant_id": identity}
    assert known[custom] == {"assistant_id": own}
    await write(log, plain, ThreadAnnotated(metadata={"graph_id": "theirs"}))
    await current(views)
    assert (await views.search(user="ada", ids=[plain]))[0][0].metadata["graph_id"] == "theirs"


async def test_events_of_others_and_odd_events_do_no_harm(views: Views, log: EventLog) -> None:
    await append(log, fresh("memory"), ThreadAnnotated(metadata={}))
    await write(log, fresh().id, ThreadAnnotated(metadata={"a": 1}), (RunCompleted(), "r"), (STARTED, None))
    bad = b'{"id":"x","type":"thread.created","kind":"thread","aggregate":"t","actor":"a","at":"now","user":5}'
    await log.bus.ask(log.bus.names.log(thread("t")), bad, {"Nats-Msg-Id": "x"})
    name = await made(log)
    await current(views)
    assert [r.thread_id for r in (await views.search(user="ada"))[0]] == [name]


async def test_reached_waits_for_the_rows(views: Views, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(log)
    last = await log.last()
    await views.reached(last)
    assert (await views.search(user="ada"))[1] == 1
    monkeypatch.setattr(projections, "WAIT_SECONDS", 0.1)
    with pytest.raises(Unavailable, match="behind"):
        await views.reached(last + 1)


async def test_events_that_were_erased_before_they_were_heard_are_not_waited_for(any_log: EventLog, path: Path) -> None:
    async with views_of(any_log, path) as views:
        await made(any_log)
        await views.current()
        assert any_log._live is not None
        await any_log._live.unsubscribe()
        for record in await append(any_log, fresh(), *[ThreadAnnotated(metadata={})] * 3):
            await erase(any_log.bus, "log", record.seq)
        await any_log._heal_all()
        await views.current()
    async with views_of(any_log, path) as views:  # at a start, too
        await views.current()


# ── searching ───────────────────────────────────────────────────────────────────────────────────────────────────────

METADATA: dict[str, Json] = {
    "empty": {},
    "null": {"k": None},
    "true": {"k": True},
    "false": {"k": False},
    "one": {"k": 1},
    "zero": {"k": 0},
    "text": {"k": "1"},
    "float": {"k": 1.5},
    "list": {"k": ["a"]},
    "object": {"k": {"a": 1}},
    "dotted": {"a.b": 1},
    "nested": {"a": {"b": 1}},
    "quoted": {'a"b': 1},
    "unquoted": {"ab": 1},
    "apostrophe": {"it's": 1},
    "brackets": {"a[0]": 1, "$": 2},
    "backslash": {"a\\b": 1},
    "unicode": {"ключ": "значение"},
    "two": {"k": 2, "l": "x"},
}


@pytest.mark.parametrize("wanted", [name for name in METADATA if name != "empty"])
async def test_metadata_must_be_equal(views: Views, log: EventLog, wanted: str) -> None:
    """Each of the filters finds the one thread whose metadata it is; JSON's values are all different."""
    names = {await made(log, metadata): name for name, metadata in METADATA.items()}
    await current(views)
    found, total = await views.search(user="ada", metadata=METADATA[wanted], limit=100)
    assert [names[row.thread_id] for row in found] == [wanted]
    assert total == 1


@pytest.mark.parametrize("change", [{"a": None}, {"b": {"d": 2}}])
async def test_metadata_is_annotated_as_the_fold_does(views: Views, log: EventLog, change: Json) -> None:
    name = await made(log, {"a": 1, "b": {"c": 1}})
    await write(log, name, ThreadAnnotated(metadata=change))
    await current(views)
    [row], _ = await views.search(user="ada")
    assert row.metadata == fold(await read(log, thread(name))).metadata


async def test_annotations_of_a_batch_are_merged_in_order(views: Views, log: EventLog) -> None:
    name = fresh().id
    events = [ThreadCreated(user="ada", metadata={"a": 1}), *[ThreadAnnotated(metadata={"b": n}) for n in range(5)]]
    await append(log, thread(name), *events, ThreadAnnotated(metadata={"c": 3}))
    await current(views)
    [row], _ = await views.search(user="ada")
    assert row.metadata == {"a": 1, "b": 4, "c": 3}


async def test_pages_and_order(views: Views, log: EventLog) -> None:
    names = [await made(log) for _ in range(7)]
    await write(log, names[2], ThreadAnnotated(metadata={}))
    await current(views)

    async def ids(**options: Any) -> list[str]:
        return [row.thread_id for row in (await views.search(user="ada", **options))[0]]

    by_update = [n for n in names if n != names[2]] + [names[2]]
    assert await ids() == by_update[::-1]
    assert await ids(descending=False) == by_update
    for key in ("created_at", "thread_id"):
        assert await ids(sort_by=key, descending=False) == names
    assert await ids(sort_by="state_updated_at", descending=False) == names
    assert [await ids(limit=3, offset=n, descending=False) for n in (0, 3, 6, 9)] == [
        *(by_update[:3], by_update[3:6], by_update[6:], []),
    ]
    assert (await views.search(user="ada", limit=2, offset=100)) == ([], 7)
    assert sorted(await ids(ids=names[:2])) == sorted(names[:2])
    assert await ids(ids=[]) == []
    assert await ids(status="busy") == []
    assert len(await ids(status="idle", sort_by="status")) == 7
    for bad in ("title; DROP TABLE threads", "user", ""):
        with pytest.raises(Invalid, match="sort_by: one of"):
            await views.search(user="ada", sort_by=bad)


async def test_users_see_their_own(views: Views, log: EventLog) -> None:
    mine, theirs = await made(log, {"a": 1}), await made(log, {"a": 1}, user="bob")
    await current(views)
    assert [r.thread_id for r in (await views.search(user="ada", metadata={"a": 1}))[0]] == [mine]
    assert [r.thread_id for r in (await views.search(user="bob", ids=[mine, theirs]))[0]] == [theirs]


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def filled(log: EventLog, count: int = 50) -> None:
    await asyncio.gather(*(made(log, {"n": n, "text": "x" * 200}) for n in range(count)))


async def found(views: Views, seconds: float = DEADLINE) -> int:
    """How many threads a search finds; it may take the views a while to see that they are damaged."""

    async def all_there() -> int:
        await views.search(user="ada", metadata={"no": "such"}, limit=1000)
        current = views.seq >= await views.log.last()
        hits, total = await views.search(user="ada", limit=1000)
        return total if len(hits) == total and current else 0

    return await eventually(all_there, seconds)


@pytest.mark.parametrize("begun", range(1, 2 + database.READERS))
async def test_an_opening_that_is_given_up_leaves_no_thread_and_no_open_file(
    log: EventLog, path: Path, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread would keep the process alive for ever; the collector closes files later, and warns since Python 3.13."""
    connections: list[aiosqlite.Connection] = []
    left_open: list[int] = []
    connect = aiosqlite.connect

    class Noting(sqlite3.Connection):
        """Tells which files were opened and not closed."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            left_open.append(id(self))

        def close(self) -> None:
            super().close()
            left_open.remove(id(self))

    def cancelling(*arguments: Any, **options: Any) -> aiosqlite.Connection:
        connections.append(connect(*arguments, factory=Noting, **options))
        if len(connections) == begun:
            tasks.cancel_scope.cancel()
        return connections[-1]

    monkeypatch.setattr(aiosqlite, "connect", cancelling)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Views(path, log).run)
    assert len(connections) >= begun
    for connection in connections:
        await asyncio.to_thread(connection._thread.join, DEADLINE)
    left = [connection for connection in connections if connection._thread.is_alive()]
    for connection in left:
        connection.stop()  # so that at least this process can end
    assert not left
    assert not left_open


async def test_a_batch_that_is_given_up_leaves_no_rows(
    log: EventLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for the batch after it, which the same connection writes."""
    database, scope, write_rows = Database(path), anyio.CancelScope(), aiosqlite.Connection.executemany
    await database.open(log)

    def cancelling(*arguments: Any) -> Any:
        scope.cancel()
        return write_rows(*arguments)

    names = [await made(log), await made(log)]
    first, second = [record async for record in log.between(0, await log.last())]
    with monkeypatch.context() as patch, scope:
        patch.setattr(aiosqlite.Connection, "executemany", cancelling)
        await database.apply([first])
    assert scope.cancelled_caught
    await database.apply([second])
    assert await database.query("SELECT thread_id FROM threads", [], 5) == [(names[1],)]
    await database.close()


async def test_a_file_that_is_no_database(log: EventLog, path: Path) -> None:
    await filled(log)
    async with views_of(log, path) as views:
        assert await found(views) == 50
    for garbage in (b"not a database at all" * 100, b"", b"SQLite format 3\0" + b"\xff" * 200):
        path.write_bytes(garbage)
        async with views_of(log, path) as views:
            assert await found(views) == 50


def damage(path: Path) -> None:
    """Garbage in the middle: the pages with the rows, not the first ones."""
    data = bytearray(path.read_bytes())
    third = len(data) // 3
    data[third : 2 * third] = b"\xa5" * third
    path.write_bytes(data)


async def test_garbage_in_the_middle_that_readers_find(log: EventLog, path: Path) -> None:
    await filled(log)
    async with views_of(log, path) as views:
        assert await found(views) == 50
    damage(path)
    async with views_of(log, path) as views:
        assert await found(views, 5) == 50


async def test_garbage_in_the_middle_that_the_follower_finds(log: EventLog, path: Path) -> None:
    await filled(log)
    async with views_of(log, path) as views:
        assert await found(views) == 50
    damage(path)
    async with views_of(log, path) as views:
        await filled(log, 5)
        assert await found(views) == 55


async def test_another_version_is_built_again(log: EventLog, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(log, 5)
    async with views_of(log, path) as views:
        assert await found(views) == 5
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM threads")
        db.commit()
    async with views_of(log, path) as views:  # the same version: what is there is believed
        await current(views)
        assert (await views.search(user="ada"))[1] == 0
    monkeypatch.setattr(rows_module, "VERSION", rows_module.VERSION + 1)
    async with views_of(log, path) as views:
        assert await found(views) == 5


@pytest.fixture
def held(path: Path, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Rows are not built beside the file before this is set."""
    event, catch_up = asyncio.Event(), Views._catch_up

    async def wait(views: Views, draft: Database) -> None:
        if draft.path != path:
            await event.wait()
        await catch_up(views, draft)

    monkeypatch.setattr(Views, "_catch_up", wait)
    return event


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT version FROM position").fetchone()[0])


async def built(log: EventLog, path: Path, change: str) -> None:
    """Builds the rows of five threads, and changes them."""
    await filled(log, 5)
    async with views_of(log, path) as views:
        assert await found(views) == 5
    with closing(sqlite3.connect(path)) as db:
        db.execute(change)
        db.commit()


async def test_rows_of_another_version_are_read_until_the_new_ones_are_there(
    log: EventLog, path: Path, monkeypatch: pytest.MonkeyPatch, held: asyncio.Event
) -> None:
    await built(log, path, "DELETE FROM threads WHERE id = (SELECT max(id) FROM threads)")
    old = rows_module.VERSION
    monkeypatch.setattr(rows_module, "VERSION", old + 1)
    async with views_of(log, path) as views:
        assert await found(views) == 4
        await filled(log, 3)
        assert await found(views) == 7
        assert version(path) == old
        held.set()

        async def swapped() -> bool:
            return version(path) == old + 1 and await found(views) == 8

        await eventually(swapped)
        assert sorted(path.parent.glob("*.new*")) == []


async def test_rows_of_other_tables_are_not_read(
    log: EventLog, path: Path, monkeypatch: pytest.MonkeyPatch, held: asyncio.Event
) -> None:
    await built(log, path, "ALTER TABLE threads RENAME COLUMN title TO name")
    monkeypatch.setattr(rows_module, "VERSION", rows_module.VERSION + 1)
    async with views_of(log, path) as views:

        async def building() -> bool:
            return path.with_name("views.db.new").exists()

        await eventually(building)
        assert not views.readable
        held.set()
        assert await found(views) == 5


async def test_rebuilding_while_the_log_goes_on(log: EventLog, path: Path, held: asyncio.Event) -> None:
    """The old rows answer, and follow the log, until the new ones take their place."""
    async with views_of(log, path) as views:
        await filled(log, 5)
        assert await found(views) == 5
        old = path.stat().st_ino
        await views.rebuild()
        await eventually(lambda: exists(path.with_name("views.db.new")))
        await filled(log, 20)
        assert (await found(views), path.stat().st_ino) == (25, old)
        held.set()
        await filled(log, 1)

        async def swapped() -> bool:
            return path.stat().st_ino != old and await found(views) == 26

        await eventually(swapped)


async def exists(path: Path) -> bool:
    return path.exists()


async def test_rebuilding_while_nothing_happens(log: EventLog, path: Path) -> None:
    async with views_of(log, path) as views:
        await filled(log, 5)
        assert await found(views) == 5
        await views.rebuild()
        assert await found(views, 5) == 5


async def test_a_shorter_log_is_another_one(log: EventLog, path: Path, bus: Bus) -> None:
    await filled(log, 10)
    async with views_of(log, path) as views:
        assert await found(views) == 10
    await replace_log(bus)
    await filled(log, 3)
    async with views_of(log, path) as views:
        assert await found(views) == 3


async def replace_log(bus: Bus) -> None:
    await bus.api(f"STREAM.DELETE.{bus.names.stream('log')}")
    await bus.ensure_streams()


async def test_a_longer_log_is_another_one_too(log: EventLog, path: Path, bus: Bus) -> None:
    await filled(log, 3)
    async with views_of(log, path) as views:
        assert await found(views) == 3
    await replace_log(bus)
    await filled(log, 10)
    async with views_of(log, path) as views:
        await found(views)
        shown = {row.thread_id for row in (await views.search(user="ada", limit=100))[0]}
    assert shown == {r.aggregate.id async for r in log.between(0, await log.last())}


# ── a kill ──────────────────────────────────────────────────────────────────────────────────────────────────────────

FOLLOWER = """
import asyncio, sys
from pathlib import Path
from core.views import database, projections
from core.views import rows as rows_module
from core.bus.connection import connect
from core.bus.endpoint import Endpoint
from core.log.store import EventLog
from core.views.projections import Views

projections.BATCH_SECONDS, projections.BATCH = 0.001, 20

async def main():
    async with connect(Endpoint(sys.argv[1], prefix=sys.argv[2])) as bus:
        log = EventLog(bus)
        await log.start()
        views = Views(Path(sys.argv[3]), log)
        running = asyncio.ensure_future(views.run())
        while True:
            await views.reached(views.seq + 1)
            print(views.seq, file=sys.stderr, flush=True)

asyncio.run(main())
"""


async def busy(log: EventLog, count: int) -> None:
    """Threads with runs in every state, with repeated updates of the same rows, pruned and erased."""
    for n in range(count):
        name = await made(log, {"n": n})
        asked = RunRequested(input={"messages": [human("h", f"question {n}")], "title": f"t{n}"})
        steps: list[Event] = [asked, STARTED, said(f"m{n}", n, 1, text=f"answer {n}"), ENDS[n // 4 % 5][0]]
        for step in steps[: n % 5]:
            await write(log, name, (step, f"r{name}"))
        await write(
            log, name, ThreadAnnotated(metadata={"m": n}), StatePatched(values={"messages": [human("h", "other")]})
        )
        if n % 7 == 3:
            pruned = ThreadPruned(
                user="ada", metadata={"p": n}, created_at="2026", values={"messages": [human("h", "kept")], "a": 1}
            )
            await write(log, name, pruned, (RunRequested(), f"s{name}"))
        if n % 11 == 5:
            await write(log, name, ThreadErased(by="ada"))


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("kills", [1, 3])
async def test_a_kill_leaves_rows_and_position_together(
    log: EventLog, path: Path, tmp_path: Path, single: Nats, prefix: str, kills: int
) -> None:
    """Killed in the middle of its work; the rows are then those of a rebuild at every position."""
    for _ in range(kills):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FOLLOWER, single.url, prefix, str(path)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        writing = asyncio.ensure_future(busy(log, 60))
        with anyio.fail_after(DEADLINE):
            for _ in range(5):
                assert (await process.stderr.readline()).strip().isdigit()
        process.kill()
        await process.communicate()
        found = rows(path)
        [(*_, seq)] = found["position"]
        assert found == await rebuilt(log, tmp_path / "again.db", seq)
        await writing
    async with views_of(log, path) as views:
        await current(views)
    last = await log.last()
    assert rows(path) == await rebuilt(log, tmp_path / "again.db", last)


REBUILDER = """
import asyncio, sys
from pathlib import Path
from core.bus.connection import connect
from core.bus.endpoint import Endpoint
from core.log.store import EventLog
from core.views.projections import Views

async def main():
    async with connect(Endpoint(sys.argv[1], prefix=sys.argv[2])) as bus:
        log = EventLog(bus)
        await log.start()
        views = Views(Path(sys.argv[3]), log)
        running = asyncio.ensure_future(views.run())
        await views.current()
        while True:
            print(views.seq, file=sys.stderr, flush=True)
            before = views._database
            await views.rebuild()
            while views._database in (before, None):
                await asyncio.sleep(0)

asyncio.run(main())
"""


@pytest.mark.long(keep=3)
@pytest.mark.parametrize("built", [1, 3])
async def test_a_kill_while_rows_are_built_anew_leaves_the_old_or_the_new(
    log: EventLog, path: Path, tmp_path: Path, single: Nats, prefix: str, built: int
) -> None:
    await busy(log, 20)
    last = await log.last()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", REBUILDER, single.url, prefix, str(path)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    with anyio.fail_after(DEADLINE):
        for _ in range(built):
            assert (await process.stderr.readline()).strip().isdigit()
        await asyncio.sleep(0.01 * built)
    process.kill()
    await process.communicate()
    assert rows(path) == await rebuilt(log, tmp_path / "again.db", last)


async def test_questions_do_not_wait_for_a_slow_one(views: Views, log: EventLog) -> None:
    """Nor does a question go on that nobody waits for any more."""
    await made(log)
    await current(views)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    slow = [asyncio.ensure_future(views.query(endless)) for _ in range(database.READERS - 1)]
    with anyio.fail_after(DEADLINE):
        for _ in range(5):
            assert (await views.search(user="ada"))[1] == 1
    for question in slow:
        question.cancel()
    await asyncio.wait(slow)
    with anyio.fail_after(DEADLINE):
        for _ in range(database.READERS):
            assert (await views.search(user="ada"))[1] == 1


async def test_a_question_has_a_deadline(views: Views, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "ANSWER_SECONDS", 0.1)
    await made(log)
    await current(views)
    with pytest.raises(Unavailable, match="did not answer"):
        await views.query("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
    assert (await views.search(user="ada"))[1] == 1


async def test_a_purged_log_gives_the_same_rows(log: EventLog, path: Path, tmp_path: Path) -> None:
    """What was forgotten in the log is forgotten in rows that had it, and never in those that are built anew."""
    async with views_of(log, path) as views:
        await busy(log, 40)
        await current(views)
        names = [name for (name,) in await views.query("SELECT thread_id FROM threads")]
        for name in names[::3]:
            await write(log, name, ThreadErased(by="ada"))
            await log.erase(thread(name))
        await current(views)
    assert rows(path) == await rebuilt(log, tmp_path / "again.db", await log.last())


async def test_batches_of_any_size_give_the_same_rows(log: EventLog, tmp_path: Path) -> None:
    await busy(log, 60)
    last = await log.last()
    found = [await rebuilt(log, tmp_path / f"{size}.db", last, size) for size in (1, 2, 7, 1000)]
    assert found[1:] == found[:-1]


async def rebuilt(log: EventLog, path: Path, upto: int, size: int = 7) -> dict[str, list[Any]]:
    """The rows of the log up to a sequence, from nothing."""
    beside = Database(path)
    beside.discard()
    await beside.open(log)
    records = [record async for record in log.between(0, upto)]
    for start in range(0, len(records), size):
        await beside.apply(records[start : start + size])
    await beside.close()
    return rows(path)


# ── deleted text ────────────────────────────────────────────────────────────────────────────────────────────────────


def holds(path: Path, words: Sequence[str]) -> bool:
    """Whether any of the words is in the file or beside it. The index leaves out beginnings that words share."""
    data = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    return any(word[8:].encode() in data for word in words)


@pytest.mark.parametrize("erases", [True, False], ids=["SQLite erases words", "an older SQLite"])
async def test_deleted_text_is_not_in_the_file(
    log: EventLog, path: Path, monkeypatch: pytest.MonkeyPatch, erases: bool
) -> None:
    """Nor in the index of words, its older parts, or the write-ahead log; also after a crash before it was cleaned.
    An older SQLite leaves words in the index until all of it is merged, piece by piece.
    """
    if not erases:
        monkeypatch.setattr("core.views.database._ERASES_WORDS", False)
        monkeypatch.setattr("core.views.database.MERGE_PAGES", 1)
    database, words = Database(path), [secrets.token_hex(20) for _ in range(60)]
    await database.open(log)
    names = [await made(log, {"note": word}) for word in words[:30]]
    for name, word in zip(names, words[30:], strict=True):
        text = " ".join(["so", word, *(secrets.token_hex(8) for _ in range(300))])  # an index of many pages
        await write(log, name, StatePatched(values={"title": f"T {word}", "messages": [human("h", text)]}))
    for record in [record async for record in log.between(0, await log.last())]:
        await database.apply([record])
    assert all(holds(path, [word]) for word in words)
    await write(log, names[3], ThreadErased(by="ada"))
    await database.apply([record async for record in log.between(database.seq, await log.last())])
    assert database.unclean.is_set()
    await database.close()
    database = Database(path)
    await database.open(log)
    for _ in range(1000):
        if not database.unclean.is_set():
            break
        await database.clean()
    assert not holds(path, [words[3], words[33]])
    assert all(holds(path, [word]) for word in (words[2], words[32]))
    hits = await database.query("SELECT count(*) FROM texts WHERE texts MATCH ?", [words[40]], 5)
    assert hits == [(2,)]
    await database.close()
    database = Database(path)
    await database.open(log)
    assert not database.unclean.is_set()
    await database.close()


async def test_a_question_being_answered_holds_the_cleaning_up(log: EventLog, path: Path) -> None:
    database = Database(path)
    await database.open(log)
    name = await made(log)
    await database.apply([record async for record in log.between(0, await log.last())])
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM threads").fetchall() == [(1,)]
        await write(log, name, ThreadErased(by="ada"))
        await database.apply([record async for record in log.between(database.seq, await log.last())])
        for _ in range(20):
            await database.clean()
        assert database.unclean.is_set()
    await database.clean()
    assert not database.unclean.is_set()
    await database.close()


def test_the_file_of_a_process_that_does_not_run_any_more_is_removed(tmp_path: Path) -> None:
    with own_file(tmp_path) as (mine, _), own_file(tmp_path) as (other, _):
        for path in (mine, other):
            path.touch()
            os.utime(path, (0, 0))
        remove_abandoned(tmp_path)
        assert mine.exists()
        assert other.exists()
    with own_file(tmp_path) as (mine, _):
        for name in ("views-3.lock", "views-3.db", "views-4.lock", "views-4.db", "views-4.db-wal"):
            (tmp_path / name).touch()
        os.utime(tmp_path / "views-4.db", (0, 0))  # SQLite has written to the log beside it since then
        remove_abandoned(tmp_path)
        assert [path.name for path in sorted(tmp_path.glob("*.db"))] == ["views-3.db", "views-4.db", "views.db"]


# ── whose file ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_process_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    with own_file(home) as first, own_file(home) as second:
        assert [first, second] == [(home / "views.db", 1), (home / "views-2.db", 2)]
    with own_file(home) as again:
        assert again == first
        monkeypatch.setattr(projections, "MOST_PROCESSES", 1)
        with pytest.raises(Refused), own_file(home):
            pass
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="cannot be used"), own_file(tmp_path / "file"):
        pass


async def test_the_newest_threads_are_listed_without_a_server(log: EventLog, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no server has run here yet"):
        newest(tmp_path, None, 10)
    await append(log, thread("a"), ThreadCreated(user="me"), StatePatched(values={"title": "Named"}))
    asked = {"messages": [{"type": "human", "id": "h", "content": "What is new?"}]}
    [made] = await append(log, thread("b"), ThreadCreated(user="you"))
    await log.append(thread("b"), [RunRequested(input=asked), STARTED], expected=made.seq, actor="test", run="r")
    async with views_of(log, tmp_path / "views.db") as views:
        await current(views)
        listed = [(one.thread_id, one.user, one.status, one.title) for one in newest(tmp_path, None, 10)]
    assert listed == [("b", "you", "busy", "What is new?"), ("a", "me", "idle", "Named")]
    assert [one.thread_id for one in newest(tmp_path, "me", 10)] == ["a"]
    assert len(newest(tmp_path, None, 1)) == 1
    (tmp_path / "views.db").write_bytes(b"not a database")
    with pytest.raises(Unavailable, match="start the server"):
        newest(tmp_path, None, 10)
