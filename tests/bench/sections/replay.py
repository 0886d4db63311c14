"""Debugging one long thread: events folded a second, and how `state`, `why`, `diff` and `tree` grow with its length."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from core.events import Aggregate, Record
from core.log.reader import Read, ReadAll
from core.replay import causes, diff, tree
from core.replay.moments import moment
from tests.bench import giant
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most

_SIZES = (10_000, 100_000)
_QUICK = (1000, 10_000)
_GROWTH = 1.5
"""Limit of the ratio of both times to the ratio of both lengths: linear growth is 1."""


def replay(lab: Laboratory) -> Iterator[Row]:
    """CPU seconds of each question at both lengths; the value is their growth beside that of the length."""
    small, large = _QUICK if lab.quick else _SIZES
    lab.say(f"threads of {small} and {large} events")
    times = [_times(size) for size in (small, large)]
    yield Row(
        "events folded a CPU second", large / times[1]["state at the end"], note=f"{large} events, decoding included"
    )
    for name in times[0]:
        growth = times[1][name] / max(times[0][name], 1e-3) / (large / small)
        yield Row(
            name,
            growth,
            at_most(_GROWTH),
            "s",
            ours=times[1][name],
            bare=times[0][name],
            note=f"growth beside that of the length; bare: {small} events",
        )


def _times(size: int) -> dict[str, float]:
    def fresh() -> list[Record]:
        return list(giant.records(size))

    def other() -> list[Record]:
        return [record for place, record in enumerate(fresh()) if place % 997]

    return {
        "state at the end": _timed(lambda records: moment.at(records, None), fresh()),
        "why of the last event": _timed(_why, fresh()),
        "tree": _timed(_tree, fresh()),
        "diff with another thread": _timed(lambda records: _diff(records, other()), fresh()),
    }


def _why(records: Sequence[Record]) -> Any:
    return asyncio.run(causes.why(_reader(records), records[0].aggregate, str(len(records))))


def _tree(records: Sequence[Record]) -> Any:
    return asyncio.run(tree.tree(_stream(records), records[0].aggregate))


def _diff(left: Sequence[Record], right: Sequence[Record]) -> Any:
    return diff.aligned(diff.steps(left), diff.steps(right))


def _reader(records: Sequence[Record]) -> ReadAll:
    async def read(aggregate: Aggregate) -> Sequence[Record]:
        return records if aggregate == records[0].aggregate else ()

    return read


def _stream(records: Sequence[Record]) -> Read:
    async def read(aggregate: Aggregate, **_: Any) -> AsyncGenerator[Record]:
        for record in records if aggregate == records[0].aggregate else ():
            yield record

    return read


def _timed(question: Callable[[Sequence[Record]], Any], records: Sequence[Record]) -> float:
    gc.collect()  # what an earlier question left
    begun = time.process_time()
    question(records)
    return time.process_time() - begun
