"""Exported files, read: the file is checked as a whole when it is opened, and its events are read from their places.

`Archive.open` reads the file once in bounded memory, checks every sum and chain (`core.replay.exports.format`), and
keeps the places of events only. The events of an aggregate are then read from their places.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import anyio.to_thread
import msgspec

from core.errors import Invalid, NotFound
from core.events import Aggregate, Opaque, Record
from core.log.kinds import KIND
from core.replay.exports import shared
from core.replay.exports.format import (
    LINE_BYTES,
    BlobLine,
    End,
    EventLine,
    ExchangeLine,
    Header,
    Line,
    checked_lines,
    decoded,
)
from core.runs.prompts import SETUP


class Archive:
    """An exported file: a `Source` of recorded events (`core.replay.source`)."""

    header: Header
    end: End

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self._places: dict[Aggregate, array[int]] = {}
        """Offsets of the events in the file."""
        self._blobs: dict[str, int] = {}
        self._has_exchanges = False

    @classmethod
    async def open(cls, path: Path) -> Archive:
        """Reads a file and checks all of it. Raises `NotFound`, and `Invalid` with the line that is wrong."""
        return await anyio.to_thread.run_sync(cls._open, path)

    @classmethod
    def _open(cls, path: Path) -> Archive:
        archive = cls(path, opened(path))
        try:
            archive._index()
        except BaseException:
            archive.close()
            raise
        return archive

    def _index(self) -> None:
        for offset, line in checked_lines(self.path.name, self._file):
            match line:
                case Header():
                    self.header = line
                case EventLine():
                    aggregate = Record(line.seq, bytes(line.event)).aggregate
                    self._places.setdefault(aggregate, array("Q")).append(offset)
                case BlobLine():
                    self._blobs[line.sha256] = offset
                case ExchangeLine():
                    self._has_exchanges = True
                case End():
                    self.end = line

    def close(self) -> None:
        self._file.close()

    @property
    def root(self) -> Aggregate:
        """The thread that was exported."""
        return Aggregate(self.header.kind, self.header.thread)

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        return await anyio.to_thread.run_sync(self._read, aggregate)

    async def threads(self) -> AsyncIterator[Aggregate]:
        for aggregate in self._places:
            if aggregate.kind == KIND:
                yield aggregate

    async def events(self) -> AsyncIterator[Record]:
        for aggregate in self._places:
            for record in await self.read(aggregate):
                yield record

    async def last(self) -> Aggregate | None:
        return self.root if self.root.kind == KIND else None

    def aggregates(self) -> Sequence[Aggregate]:
        return list(self._places)

    def lines(self) -> Iterator[Line]:
        """Yields the lines of the file again, checked again."""
        for _, line in checked_lines(self.path.name, self._file):
            yield line

    async def stored(self, aggregate: Aggregate) -> AsyncIterator[Record]:
        """Yields the events of an aggregate as stored (`core.replay.exports.exporting.Reader`)."""
        for offset in self._places.get(aggregate, ()):
            line = await anyio.to_thread.run_sync(self._at, offset)
            if isinstance(line, EventLine):
                yield stored(line)
        for record in await anyio.to_thread.run_sync(self._shared, aggregate):
            yield record

    async def body_of(self, record: Record) -> bytes:
        """Returns the body of an event that lies outside of the log. Raises `Invalid`."""
        assert record.head.blob
        if body := await anyio.to_thread.run_sync(self.body, record.head.blob.sha256):
            return body
        raise Invalid(f"{self.path.name}: event {record.seq}: its body is not in the file")

    def exchanges(self) -> list[ExchangeLine]:
        """Returns the exchanges with a model that the file holds besides its events."""
        return [line for line in self.lines() if isinstance(line, ExchangeLine)] if self._has_exchanges else []

    def chain(self, aggregate: Aggregate) -> str | None:
        """Returns the last hash of an aggregate; None for one that the file does not hold."""
        return next((part.chain for part in self.end.parts if aggregate == (part.kind, part.id)), None)

    def body(self, sha256: str) -> bytes | None:
        """Returns a body that lies outside of the log; None if the file does not hold it. Raises `Invalid`."""
        if (offset := self._blobs.get(sha256)) is None:
            body = shared.body_of(self.path, sha256) if self.header.pin is not None else None
            if body is not None and hashlib.sha256(body).hexdigest() != sha256:
                raise Invalid(f"{self.path.name}: the shared body {sha256} does not match its hash")
            return body
        line = self._at(offset)
        return bytes(line.body) if isinstance(line, BlobLine) else None

    def _read(self, aggregate: Aggregate) -> list[Record]:
        lines = (self._at(offset) for offset in self._places.get(aggregate, ()))
        whole = [self._whole(stored(line)) for line in lines if isinstance(line, EventLine)]
        return whole or self._shared(aggregate)

    def _shared(self, aggregate: Aggregate) -> list[Record]:
        """Returns what pins share of what a model got. Raises `Invalid` for a body of another name."""
        if aggregate.kind != SETUP or self.header.pin is None or aggregate in self._places:
            return []
        if (body := shared.body_of(self.path, aggregate.id)) is None:
            return []
        record = Record(0, body)
        if record.aggregate != aggregate:
            raise Invalid(f"{self.path.name}: the shared body {aggregate.id} is of {record.aggregate}")
        return [record]

    def _whole(self, record: Record) -> Record:
        """Returns a record with its body in place of the reference to it."""
        if record.head.blob is None:
            return record
        if body := self.body(record.head.blob.sha256):
            return Record(record.seq, body, labels=record.labels)
        missing = Opaque(record.type, "its body is not in the file: it was exported without --blobs")
        return Record(record.seq, record.raw, record.head, missing, record.labels)

    def _at(self, offset: int) -> Line:
        self._file.seek(offset)
        raw = self._file.readline(LINE_BYTES)
        try:
            return decoded(raw)
        except msgspec.DecodeError as error:
            raise Invalid(f"{self.path.name}: was changed while it was read: {error}") from error


def stored(line: EventLine) -> Record:
    """Returns the record of an event as it was stored: without its body, if that lies outside of the log."""
    return Record(line.seq, bytes(line.event), labels=frozenset(line.labels), chain=line.chain)


def opened(path: Path) -> BinaryIO:
    """Opens a file. Raises `NotFound`."""
    try:
        return path.open("rb")
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from error
