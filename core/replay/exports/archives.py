"""Several exported files as one source of recorded events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.events import Aggregate, Record
from core.log.kinds import KIND
from core.replay.exports.archive import Archive

if TYPE_CHECKING:
    from core.replay.source import Source


class Archives:
    """Several files as one source. A thread that two of them hold has two names."""

    def __init__(self) -> None:
        self.complete = True
        """All that is read is in the files; else the rest is in a log (`beside`)."""
        self.beside: Source | None = None
        self._archives: dict[str, Archive] = {}

    def __bool__(self) -> bool:
        return bool(self._archives)

    @property
    def first(self) -> Archive:
        return next(iter(self._archives.values()))

    def opened(self, path: Path) -> Archive | None:
        return next((archive for archive in self._archives.values() if archive.path == path), None)

    def name(self, archive: Archive) -> str:
        """Returns the name under which the thread of a file is read."""
        kind, identity = archive.root
        name = identity
        while self._archives.get(name, archive) is not archive:
            name += "-2"
        self._archives[name] = archive
        return name if kind == KIND else f"{kind}/{name}"

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        if archive := self._archives.get(aggregate.id):
            if aggregate.kind == archive.root.kind:
                return await archive.read(archive.root)
            return await archive.read(Aggregate(aggregate.kind, archive.root.id))
        for archive in self._archives.values():
            if records := await archive.read(aggregate):
                return records
        return await self.beside.read(aggregate) if self.beside else ()

    async def threads(self) -> AsyncIterator[Aggregate]:
        for name, archive in self._archives.items():
            if archive.root.kind == KIND:
                yield Aggregate(KIND, name)
        if self.beside:
            async for aggregate in self.beside.threads():
                if aggregate.id not in self._archives:
                    yield aggregate

    async def events(self) -> AsyncIterator[Record]:
        for archive in self._archives.values():
            async for record in archive.events():
                yield record

    async def last(self) -> Aggregate | None:
        return await self.beside.last() if self.beside else await self.first.last()
