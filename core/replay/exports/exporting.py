"""Export: a thread, and everything that it called, as the lines of a file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio.to_thread
import msgspec

from core.errors import Invalid, NotFound
from core.events import Aggregate, Blob, Record, RunStarted, SubagentStarted
from core.log.kinds import KIND, SUBAGENT
from core.replay.exports.format import MOST_FILES, WORKSPACE, FileLine, Header, Writer
from core.replay.exports.redact import Redaction
from core.replay.exports.shared import Shared
from core.runs.prompts import OF_THREAD, SETUP, logs_of

if TYPE_CHECKING:
    from core.log.reader import Read
    from core.log.store import EventLog

PIECE_BYTES = 512 * 1024
"""Size of the pieces of a file."""
MOST_FILE_BYTES = 512 << 20
"""Limit of all files of an export."""
WRITE_BYTES = 1 << 20
"""Bytes that are gathered before they are written."""


class Reader(Protocol):
    """Events as stored."""

    def stored(self, aggregate: Aggregate) -> AsyncIterator[Record]:
        """Yields the events of an aggregate, oldest first, without the bodies that lie outside of the log."""
        ...

    async def body_of(self, record: Record) -> bytes:
        """Returns the body of an event that lies outside of the log. Raises `Invalid`."""
        ...


class LogReader:
    """The log of a server."""

    def __init__(self, log: EventLog, read: Read | None = None) -> None:
        self._log = log
        self._read = read or log.read

    def stored(self, aggregate: Aggregate) -> AsyncIterator[Record]:
        return self._read(aggregate, bodies=False)

    async def body_of(self, record: Record) -> bytes:
        return await self._log.body(record)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The parts of a thread that an export holds, besides its events."""

    blobs: bool = False
    """Bodies that lie outside of the log."""
    files: Path | None = None
    """The folder of the thread's files, if they are wanted."""
    redaction: Redaction | None = None
    shared: Shared | None = None
    """Takes bodies outside of the log, and what models got besides the conversation, in place of the file."""


async def lines(reader: Reader, header: Header, scope: Scope) -> AsyncIterator[bytes]:
    """Yields the lines of a file, in bounded memory. Raises `NotFound` if the thread has no events, and `Invalid`."""
    root, writer, events = Aggregate(header.kind, header.thread), Writer(), 0
    if scope.redaction is not None:
        async for record in _all(reader, root):
            scope.redaction.scan(await _whole(reader, record, scope))
    yield writer.line(header)
    async for record in _all(reader, root):
        async for line in _lines(reader, writer, record, scope):
            yield line
        events += 1
    if not events:
        raise NotFound(f"{root.kind} {root.id}: nothing in the log")
    if scope.files is not None:
        async for piece in _pieces(scope.files):
            yield writer.line(_redacted(piece, scope))
    yield writer.end(scope.redaction.counts if scope.redaction else None)


