"""A search gives the same answer whichever way its plan takes: by a status, by a metadata value, or in order."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from core.events import Event, Json, RunPaused, RunRequested, RunStarted, ThreadCreated, thread
from core.log.store import EventLog
from core.views import search
from core.views.projections import ThreadRow, Views
from core.views.search import SORTABLE, Filters
from tests.core.test_projections import current, views_of
from tests.support.nats import append

THREADS = 30
METADATA: list[Json] = [{}, {"third": 0}, {"third": 0, "half": 1}, {"third": 0, "late": True}, {"none": 1, "half": 1}]


@pytest.fixture
async def views(log: EventLog, tmp_path: Any) -> AsyncIterator[Views]:
    """Half of the threads are paused, and in an order that is not the one they were made in."""
    async with views_of(log, tmp_path / "views.db") as views:
        for number in range(THREADS):
            metadata = {"third": number % 3, "half": number % 2, "late": number >= 20, "number": number}
            metadata |= {"pinned": True} if number % 5 == 0 else {"pinned": 1} if number % 5 == 1 else {}
            name = f"{number * 7 % THREADS:02}"
            paused = [RunRequested(), RunStarted(attempt=1, worker="w", lease=1), RunPaused(next=["x"])]
            events: list[Event] = [ThreadCreated(user="ada", metadata=metadata), *(paused if number % 4 < 2 else [])]
            await append(log, thread(name), *events)
        await append(log, thread("bob"), ThreadCreated(user="bob", metadata={"third": 0, "half": 1}))
        await current(views)
        yield views


@pytest.mark.parametrize("few", [0, 4, 5000])
async def test_every_plan_gives_the_same_answer(views: Views, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    every, total = await views.search(user="ada", limit=100)
    assert (len(every), total) == (THREADS, THREADS)
    monkeypatch.setattr(search, "FEW", few)
    for metadata, status, column in itertools.product(METADATA, (None, "idle", "busy", "interrupted"), SORTABLE):
        hits = [row for row in every if _has(row, metadata) and status in (None, row.status)]
        assert await views.count(Filters(user="ada", metadata=metadata, status=status)) == len(hits)
        for descending in (True, False):
            options: Any = {"metadata": metadata, "status": status, "sort_by": column, "descending": descending}
            ordered = sorted(hits, key=lambda row: _key(row, column), reverse=descending)
            for offset in (0, 2, 50):
                page, total = await views.search(user="ada", **options, limit=3, offset=offset)
                assert page == ordered[offset : offset + 3], (options, offset)
                _check(total, len(hits), offset, len(page), exact=len(metadata) < 2 or few > THREADS)


def _key(row: ThreadRow, column: str) -> Any:
    if column == "pinned":
        return row.metadata.get("pinned") is True, row.updated_at, row.thread_id
    return getattr(row, column), row.thread_id


def _has(row: ThreadRow, metadata: Json) -> bool:
    return metadata.items() <= row.metadata.items()


def _check(total: int, hits: int, offset: int, length: int, *, exact: bool) -> None:
    """Of several values the total may be too low, but tells whether there is another page."""
    if exact:
        assert total == hits
    else:
        assert total <= hits
        assert (total > offset + length) == (hits > offset + length) or not length
