"""Erasure: events are overwritten on the disk.

Theory of operation
-------------------
JetStream's purge of a subject takes events out of the stream and leaves their bytes in its files, for good: a sequence
that was purged can no longer be erased. Only deletion message by message overwrites the bytes, at once. So an erasure
lists the sequences of the aggregate and deletes each.

*Cost.* The server loads, rewrites and syncs the block of each message. Measured with 8 MiB blocks: 20 ms without
compression, 50 ms with s2; 0.8 ms in a small stream. The server does nothing else meanwhile, so concurrency gains
nothing. A process therefore deletes one message at a time, and pauses as long as each took.

*Resumption.* What was erased is not listed again, and a body goes before its event. So an erasure may be interrupted
anywhere and repeated. The caller appends the fact that makes the events obsolete first (a tombstone): folds ignore the
events before it, wherever the erasure stands.

*Non-guarantees.* On a replicated stream the messages are gone from the blocks at once, and from the Raft log of each
server at its next snapshot; a clean restart of the servers forces it. Ids of events and of the aggregate stay in
wake-ups and offsets. Backups, mirrors, and what file systems and disks keep are out of reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from core.bus.connection import Bus
from core.bus.streams import erase, purge
from core.bus.subjects import PREVIEW_SECONDS
from core.events import Record
from core.log.blobs import Blobs


class Eraser:
    """Erases one message after the other. One per process."""

    def __init__(self, bus: Bus, blobs: Blobs) -> None:
        self._bus = bus
        self._blobs = blobs
        self._turn = asyncio.Lock()

    async def erase(self, records: AsyncIterator[Record], seconds: float) -> bool:
        """Erases records, their bodies, and the previews of their runs. Returns False if `seconds` passed before the
        last. Raises `Unavailable`.
        """
        clock = asyncio.get_running_loop().time
        until, run = clock() + seconds, None
        async for record in records:
            if clock() > until:
                return False
            if record.run and record.run != run and _has_previews(record):
                await purge(self._bus, "tok", self._bus.names.tok(record.run))
            run = record.run
            async with self._turn:
                began = clock()
                if record.head.blob is not None:
                    await self._blobs.erase(record.aggregate, [record.head.blob.sha256])
                await erase(self._bus, "log", record.seq)
                await asyncio.sleep(clock() - began)
        return True


def _has_previews(record: Record) -> bool:
    """Tells whether previews from the time of the event may still be in their stream, which is in memory only."""
    since = datetime.now(UTC) - timedelta(seconds=PREVIEW_SECONDS)
    return not record.at or datetime.fromisoformat(record.at) > since
