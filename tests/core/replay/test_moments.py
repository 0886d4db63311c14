"""Threads at moments on a real log: every moment is what the log folds to, and few events are read for one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from itertools import groupby

import msgspec
import pytest

from core.errors import NotFound
from core.events import Aggregate, Event, Record, RunRequested, RunStarted, ThreadAnnotated, ThreadCreated, thread
from core.log.store import EventLog
from core.replay import causes
from core.replay.moments import marks
from core.replay.moments.marks import STEP, Moments
from core.replay.moments.places import record_at
from core.replay.queries import moment_of
from core.thread.fold import fold
from core.thread.state import ThreadState
from tests.bench import giant

pytestmark = pytest.mark.anyio
T = thread("t")


class Counted:
    """The log, and how many events were read of it."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.events = 0

    async def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncGenerator[Record]:
        async for record in self.log.read(aggregate, after=after, upto=upto, bodies=bodies):
            self.events += 1
            yield record


async def append(log: EventLog, pairs: Sequence[tuple[Event, str | None]]) -> list[Record]:
    tip = await log.tip(T)
    for run, group in groupby(pairs, key=lambda pair: pair[1]):
        records = await log.append(T, [event for event, _ in group], expected=tip, actor="test", run=run)
        tip = records[-1].seq
    return [record async for record in log.read(T)]


def turns(events: int) -> list[tuple[Event, str | None]]:
    return [(record.event, record.run) for record in giant.records(events) if isinstance(record.event, Event)]


def one_run(events: int) -> list[tuple[Event, str | None]]:
    begin: list[tuple[Event, str | None]] = [
        (ThreadCreated(user="me"), None),
        (RunRequested(), "r"),
        (RunStarted(attempt=1, worker="w", lease=1), "r"),
    ]
    return [*begin, *((ThreadAnnotated(metadata={"n": n}), "r") for n in range(events))]


def shown(state: ThreadState) -> bytes:
    return msgspec.json.encode(moment_of("t", state))


@pytest.mark.parametrize("pairs", [turns(400), one_run(400)], ids=["turns", "one run"])
async def test_each_moment_is_what_the_log_folds_to(
    log: EventLog, pairs: list[tuple[Event, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forwards, backwards, and with marks that are thinned out."""
    monkeypatch.setattr(marks, "MARKS_BYTES", 64 << 10)
    records = await append(log, pairs)
    now, past = fold(records), Moments(log.read)
    places = [*range(0, len(records), 37), *range(len(records) - 1, 0, -11)]
    for place in places:
        state = await past.at("t", now, records[place].seq)
        assert shown(state) == shown(fold(records[: place + 1])), place


@pytest.mark.parametrize("pairs", [turns(700), one_run(700)], ids=["turns", "one run"])
async def test_a_step_reads_few_events_whichever_way_and_whoever_looks(
    log: EventLog, pairs: list[tuple[Event, str | None]]
) -> None:
    records = await append(log, pairs)
    counted = Counted(log)
    now, past = fold(records), Moments(counted.read)
    await past.at("t", now, records[-5].seq)
    for place in (600, 601, 590, 480, 300, 20):
        before = counted.events
        await past.at("t", now, records[place].seq)
        assert counted.events - before <= STEP, place


async def test_the_first_moment_of_a_long_thread_reads_only_its_run(log: EventLog) -> None:
    records = await append(log, turns(700))
    counted = Counted(log)
    await Moments(counted.read).at("t", fold(records), records[350].seq)
    assert 0 < counted.events <= 8


async def test_what_was_erased_is_not_kept(log: EventLog) -> None:
    records = await append(log, one_run(300))
    counted = Counted(log)
    now, past = fold(records), Moments(counted.read)
    await past.at("t", now, records[250].seq)
    past.forget()
    before = counted.events
    await past.at("t", now, records[250].seq)
    assert counted.events - before == 251


async def test_a_place_is_the_same_as_in_a_log_in_memory(log: EventLog) -> None:
    records = await append(log, turns(60))
    call = f"{giant.run_id(3)}-c"
    for place in ("1", "17", str(len(records)), f"seq:{records[20].seq}", call, records[9].id, records[9].id[:-1]):
        assert (await record_at(log.read, T, place)).id == causes.find(records, place, T).id, place
    for place in ("0", str(len(records) + 1), f"seq:{records[-1].seq + 1}", "seq:0", "nothing", "9" * 30):
        with pytest.raises(NotFound):
            await record_at(log.read, T, place)
