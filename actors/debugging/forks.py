"""Forks of threads (`core.replay.fork`) with their files."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from pathlib import Path

import anyio.to_thread

from adapters.restoring import restored
from core.errors import NotFound
from core.events import Aggregate, ToolRequested, type_of
from core.files.folder import Folder
from core.files.undo import later_changes, later_uploads
from core.ids import safe_id
from core.log.kinds import KIND
from core.log.reader import Read
from core.replay.fork import Forked, fork
from core.replay.moments.files import later_scans, uploads_after
from core.replay.recorded import read_of
from core.replay.source import Source
from core.thread.rewind import state_upto
from core.thread.threads import Threads

_CALL = type_of(ToolRequested.__name__)
INSIDE = "changes that the run had made to files up to the event: they are recorded at its end only"


async def fork_thread(threads: Threads, source: Source, home: Path, aggregate: Aggregate, at: int, new: str) -> Forked:
    """Makes the thread `new` of another one up to the event `at`, first its files. Idempotent by its id.

    Raises as `core.replay.fork.fork`.
    """
    if aggregate.kind != KIND:
        raise NotFound(f"{aggregate}: only threads are forked")
    read, missing = read_of(source), list[str]()
    state = await state_upto(read, aggregate.id, at)
    if not state.seq:
        raise NotFound(f"{aggregate}: no event up to {at}")
    if not (await threads.load(safe_id(new, "thread"))).seq:
        active = state.active
        begun = state.seq if active is None or active.started_seq is None else active.started_seq
        changes, incomplete = later_changes(await later_scans(read, aggregate.id, begun), begun)
        origin, copy = Folder(home, state.user, aggregate.id), Folder(home, state.user, new)
        uploads = later_uploads(await uploads_after(read, aggregate, state.seq), state.seq)
        work = partial(restored, origin, copy, changes, uploads, incomplete=incomplete, folder=state.folder)
        missing = await anyio.to_thread.run_sync(work)
        if await _has_calls(read, aggregate, begun, state.seq):
            missing.append(INSIDE)
    _, is_new = await fork(threads, aggregate.id, state, new)
    return Forked(new, is_new, missing)


async def _has_calls(read: Read, aggregate: Aggregate, after: int, upto: int) -> bool:
    async with aclosing(read(aggregate, after=after, upto=upto, bodies=False)) as records:
        return await anext((record async for record in records if record.type == _CALL), None) is not None
