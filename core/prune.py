"""Forgetting a thread's past: its checkpoints, runs and files of big events go; what it amounts to stays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from nats.js.errors import NotFoundError

from core.bus import ApiError
from core.errors import Unavailable
from core.events import Event, Record, ThreadExpirySet, ThreadPruned, thread
from core.log import INLINE_BYTES, EventLog
from core.rows import known_by
from core.state import ThreadState
from core.threads import Threads


async def prune(threads: Threads, thread_id: str, *, user: str | None = None, actor: str) -> bool:
    """Keep of a thread only what it amounts to. Whether that was done: a thread that is at work or waits for an answer
    is left alone, as is one that does not exist (or is not the user's). Repeating it is fine.
    """

    def decide(state: ThreadState) -> Sequence[Event]:
        if not prunable(state) or user not in (None, state.user) or not (state.runs or len(state.commits) > 1):
            return []
        first = next(iter(state.runs.values()), None)
        metadata = {**(known_by(first.request.assistant) if first else {}), **state.metadata}
        events: list[Event] = [
            ThreadPruned(user=state.user, metadata=metadata, created_at=state.created_at, values=dict(state.values))
        ]
        if expiry := state.expiry:
            strategy: Literal["delete", "keep_latest"] = "delete" if expiry.strategy == "delete" else "keep_latest"
            events.append(ThreadExpirySet(minutes=expiry.minutes, strategy=strategy))
        return events

    state, _ = await threads.decide(thread_id, decide, actor=actor)
    if not prunable(state) or user not in (None, state.user):
        return False
    await _purge(threads.log, thread_id)
    return True


def prunable(state: ThreadState) -> bool:
    return state.exists and state.status != "busy" and state.paused is None


async def _purge(log: EventLog, thread_id: str) -> None:
    """Purge what lies before the newest `thread.pruned`; not what has come after it, so repeating it is safe."""
    records = [record async for record in log.read(thread(thread_id))]
    kept = next((index for index in reversed(range(len(records))) if records[index].type == "thread.pruned"), 0)
    if not kept:
        return
    await _delete_bodies(log, records[:kept])
    request = {"filter": log.bus.names.log(thread(thread_id)), "seq": records[kept].seq}
    try:
        await log.bus.api(f"STREAM.PURGE.{log.bus.names.stream('log')}", request)
    except ApiError as error:
        raise Unavailable(str(error)) from error


async def _delete_bodies(log: EventLog, records: Sequence[Record]) -> None:
    """Those of big events lie in the object store, by hash."""
    big = [record for record in records if len(record.raw) > INLINE_BYTES]
    if not big:
        return
    store = await log.bus.nc.jetstream().object_store(log.bus.names.blobs)
    for record in big:
        try:
            await store.delete(f"thread.{record.head.aggregate}.{hashlib.sha256(record.raw).hexdigest()}")
        except NotFoundError:
            continue  # an earlier try has deleted it
