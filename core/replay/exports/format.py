"""The format of files of recorded events: one line each, every line with a sum over all bytes before it.

Theory of operation
-------------------
A file has a first line (`Header`), then the events of the thread and of what it called, each as stored, with the bodies
that lie outside of the log and the files of the thread if they were wanted, and a last line (`End`). Every line is a
JSON object that ends with a member `sum`: the SHA-256 of the sum of the line before and of the line's own bytes. So a
changed, missing, doubled or moved byte is noticed at its line, and a cut file by its missing last line. An event has
also the hash of its aggregate's chain (`core.log.chain`), by which the file and the log can be compared.

A sum is not a signature: it shows accidents, and changes against a copy whose last sum is known.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import msgspec

from core.errors import Invalid
from core.events import Aggregate, Json, Record, malformed
from core.ids import safe_id
from core.log.chain import START, link
from core.log.kinds import KIND, SUBAGENT
from core.nesting import FACT_LEVELS, too_deep
from core.runs.prompts import OF_THREAD, SETUP

FORMAT = "sika-log/1"
WORKSPACE = "workspace"
"""Kind of the aggregate of a thread's scans (`core.files.workspace`)."""
KINDS = (KIND, SUBAGENT, WORKSPACE, SETUP, OF_THREAD)
"""Kinds of the aggregates that a file may hold."""
LINE_BYTES = 64 << 20
"""Limit of a line: the longest bodies are those of tools that return images."""
MOST_FILES = 5000
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
    """The terms of a pinned run (`core.replay.exports.pins`)."""


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


class Checker:
    """Checks lines in their order. Raises `Invalid`, naming the line and what is wrong with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = 0
        self._sum = START
        self._chains: dict[Aggregate, tuple[int, str]] = {}
        self._files: dict[str, int] = {}
        """Lengths of the files so far, by path."""
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
        if too_deep(body, FACT_LEVELS):
            raise self._invalid(f"nested too deeply, more than {FACT_LEVELS} levels")
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
            case FileLine() if line.data:
                self._file(line)
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
            if problem := malformed(record.head):
                raise Invalid(problem)
        except Invalid as error:
            raise self._invalid(str(error)) from error
        aggregate = record.aggregate
        if aggregate.kind not in KINDS:
            raise self._invalid(f"event {line.seq}: a file holds no {aggregate.kind}")
        count, before = self._chains.get(aggregate, (0, ""))
        if count and line.chain != link(before, record.raw):
            raise self._invalid(f"event {line.seq}: does not fit the chain of {aggregate}")
        self._chains[aggregate] = count + 1, line.chain

    def _file(self, line: FileLine) -> None:
        """Refuses a hole: a few bytes would make a file of any length."""
        if any(part in ("", ".", "..") for part in line.path.split("/")) or not line.path.isprintable():
            raise self._invalid(f"file {line.path[:80]!r}: is outside of the thread's folders")
        if line.path not in self._files and len(self._files) >= MOST_FILES:
            raise self._invalid(f"file {line.path[:80]!r}: with it there are more than {MOST_FILES} files")
        length = self._files.get(line.path, 0)
        if line.offset != length:
            raise self._invalid(f"file {line.path[:80]!r}: a piece is at {line.offset}, and the file ends at {length}")
        self._files[line.path] = length + len(line.data)

    def _end(self, end: End) -> None:
        self._ended = True
        counted = {Aggregate(part.kind, part.id): (part.events, part.chain) for part in end.parts}
        if counted != self._chains:
            raise self._invalid("does not name the events that the file holds")

    def _invalid(self, text: str) -> Invalid:
        return Invalid(f"{self._name}, line {self._number}: {text}")


def decoded(raw: bytes) -> Line:
    """Returns a line without checking its sum. Raises `msgspec.DecodeError`."""
    return _decoder.decode(raw[:-_TAIL] + b"}")


def checked_lines(name: str, file: BinaryIO) -> Iterator[tuple[int, Line]]:
    """Yields the lines of a file with their offsets, each checked. Raises `Invalid` with the line that is wrong."""
    file.seek(0)
    checker, offset = Checker(name), 0
    for raw in iter(partial(file.readline, LINE_BYTES), b""):
        yield offset, checker.line(raw)
        offset += len(raw)
    checker.done()
