"""The files of a thread as they were known at a moment: by the last scan before it, and what people did after that."""

from __future__ import annotations

from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING

import anyio.to_thread
import msgspec

from core.events import Aggregate, ArtifactReplaced, FileConverted, FileRemoved, FileUploaded, Record, type_of
from core.files.workspace import ANYTHING, KIND, Entry, Manifest, WorkspaceScanned, fold, with_people

if TYPE_CHECKING:
    from core.log.reader import Read

_SCANS = 32
"""Scans that are folded at once."""
_UPLOADED = type_of(FileUploaded.__name__)
MOST = 5000
"""Limit of the files of an answer."""


class KnownFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file; null where only its name is known. `link`: the target of a symbolic link."""

    path: str
    size: int | None
    sha256: str | None
    link: str | None = None


class KnownFiles(msgspec.Struct, frozen=True):
    """The files as known at the event `seq`, by path. `scanned`: the event after which a run's changes were looked at
    the last time before it; null: never. `truncated`: there were more files than are looked at or answered.
    """

    seq: int
    scanned: int | None
    files: list[KnownFile]
    truncated: bool = False


async def known_at(read: Read, aggregate: Aggregate, seq: int) -> KnownFiles:
    """Returns the files of a thread as known at an event. Raises `Unavailable`."""
    manifest, scanned, truncated = Manifest(), None, False
    scans = list[Record]()
    async with aclosing(read(Aggregate(KIND, aggregate.id))) as records:
        async for record in records:
            if not (record.event.upto <= seq if isinstance(record.event, WorkspaceScanned) else record.seq <= seq):
                continue
            scans.append(record)
            if isinstance(record.event, WorkspaceScanned):
                scanned, truncated = record.event.upto, record.event.truncated
            if len(scans) == _SCANS:
                manifest = await anyio.to_thread.run_sync(fold, scans, manifest)
                scans = []
    manifest = await anyio.to_thread.run_sync(fold, scans, manifest)
    people = list[Record]()
    async with aclosing(read(aggregate, after=scanned or 0, upto=seq)) as records:
        async for record in records:
            if isinstance(record.event, FileUploaded | FileConverted | FileRemoved | ArtifactReplaced):
                people.append(record)
    files = with_people(manifest.files, people)
    listed = [_known(path, files[path]) for path in islice(sorted(files), MOST)]
    return KnownFiles(seq, scanned, listed, truncated or len(files) > MOST)


async def later_scans(read: Read, thread_id: str, after: int) -> list[Record]:
    """Returns the scans of a thread's files that followed runs which ended after an event."""
    async with aclosing(read(Aggregate(KIND, thread_id))) as records:
        return [record async for record in records if getattr(record.event, "upto", 0) > after]


async def uploads_after(read: Read, aggregate: Aggregate, after: int) -> list[Record]:
    """Returns the events of files that people uploaded after an event."""
    async with aclosing(read(aggregate, after=after, bodies=False)) as records:
        return [record async for record in records if record.type == _UPLOADED]


def _known(path: str, entry: Entry) -> KnownFile:
    return KnownFile(path, None if entry == ANYTHING else entry.size, entry.sha256, entry.link)
