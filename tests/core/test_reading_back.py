"""The newest events first, on a real log: the same as the oldest first, reversed, whatever lies between them."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from core.events import Aggregate, Event, ThreadAnnotated, thread
from core.log import reader
from core.log.store import EventLog

pytestmark = pytest.mark.anyio
T, OTHER = thread("t"), thread("other")


async def add(log: EventLog, aggregate: Aggregate, count: int) -> None:
    events: list[Event] = [ThreadAnnotated(metadata={"n": n}) for n in range(count)]
    if events:
        await log.append(aggregate, events, expected=await log.tip(aggregate), actor="test")


async def back(log: EventLog, before: int = 0) -> list[int]:
    async with aclosing(log.back(T, before=before)) as records:
        return [record.seq async for record in records]


@pytest.mark.parametrize("gaps", [(0, 0), (1, 40), (60, 0)], ids=["alone", "few", "apart"])
async def test_it_is_the_log_reversed(
    any_log: EventLog, gaps: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE", 8)
    assert await back(any_log) == []
    await add(any_log, OTHER, 1)
    for mine, others in ((1, gaps[0]), (30, gaps[1]), (9, gaps[0]), (1, gaps[1])):
        await add(any_log, T, mine)
        await add(any_log, OTHER, others)
    forth = [record.seq async for record in any_log.read(T)]
    assert len(forth) == 41
    assert await back(any_log) == forth[::-1]
    for before in (forth[0], forth[0] + 1, forth[20], forth[-1], forth[-1] + 1, forth[-1] + 1000):
        assert await back(any_log, before) == [seq for seq in forth if seq < before][::-1], before
