"""Forks of threads (`core.replay.fork`) with their files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio.to_thread

from adapters.restoring import restored
from core.errors import NotFound
from core.events import Aggregate, ToolRequested
from core.files.folder import Folder
from core.files.undo import later_changes, later_uploads
from core.files.workspace import KIND as SCANS
from core.ids import safe_id
from core.log.kinds import KIND
from core.replay.fork import Forked, fork
from core.replay.moments import moment
from core.replay.source import Source, records_of
from core.thread.threads import Threads

INSIDE = "changes that the run had made to files up to the event: they are recorded at its end only"


async def fork_thread(threads: Threads, source: Source, home: Path, aggregate: Aggregate, at: int, new: str) -> Forked:
    """Makes the thread `new` of another one up to the event `at`, first its files. Idempotent by its id.

    Raises as `core.replay.fork.fork`.
    """
    if aggregate.kind != KIND:
        raise NotFound(f"{aggregate}: only threads are forked")
    records, missing = await records_of(source, aggregate), list[str]()
    state = moment.at(records, at)
    if not (await threads.load(safe_id(new, "thread"))).seq:
        active = state.active
        begun = state.seq if active is None or active.started_seq is None else active.started_seq
        changes, incomplete = later_changes(await source.read(Aggregate(SCANS, aggregate.id)), begun)
        origin, copy = Folder(home, state.user, aggregate.id), Folder(home, state.user, new)
        uploads = later_uploads(records, state.seq)
        work = partial(restored, origin, copy, changes, uploads, incomplete=incomplete, folder=state.folder)
        missing = await anyio.to_thread.run_sync(work)
        if any(isinstance(record.event, ToolRequested) for record in records if begun < record.seq <= state.seq):
            missing.append(INSIDE)
    _, is_new = await fork(threads, records, state.seq, new)
    return Forked(new, is_new, missing)