async def write(path: Path, content: AsyncIterator[bytes]) -> int:
    """Writes a file, in full or not at all. Returns its size in bytes.

    Raises `Invalid` if it cannot be written, and for a path at which there is something else than a file.
    """
    target = await anyio.to_thread.run_sync(_target, path)
    part = target.with_name(f".{target.name}.part")
    with _writing(path):
        file = await anyio.to_thread.run_sync(_create, part)
    try:
        gathered = bytearray()
        async for chunk in content:
            gathered += chunk
            if len(gathered) >= WRITE_BYTES:
                with _writing(path):
                    await anyio.to_thread.run_sync(file.write, bytes(gathered))
                gathered.clear()
        with _writing(path):
            return await anyio.to_thread.run_sync(_finish, file, bytes(gathered), part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        with suppress(OSError):  # of the rest of a file that is deleted
            file.close()


def _target(path: Path) -> Path:
    """Returns the file itself, if the path is a link."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise Invalid(f"{path}: is there already, and not a file")
    return target


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Invalid(f"{path}: cannot be written: {error.strerror}") from error


def _create(part: Path) -> BufferedWriter:
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return os.fdopen(file, "wb")


def _finish(file: BufferedWriter, rest: bytes, part: Path, path: Path) -> int:
    file.write(rest)
    file.flush()
    os.fsync(file.fileno())
    part.replace(path)
    return os.fstat(file.fileno()).st_size


async def _all(reader: Reader, root: Aggregate) -> AsyncIterator[Record]:
    """Yields the events of a thread, of its scans, and of all subagents below it."""
    waiting, seen = [root, *([Aggregate(WORKSPACE, root.id)] if root.kind == KIND else [])], {root}
    while waiting:
        async for record in reader.stored(waiting.pop(0)):
            yield record
            for needed in _needed(record):
                waiting += [needed] if needed not in seen else []
                seen.add(needed)


def _needed(record: Record) -> list[Aggregate]:
    """Returns the logs to which an event refers: a subagent, what the model got besides the conversation."""
    match record.event:
        case SubagentStarted(subagent=subagent):
            return [Aggregate(SUBAGENT, subagent)]
        case RunStarted():
            return list(logs_of(record.event))
    return []


async def _whole(reader: Reader, record: Record, scope: Scope) -> bytes:
    return await reader.body_of(record) if record.head.blob and scope.blobs else record.raw


async def _lines(reader: Reader, writer: Writer, record: Record, scope: Scope) -> AsyncIterator[bytes]:
    """Yields the lines of an event: its body, if that lies outside of the log and is wanted, and itself."""
    redaction = scope.redaction
    if record.head.blob and scope.blobs:
        body = await reader.body_of(record)
        if redaction is not None:
            body = redaction.event(body)
            record = _claim(record, body)
        if scope.shared is None:
            yield writer.blob(body)
        else:
            scope.shared.add(hashlib.sha256(body).hexdigest(), body)
    elif redaction is not None:
        raw = redaction.event(record.raw)
        if record.aggregate.kind in (SETUP, OF_THREAD) and raw != record.raw:
            return  # it is named by the hash of what it says
        record = _with(record, raw)
    if scope.shared is not None and record.aggregate.kind == SETUP:
        scope.shared.add(record.aggregate.id, record.raw)
    else:
        yield writer.event(record)


def _claim(record: Record, body: bytes) -> Record:
    """Returns the record that names another body."""
    blob = Blob(hashlib.sha256(body).hexdigest(), len(body))
    return _with(record, msgspec.json.encode(msgspec.structs.replace(record.head, blob=blob)))


def _with(record: Record, raw: bytes) -> Record:
    return Record(record.seq, raw, labels=record.labels)


def _redacted(piece: FileLine, scope: Scope) -> FileLine:
    """Returns a piece of a file as it may be shown: redacted files are short texts, others are left out."""
    if scope.redaction is None:
        return piece
    try:
        if piece.offset or len(piece.data) == PIECE_BYTES:
            return FileLine(path=piece.path, offset=piece.offset, data=b"", left_out="too long to be redacted")
        text = scope.redaction.text(piece.data.decode())
    except UnicodeDecodeError:
        return FileLine(path=piece.path, offset=piece.offset, data=b"", left_out="no text, which could be redacted")
    return FileLine(path=scope.redaction.text(piece.path), offset=0, data=text.encode())


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _pieces(folder: Path) -> AsyncIterator[FileLine]:
    """Yields the files of a folder in pieces. Raises `Invalid` if they are too many."""
    pieces = _files(folder)
    while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
        yield piece


def _files(folder: Path) -> Iterator[FileLine]:
    """Yields the regular files below a folder; links are not followed: the agent makes them."""
    count = size = 0
    for directory, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        folders.sort()
        for name in sorted(names):
            try:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
            except OSError:
                continue  # a link, or gone
            with os.fdopen(file, "rb") as opened:
                count, offset = count + 1, 0
                path = (Path(directory) / name).relative_to(folder).as_posix()
                while data := opened.read(PIECE_BYTES):
                    size += len(data)
                    if count > MOST_FILES or size > MOST_FILE_BYTES:
                        most = f"{MOST_FILES} files or {MOST_FILE_BYTES >> 20} MiB"
                        raise Invalid(f"{path}: with it there are more than {most}; export without --files")
                    yield FileLine(path=path, offset=offset, data=data)
                    offset += len(data)
