"""Searches over all events, and overviews of threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from core.config.settings import Pricing
from core.errors import Invalid
from core.events import (
    Aggregate,
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
from core.replay.find import Query, Search, find
from core.replay.listing import Filter, listed, totals
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


@pytest.mark.parametrize(
    ("query", "hits"),
    [
        (Query(), list(range(1, 14))),
        (Query(types=("tool.*", "run.failed")), [8, 9, 12]),
        (Query.of("hats"), [2, 13]),
        (Query(tool="bash"), [8, 9]),
        (Query(errors=True), [6, 9, 12]),
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


async def test_a_search_forgets_runs_that_ended() -> None:
    search = Search(Query(model="big"))
    async for record in Log().events():
        search.matches(record)
    assert search._models == {}


def test_a_text_that_is_no_pattern() -> None:
    with pytest.raises(Invalid, match=r"text '\(': no regular expression"):
        Query.of("(")


async def test_threads_and_their_totals() -> None:
    first, second = await listed(Log())
    assert (first.thread, first.user, first.status, first.text) == ("t1", "ada", "success", "Hats")
    assert (first.runs, first.events, first.models, first.failures) == (1, 9, ["big"], 2)
    assert (second.thread, second.status, second.text) == ("t2", "error", "Knit.")
    runs, events, failures, used = totals([first, second])
    assert (runs, events, failures, used.input, used.output) == (2, 13, 3, 1000, 500)


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        (Filter(user="bob"), ["t2"]),
        (Filter(status="error"), ["t2"]),
        (Filter(since="2026-01-01T00:00:13"), ["t1"]),
        (Filter(text="hat"), ["t1"]),
        (Filter(model="small"), ["t2"]),
        (Filter(errors=True), ["t1", "t2"]),
        (Filter(user="ada", status="error"), []),
    ],
)
async def test_filters(conditions: Filter, names: list[str]) -> None:
    assert [summary.thread for summary in await listed(Log(), conditions)] == names
