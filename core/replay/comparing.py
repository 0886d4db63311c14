"""Comparison of threads, runs and moments, whose logs nobody holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from core.errors import NotFound
from core.replay import diff as diffs
from core.replay.cuts import Spend, cut
from core.replay.moments.past import Past
from core.replay.money import Prices
from core.replay.named import aggregate_of
from core.replay.queries import Compared, Side, moment_of
from core.replay.recorded import read_of
from core.replay.source import Source
from core.runs import prompts

if TYPE_CHECKING:
    from core.log.reader import Read

PAUSE_EVERY = 1000
"""Events after which other tasks of the process go on."""
LONGEST = 20_000
"""Characters of a text in a value that differs."""
LONGEST_IN_STEPS = 2000
"""Characters of a text in a step."""


async def compare(
    source: Source,
    left: Side,
    right: Side,
    prices: Prices | None = None,
    contents: Read | None = None,
    *,
    longest: int | None = None,
) -> Compared:
    """Compares two moments of one thread as states, everything else step by step. `contents` reads what models got
    besides the conversation (default: `source`). `longest`: characters of texts in steps, which are cut; what is
    different is found by hashes of the whole.

    Raises `NotFound` and `Invalid`.
    """
    read = read_of(source)
    lefts, rights = [Past.folded(read, await aggregate_of(source, side.thread)) for side in (left, right)]
    if _are_moments(lefts, left, rights, right):
        return await _compared(lefts, left, rights, right, lambda before, after: list(diffs.changes(before, after)))
    steps = [await _steps(*side, prices, longest) for side in ((lefts, left), (rights, right))]
    return await _aligned(steps, contents or read)


async def compare_pasts(
    lefts: Past, left: Side, rights: Past, right: Side, prices: Prices, contents: Read, spend: Spend
) -> Compared:
    """Compares in the same way. Of what is different, texts are cut; `spend` is told the bytes that the answer takes.

    Raises `NotFound` and `Invalid`.
    """
    if _are_moments(lefts, left, rights, right):
        return await _compared(lefts, left, rights, right, lambda before, after: list(_changes(before, after, spend)))
    steps = [await _steps(*side, prices, LONGEST_IN_STEPS, spend) for side in ((lefts, left), (rights, right))]
    return await _aligned(steps, contents)


def _are_moments(lefts: Past, left: Side, rights: Past, right: Side) -> bool:
    return lefts.aggregate == rights.aggregate and left.run is None and right.run is None


async def _compared(
    lefts: Past, left: Side, rights: Past, right: Side, changes: Callable[[Any, Any], list[diffs.Change]]
) -> Compared:
    before, after = [await _values(*side) for side in ((lefts, left), (rights, right))]
    return Compared(None, await anyio.to_thread.run_sync(changes, before, after))


async def _aligned(sides: Sequence[diffs.Steps], contents: Read) -> Compared:
    rows = await anyio.to_thread.run_sync(lambda: diffs.aligned(*(side.steps() for side in sides)))
    return Compared(rows, (), await prompts.differences(contents, *(side.start for side in sides)))


def _changes(before: Any, after: Any, spend: Spend) -> Iterator[diffs.Change]:
    for path, *values in diffs.changes(before, after):
        before, after = (value if value is msgspec.UNSET else cut(value, LONGEST) for value in values)
        spend(len(msgspec.json.encode([value for value in (path, before, after) if value is not msgspec.UNSET])))
        yield diffs.Change(path, before, after)


async def _values(past: Past, side: Side) -> Any:
    state = await past.at(None if side.at is None else await past.sequence_of(side.at))
    if not state.seq:
        raise _nothing(past)
    moment = moment_of(side.thread, state, runs=0)
    return await anyio.to_thread.run_sync(lambda: msgspec.to_builtins({**moment.values, "status": moment.status}))


async def _steps(
    past: Past, side: Side, prices: Prices | None, longest: int | None, spend: Spend | None = None
) -> diffs.Steps:
    run = None if side.run is None else await past.run_named(str(side.run))
    upto = None if side.at is None else await past.sequence_of(side.at)
    taken = diffs.Steps(past.aggregate.id, run.id if run else None, prices, longest=longest, spend=spend)
    count = 0
    async with aclosing(past.events(0, upto) if run is None else past.of_run(run, upto)) as records:
        async for record in records:
            taken.add(record)
            count += 1
            if count % PAUSE_EVERY == 0:
                await asyncio.sleep(0)
    if not count:
        raise _nothing(past)
    return taken


def _nothing(past: Past) -> NotFound:
    return NotFound(f"{past.aggregate.kind} {past.aggregate.id}: nothing in the log")
