"""Searches over all events, and overviews of threads."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from core.config.settings import Pricing
from core.errors import Invalid, NotFound
from core.events import (
    Aggregate,
    Decision,
    Event,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunStarted,
    ThreadCreated,
    ThreadTitled,
    ToolCompleted,
    ToolRequested,
    encode,
    thread,
    written,
)
from core.policy import ENDED, REFUSED
from core.replay.find import Query, Search, find, is_failure
from core.replay.listing import Filter, listed_in_views, threads_of_file
from core.replay.named import LAST_FAILED
from core.replay.queries import run_of
from core.thread.state import STOPPED
from core.thread.tokens import Tokens
from core.views import tables
from core.views.rows import VERSION, Batch
from tests.support.records import ai, human

pytestmark = pytest.mark.anyio

USED = {"usage_metadata": {"input_tokens": 1000, "output_tokens": 500}}
OUTCOME = {"type": "tool", "id": "o", "tool_call_id": "c", "name": "bash", "content": "Exit Code: 3"}
EVENTS: Sequence[tuple[str, str | None, Event]] = (
    ("t1", None, ThreadCreated(user="ada")),
    ("t1", "r1", RunRequested(input={"messages": [human("h", "Count the hats.")]})),
    ("t2", None, ThreadCreated(user="bob")),
    ("t1", "r1", RunStarted(attempt=1, worker="w", lease=1, model="big")),
    ("t2", "r2", RunRequested(input={"messages": [human("h", "Knit.")]})),
    ("t1", "r1", ModelFailed(error="E", text="busy", attempt=1, max_attempts=3)),
    ("t1", "r1", ModelCompleted(message=ai("a") | USED, duration_ms=4000)),
    ("t1", "r1", ToolRequested(call_id="c", name="bash", effect="once", args={"command": "wc"})),
    ("t1", "r1", ToolCompleted(call_id="c", message=OUTCOME, exit_code=3)),
    ("t1", "r1", RunCompleted()),
    ("t2", "r2", RunStarted(attempt=1, worker="w", lease=2, model="small")),
    ("t2", "r2", RunFailed(error="E", text="no wool")),
    ("t1", None, ThreadTitled(title="Hats")),
    ("t3", None, ThreadCreated(user="cy")),
    ("t3", "r3", RunRequested(input={"messages": [human("h", "Sing.")]})),
    ("t3", "r3", RunStarted(attempt=1, worker="w", lease=3, model="loud")),
    ("t3", "r3", ModelCompleted(message=ai("b"), decisions=[Decision("loop_detection", "warned", "again")])),
    ("t3", "r3", ModelCompleted(message=ai("c"), decisions=[Decision("loop_detection", STOPPED, "in circles")])),
    ("t3", "r3", RunCompleted()),
)


class Log:
    """A source of `EVENTS`, a second apart."""

    async def events(self) -> AsyncIterator[Record]:
        for seq, (name, run, event) in enumerate(EVENTS, 1):
            at = f"2026-01-01T00:00:{seq:02}.000000+00:00"
            head = written(event, id=f"e{seq}", kind="thread", aggregate_id=name, actor="test", at=at, run=run)
            yield Record(seq, encode(event, head))

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        return [record async for record in self.events() if record.aggregate == aggregate]

    async def threads(self) -> AsyncIterator[Aggregate]:
        for name in ("t1", "t2"):
            yield thread(name)

    async def last(self) -> Aggregate | None:
        return thread("t1")


@pytest.mark.parametrize(("name", "run"), [("t2", "r2"), ("t3", "r3"), ("t1", None)])
async def test_the_last_run_that_failed_or_that_a_policy_stopped(name: str, run: str | None) -> None:
    records = await Log().read(thread(name))
    if run is None:
        with pytest.raises(NotFound):
            run_of(records, LAST_FAILED)
    else:
        assert run_of(records, LAST_FAILED) == run


@pytest.mark.parametrize(
    ("query", "hits"),
    [
        (Query(), list(range(1, 20))),
        (Query(types=("tool.*", "run.failed")), [8, 9, 12]),
        (Query.of("hats"), [2, 13]),
        (Query(tool="bash"), [8, 9]),
        (Query(errors=True), [6, 9, 12, 18]),
        (Query(model="small"), [11, 12]),
        (Query(model="big", errors=True), [6, 9]),
        (Query(user="bob"), [3, 5, 11, 12]),
        (Query(seconds=3.9), [7]),
        (Query(cost=0.002), [7]),
        (Query(cost=0.003), []),
        (Query(since="2026-01-01T00:00:11", until="2026-01-01T00:00:12.5"), [11, 12]),
        (Query(run="r2", types=("run.*",)), [5, 11, 12]),
    ],
)
async def test_conditions(query: Query, hits: list[int]) -> None:
    prices = {"big": Pricing(input_per_million=1, output_per_million=2.5)}
    assert [record.seq async for record in find(Log(), query, prices)] == hits


@pytest.mark.parametrize("action", [STOPPED, ENDED, REFUSED])
def test_an_answer_by_which_a_policy_stopped_a_run_is_found(action: str) -> None:
    decisions = [Decision("x", "noted"), Decision("y", action, "why")]
    assert is_failure(ModelCompleted(message=ai("a"), decisions=decisions))
    assert not is_failure(ModelCompleted(message=ai("a"), decisions=decisions[:1]))


async def test_a_search_forgets_runs_that_ended() -> None:
    search = Search(Query(model="big"))
    async for record in Log().events():
        search.matches(record)
    assert search._meter._models == {}


def test_a_text_that_is_no_pattern() -> None:
    with pytest.raises(Invalid, match=r"text '\(': no regular expression"):
        Query.of("(")


async def test_threads_and_their_totals() -> None:
    listing = await threads_of_file(Log())
    third, first, second = listing.summaries
    assert (third.thread, third.status, third.failures, third.stopped, first.stopped) == ("t3", "success", 0, 1, 0)
    assert (first.thread, first.user, first.status, first.text) == ("t1", "ada", "success", "Hats")
    assert (first.runs, first.models, first.failures) == (1, ["big"], 0)
    assert (second.thread, second.status, second.text, second.failures) == ("t2", "error", "Knit.", 1)
    assert listing[1:] == (3, 3, 1, Tokens(1000, 500), 1)
    assert len((await threads_of_file(Log(), limit=1)).summaries) == 1


async def test_read_models_list_the_same_threads(tmp_path: Path) -> None:
    """For every condition that the next test tries, and with the same sums."""
    assert listed_in_views(tmp_path) is None
    rows = Batch()
    async for record in Log().events():
        rows.add(record)
    with closing(sqlite3.connect(tmp_path / "views.db")) as views:
        views.executescript(tables.SCHEMA)
        views.execute("INSERT INTO position VALUES (?, 'log', 99)", (VERSION,))
        for sql, values in rows.statements():
            views.executemany(sql, values)
        views.commit()
    for conditions in (Filter(), *(condition for condition, _ in CONDITIONS)):
        assert listed_in_views(tmp_path, conditions) == await threads_of_file(Log(), conditions), conditions
    page = listed_in_views(tmp_path, limit=1)
    assert page
    assert (len(page.summaries), page.threads) == (1, 3)


CONDITIONS = [
    (Filter(user="bob"), ["t2"]),
    (Filter(status="error"), ["t2"]),
    (Filter(since="2026-01-01T00:00:13"), ["t3", "t1"]),
    (Filter(text="hat"), ["t1"]),
    (Filter(model="small"), ["t2"]),
    (Filter(errors=True), ["t3", "t2"]),
    (Filter(user="ada", status="error"), []),
]


@pytest.mark.parametrize(("conditions", "names"), CONDITIONS)
async def test_filters(conditions: Filter, names: list[str]) -> None:
    assert [summary.thread for summary in (await threads_of_file(Log(), conditions)).summaries] == names
