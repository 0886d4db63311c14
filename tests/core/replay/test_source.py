"""Names of threads: whole ids, prefixes, the last one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from core.errors import Invalid, NotFound
from core.events import Aggregate, Event, Record, RunCompleted, RunFailed, RunRequested, ThreadCreated, thread
from core.replay.named import LAST_FAILED, aggregate_of
from tests.support.records import record

pytestmark = pytest.mark.anyio


class Recorded:
    """A source of threads with one event each; the last id has the newest."""

    def __init__(self, *ids: str) -> None:
        self._ids = ids

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        return [record(1, ThreadCreated(user="me"), None, None)]

    async def threads(self) -> AsyncIterator[Aggregate]:
        for identity in self._ids:
            yield thread(identity)

    async def events(self) -> AsyncIterator[Record]:
        for one in await self.read(thread("")):
            yield one

    async def last(self) -> Aggregate | None:
        return thread(self._ids[-1]) if self._ids else None


@pytest.mark.parametrize(
    ("name", "aggregate"),
    [
        ("01ab", thread("01ab-cd")),
        ("01a", thread("01a")),
        ("@last", thread("02")),
        ("subagent/x", Aggregate("subagent", "x")),
        ("0" * 36, thread("0" * 36)),
    ],
    ids=["a prefix", "an id that is also a prefix", "the last", "a subagent", "a whole id is not looked up"],
)
async def test_names(name: str, aggregate: Aggregate) -> None:
    assert await aggregate_of(Recorded("01ab-cd", "01a", "02"), name) == aggregate


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("01", Invalid, "thread 01: 2 ids begin so: 01a, 01b"),
        ("zz", NotFound, "thread zz: nothing in the log"),
        ("@lst", Invalid, "thread"),
        ("a/../b", Invalid, "thread"),
    ],
)
async def test_names_that_name_no_thread(name: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        await aggregate_of(Recorded("01a", "01b"), name)


async def test_there_is_no_last_thread() -> None:
    with pytest.raises(NotFound, match="@last: there is no thread"):
        await aggregate_of(Recorded(), "@last")


async def test_the_last_thread_with_a_failed_run() -> None:
    failed = RunFailed(error="Model", text="no answer")

    def of(name: str, seq: int, *events: Event) -> list[Record]:
        stored = [record(seq + number, event, "r") for number, event in enumerate(events)]
        place = {one.seq: {"aggregate": name, "at": f"2026-01-01T00:00:{one.seq:02}Z"} for one in stored}
        return [Record(one.seq, msgspec.json.encode(msgspec.json.decode(one.raw) | place[one.seq])) for one in stored]

    class Logs(Recorded):
        async def events(self) -> AsyncIterator[Record]:
            run = RunRequested(input={"messages": []})
            for one in [*of("a", 1, run, failed), *of("b", 3, run, failed), *of("c", 5, run, RunCompleted())]:
                yield one

    assert await aggregate_of(Logs(), LAST_FAILED) == thread("b")
    with pytest.raises(NotFound, match="no run of a thread failed"):
        await aggregate_of(Recorded("01"), LAST_FAILED)
