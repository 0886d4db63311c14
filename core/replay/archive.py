"""Files of recorded events: one line each, every line with a sum over all bytes before it.

Theory of operation
-------------------
A file has a first line (`Header`), then the events of the thread and of what it called, each as stored, with the bodies
that lie outside of the log and the files of the thread if they were wanted, and a last line (`End`). Every line is a
JSON object that ends with a member `sum`: the SHA-256 of the sum of the line before and of the line's own bytes. So a
changed, missing, doubled or moved byte is noticed at its line, and a cut file by its missing last line. An event has
also the hash of its aggregate's chain (`core.log.chain`), by which the file and the log can be compared.

A sum is not a signature: it shows accidents, and changes against a copy whose last sum is known.

Reading is in two steps. `Archive.open` reads the file once in bounded memory, checks every sum and chain, and keeps the
places of events only. The events of an aggregate are then read from their places.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import anyio.to_thread
import msgspec

from core.errors import Invalid, NotFound
from core.events import Aggregate, Json, Opaque, Record
from core.ids import safe_id
from core.log.chain import START, link
from core.replay import sealed
from core.replay.prompts import OF_THREAD, SETUP
from core.thread.kinds import KIND, SUBAGENT

if TYPE_CHECKING:
    from core.replay.source import Source

FORMAT = "sika-log/1"
WORKSPACE = "workspace"
"""Kind of the aggregate of a thread's scans (`core.thread.workspace`)."""
KINDS = (KIND, SUBAGENT, WORKSPACE, SETUP, OF_THREAD)
"""Kinds of the aggregates that a file may hold."""
LINE_BYTES = 64 << 20
"""Limit of a line: the longest bodies are those of tools that return images."""
_TYPE = re.compile(r"[a-z0-9_.]{1,80}")
_SUM = b',"sum":"'
_TAIL = len(_SUM) + 64 + len(b'"}\n')
"""Bytes of a line from its sum on."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="header", omit_defaults=True):
    """The first line. `sika` is the version that wrote it, `log` identifies the log (the creation of its stream)."""

    format: str
    sika: str
    thread: str
    """The thread, or the subagent, that was exported."""
    kind: str = KIND
    log: str = ""
    at: str = ""
    """The time of the export, ISO 8601."""
    redacted: bool = False
    """Secrets are replaced by placeholders, and answers have no hash of the conversation that was sent."""
    pin: Json | None = None
    """The terms of a pinned run (`core.replay.pins`)."""


class EventLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="event", omit_defaults=True):
    """An event with its sequence in the log, its hash in the chain of its aggregate, and its labels."""

    seq: int
    chain: str
    labels: list[str] = []
    event: msgspec.Raw


class BlobLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="blob"):
    """A body that lies outside of the log. Stands before the event that names it by its hash."""

    sha256: str
    body: msgspec.Raw


class FileLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="file", omit_defaults=True):
    """A piece of a file of the thread: `path` is below `/mnt/user-data`, `offset` that of the piece, in bytes."""

    path: str
    offset: int
    data: bytes
    left_out: str = ""
    """The reason why there is no `data`."""


class ExchangeLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="exchange"):
    """A conversation that was sent to a model, and the answer (`core.replay.exchanges`)."""

    conversation: list[Json]
    answer: Json


class Part(msgspec.Struct, frozen=True):
    """An aggregate of a file: the number of its events, and the hash of the last one."""

    kind: str
    id: str
    events: int
    chain: str


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="end", omit_defaults=True):
    """The last line: what the file must hold."""

    parts: list[Part]
    redactions: dict[str, int] = {}
    """Numbers of distinct values that were replaced, by their kind."""


Line = Header | EventLine | BlobLine | FileLine | ExchangeLine | End
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


class Writer:
    """Encodes lines, each with the sum over those before, and counts the events."""

    def __init__(self) -> None:
        self._sum = START
        self._parts: dict[Aggregate, tuple[int, str]] = {}

    def line(self, line: Line) -> bytes:
        body = _encoder.encode(line)[:-1]
        self._sum = _sum_of(self._sum, body)
        return body + _SUM + self._sum.encode() + b'"}\n'

    def event(self, record: Record) -> bytes:
        """Returns the line of an event. The hash of an aggregate's first event is the log's, if it has one: what was
        before may have been pruned.
        """
        count, before = self._parts.get(record.aggregate, (0, START))
        own = record.chain if record.chain and not count else link(before, record.raw)
        self._parts[record.aggregate] = count + 1, own
        labels = sorted(record.labels)
        return self.line(EventLine(seq=record.seq, chain=own, labels=labels, event=msgspec.Raw(record.raw)))

    def blob(self, body: bytes) -> bytes:
        return self.line(BlobLine(sha256=hashlib.sha256(body).hexdigest(), body=msgspec.Raw(body)))

    def end(self, redactions: dict[str, int] | None = None) -> bytes:
        parts = [Part(*aggregate, count, chain) for aggregate, (count, chain) in self._parts.items()]
        return self.line(End(parts=parts, redactions=redactions or {}))


def _sum_of(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()


class _Checker:
    """Checks lines in their order. Raises `Invalid`, naming the line and what is wrong with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = 0
        self._sum = START
        self._chains: dict[Aggregate, tuple[int, str]] = {}
        self._ended = False

    def line(self, raw: bytes) -> Line:
        """Returns a line of the file."""
        self._number += 1
        body = raw[:-_TAIL]
        if self._ended:
            raise self._invalid("stands after the last line")
        self._sum = _sum_of(self._sum, body)
        if raw[-_TAIL:] != _SUM + self._sum.encode() + b'"}\n':
            raise self._invalid("does not fit its sum: it was changed, or lines before it are missing")
        try:
            line = _decoder.decode(body + b"}")
        except msgspec.DecodeError as error:
            raise self._invalid(str(error)) from error
        if isinstance(line, Header) != (self._number == 1):
            raise self._invalid("only the first line says what the file is")
        match line:
            case Header(format=other) if other != FORMAT:
                raise self._invalid(f"the format {other!r} is not {FORMAT!r}: another version of Sika wrote it")
            case EventLine():
                self._event(line)
            case BlobLine(sha256=sha256, body=blob) if hashlib.sha256(bytes(blob)).hexdigest() != sha256:
                raise self._invalid("the body does not match its hash")
            case End():
                self._end(line)
        return line

    def done(self) -> None:
        """Raises `Invalid` if the last line is missing."""
        if not self._ended:
            raise Invalid(f"{self._name}: cut off after line {self._number}: its last line is missing")

    def _event(self, line: EventLine) -> None:
        try:
            record = Record(line.seq, bytes(line.event))
            for name, value in (("id", record.id), ("aggregate", record.aggregate.id), ("run", record.run or "-")):
                safe_id(value, name)
            if not _TYPE.fullmatch(record.type):
                raise Invalid(f"type: {record.type[:40]!r}")
        except Invalid as error:
            raise self._invalid(str(error)) from error
        aggregate = record.aggregate
        if aggregate.kind not in KINDS:
            raise self._invalid(f"event {line.seq}: a file holds no {aggregate.kind}")
        count, before = self._chains.get(aggregate, (0, ""))
        if count and line.chain != link(before, record.raw):
            raise self._invalid(f"event {line.seq}: does not fit the chain of {aggregate}")
        self._chains[aggregate] = count + 1, line.chain

    def _end(self, end: End) -> None:
        self._ended = True
        counted = {Aggregate(part.kind, part.id): (part.events, part.chain) for part in end.parts}
        if counted != self._chains:
            raise self._invalid("does not name the events that the file holds")

    def _invalid(self, text: str) -> Invalid:
        return Invalid(f"{self._name}, line {self._number}: {text}")


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
    async def open(cls, path: Path, passphrase: str | None = None) -> Archive:
        """Reads a file and checks all of it. Raises `NotFound`, and `Invalid` with the line that is wrong."""
        return await anyio.to_thread.run_sync(cls._open, path, passphrase)

    @classmethod
    def _open(cls, path: Path, passphrase: str | None) -> Archive:
        archive = cls(path, opened(path, passphrase))
        try:
            archive._index()
        except BaseException:
            archive.close()
            raise
        return archive

    def _index(self) -> None:
        for offset, line in checked(self.path.name, self._file):
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
        for _, line in checked(self.path.name, self._file):
            yield line

    async def stored(self, aggregate: Aggregate) -> AsyncIterator[Record]:
        """Yields the events of an aggregate as stored (`core.replay.exporting.Reader`)."""
        for offset in self._places.get(aggregate, ()):
            line = await anyio.to_thread.run_sync(self._at, offset)
            if isinstance(line, EventLine):
                yield stored(line)

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
            return None
        line = self._at(offset)
        return bytes(line.body) if isinstance(line, BlobLine) else None

    def _read(self, aggregate: Aggregate) -> list[Record]:
        lines = (self._at(offset) for offset in self._places.get(aggregate, ()))
        return [self._whole(stored(line)) for line in lines if isinstance(line, EventLine)]

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
            return _decoder.decode(raw[:-_TAIL] + b"}")
        except msgspec.DecodeError as error:
            raise Invalid(f"{self.path.name}: was changed while it was read: {error}") from error


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


def stored(line: EventLine) -> Record:
    """Returns the record of an event as it was stored: without its body, if that lies outside of the log."""
    return Record(line.seq, bytes(line.event), labels=frozenset(line.labels), chain=line.chain)


def opened(path: Path, passphrase: str | None = None) -> BinaryIO:
    """Opens a file. Raises `NotFound`, and `Invalid` for a missing or a wrong passphrase."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from error
    try:
        if not sealed.is_sealed(file):
            return file
        if passphrase is None:
            raise Invalid(f"{path.name}: is encrypted, and needs its passphrase (--passphrase, or SIKA_PASSPHRASE)")
        return sealed.reader(path.name, file, passphrase)
    except BaseException:
        file.close()
        raise


def checked(name: str, file: BinaryIO) -> Iterator[tuple[int, Line]]:
    """Yields the lines of a file with their offsets, each checked. Raises `Invalid` with the line that is wrong."""
    file.seek(0)
    checker, offset = _Checker(name), 0
    for raw in iter(partial(file.readline, LINE_BYTES), b""):
        yield offset, checker.line(raw)
        offset += len(raw)
    checker.done()
