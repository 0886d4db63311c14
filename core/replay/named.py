"""Names of recorded threads and runs, as people type them: ids, their beginnings, numbers, `@last`, `@last-failed`."""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread

from core.errors import Invalid, NotFound
from core.events import Aggregate, thread
from core.ids import ordinal, safe_id
from core.log.kinds import SUBAGENT
from core.replay.listing import Filter, listed_in_views, threads_of_file
from core.replay.source import LogSource, Source

LAST = "@last"
"""Names the thread with the newest event."""
LAST_FAILED = "@last-failed"
"""Names the last changed one of the threads with a run that failed."""
WHOLE_ID = 36
"""Length of a UUID: an id of that length is no prefix of another one."""
MOST_NAMED = 5
"""Limit of the threads that an ambiguous prefix names."""


async def aggregate_of(source: Source, name: str) -> Aggregate:
    """Returns the log that a name stands for: a thread's id or the only one that begins so, `subagent/<id>`, `@last`,
    `@last-failed`.

    Raises `Invalid` for what is no name and for an ambiguous prefix, and `NotFound`.
    """
    kind, slash, identity = name.rpartition("/")
    if slash and kind == SUBAGENT:
        return Aggregate(SUBAGENT, safe_id(identity, "subagent"))
    if name == LAST:
        if newest := await source.last():
            return newest
        raise NotFound(f"{name}: there is no thread")
    if name == LAST_FAILED:
        return await _last_failed(source)
    if len(safe_id(name, "thread")) >= WHOLE_ID:
        return thread(name)
    hits = sorted([aggregate.id async for aggregate in source.threads() if aggregate.id.startswith(name)])
    if name in hits or len(hits) == 1:
        return thread(name if name in hits else hits[0])
    if not hits:
        raise NotFound(f"thread {name}: nothing in the log")
    more = f" and {len(hits) - MOST_NAMED} more" if len(hits) > MOST_NAMED else ""
    raise Invalid(f"thread {name}: {len(hits)} ids begin so: {', '.join(hits[:MOST_NAMED])}{more}")


def run_named(name: str, runs: Sequence[str], failed: str | None) -> str:
    """Returns the one of a thread's runs, oldest first, that a name stands for: its number (from 1), the beginning of
    its id, `@last`, or `@last-failed`: `failed`, the newest that failed or that a policy stopped.

    Raises `Invalid` for an ambiguous beginning, and `NotFound`.
    """
    if number := ordinal(name, len(runs)):
        return runs[number - 1]
    if name == LAST_FAILED:
        hits = [failed] if failed else []
    else:
        hits = list(runs[-1:]) if name == LAST else [run for run in runs if run.startswith(name)]
    if len(hits) > 1:
        raise Invalid(f"run {name}: {len(hits)} ids begin so: {', '.join(hits[:MOST_NAMED])}")
    if not hits:
        raise NotFound(f"there is no run {name}; the thread has {len(runs)}")
    return hits[0]


async def _last_failed(source: Source) -> Aggregate:
    failed, listing = Filter(errors=True), None
    if isinstance(source, LogSource) and source.home is not None:
        listing = await anyio.to_thread.run_sync(listed_in_views, source.home, failed, 1)
    listing = listing or await threads_of_file(source, failed, 1)
    if not listing.summaries:
        raise NotFound(f"{LAST_FAILED}: no run of a thread failed, and no policy stopped one")
    return thread(listing.summaries[0].thread)
