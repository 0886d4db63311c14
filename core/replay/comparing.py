"""Comparison of threads in bounded memory: of `core.replay.queries.compare`, what is for logs that nobody holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from core.errors import NotFound
from core.replay import diff as diffs
from core.replay.cuts import Spend, cut
from core.replay.moments.past import Past
from core.replay.money import Prices
from core.replay.queries import Compared, Side, moment_of
from core.runs import prompts

if TYPE_CHECKING:
    from core.log.reader import Read

PAUSE_EVERY = 1000
"""Events after which other tasks of the process go on."""
LONGEST = 20_000
"""Characters of a text in a value that differs."""


async def compare_pasts(
    lefts: Past, left: Side, rights: Past, right: Side, prices: Prices, contents: Read, spend: Spend
) -> Compared:
    """Compares as `queries.compare` does. Of a run its own part of the log is read, and what it said is cut; what is
    different is found by hashes of the whole. `spend` is told the bytes that the answer takes.

    Raises `NotFound` and `Invalid`.
    """
    if lefts.thread == rights.thread and left.run is None and right.run is None:
        values = [await _values(*side) for side in ((lefts, left), (rights, right))]
        changes = await anyio.to_thread.run_sync(lambda: list(_changes(values[0], values[1], spend)))
        return Compared(((), ()), None, changes)
    taken = [await _steps(*side, prices, spend) for side in ((lefts, left), (rights, right))]
    rows = await anyio.to_thread.run_sync(lambda: diffs.aligned(*(side.steps() for side in taken)))
    setups = await prompts.differences(contents, *(side.start for side in taken))
    return Compared(((), ()), rows, (), setups)


def _changes(before: Any, after: Any, spend: Spend) -> Iterator[diffs.Change]:
    for path, *values in diffs.changes(before, after):
        before, after = (value if value is msgspec.UNSET else cut(value, LONGEST) for value in values)
        spend(len(msgspec.json.encode([value for value in (path, before, after) if value is not msgspec.UNSET])))
        yield diffs.Change(path, before, after)


async def _values(past: Past, side: Side) -> Any:
    state = past.now if side.at is None else await past.at(await past.sequence_of(side.at))
    moment = moment_of(side.thread, state, runs=0)
    return await anyio.to_thread.run_sync(lambda: msgspec.to_builtins({**moment.values, "status": moment.status}))


async def _steps(past: Past, side: Side, prices: Prices, spend: Spend) -> diffs.Steps:
    run = None if side.run is None else await past.run_named(str(side.run))
    upto = None if side.at is None else await past.sequence_of(side.at)
    taken, count = diffs.Steps(past.thread.id, run.id if run else None, prices, spend), 0
    async with aclosing(past.events(0, upto) if run is None else past.of_run(run, upto)) as records:
        async for record in records:
            taken.add(record)
            count += 1
            if count % PAUSE_EVERY == 0:
                await asyncio.sleep(0)
    if not count:
        raise NotFound(f"{past.thread.kind} {past.thread.id}: nothing in the log")
    return taken
