"""Pinned runs: a recorded run as a file that a test replays, which fails when it would be decided otherwise.

A pin is an export, redacted, of one run with what it needs: what was before is folded into one event (`thread.pruned`),
and runs that paused for it come along. Big bodies and what the models got lie once in a folder that pins share. The
header says what the replay must come to. Decisions are compared: calls and their arguments, what policies did, ends.
Times, ids, usage and the prompt are not.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread
import msgspec

from core.errors import Invalid, NotFound
from core.events import Aggregate, Json, Record, RunRequested, RunStarted, ThreadPruned, encode, written
from core.ids import now
from core.replay.exports.archive import Archive
from core.replay.exports.exporting import Reader, Scope, lines, write
from core.replay.exports.format import FORMAT, WORKSPACE, Header
from core.replay.exports.redact import Redaction
from core.replay.exports.shared import Shared
from core.runs.prompts import OF_THREAD, release
from core.thread.fold import Folding
from core.thread.runs import thread_metadata
from core.thread.state import ThreadState

if TYPE_CHECKING:
    from core.log.reader import Hold, Read

MOST_BYTES = 256 * 1024
"""Limit of a pin, unless a bigger one is wanted: it lies in a repository for ever."""
_EVENT_KEYS = frozenset(
    ("id", "kind", "aggregate", "actor", "at", "v", "run", "cause", "blob", "call_id", "duration_ms", "request")
)
"""Fields of a step that are no decision."""


def _free(_: Record) -> None:
    """Bounds nothing."""


class Expected(msgspec.Struct, frozen=True, omit_defaults=True):
    """The terms of a pin: the run is decided as recorded, or differently from an event on."""

    name: str
    at: int | None = None
    """Sequence of the recorded event instead of which the loop decides `now`."""
    now: Json | None = None


class Difference(msgspec.Struct, frozen=True):
    """A decision that is not the recorded one."""

    text: str
    at: int | None
    recorded: Json | None
    now: Json | None

    def decided(self) -> Json | None:
        return decision(self.now)


class Packed(NamedTuple):
    """A pin as a zip archive, with its test and the bodies that it shares; `difference`: as it is decided today."""

    data: bytes
    difference: Difference | None


def packed(folder: Path) -> bytes:
    """Returns the files of a folder as a zip archive. Blocks."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(folder).as_posix())
    return data.getvalue()


def decision(step: Json | None) -> Json | None:
    """Returns what was decided in a step, without ids, times and usage."""
    return {key: value for key, value in step.items() if key not in _EVENT_KEYS and value} if step else None


def mismatch(expected: Expected, difference: Difference | None) -> str:
    """Returns how a replay differs from the terms of a pin, in words; empty if it does not."""
    if difference is None:
        return f"decides as recorded again, and no more otherwise at seq:{expected.at}" if expected.now else ""
    if expected.now is None:
        return f"decides otherwise: {difference.text}"
    if (expected.at, expected.now) != (difference.at, difference.decided()):
        return f"decides otherwise than it was pinned: {difference.text}"
    return ""


async def records_to_pin(
    read: Read, root: Aggregate, until: int | None = None, *, run: str | None = None, hold: Hold = _free
) -> list[Record]:
    """Returns the last run up to an event (or `run`, to its end), with the runs that paused for it, and what was before
    as one event. `hold` is called with each of them; no other one is held.

    Raises `NotFound` if there is no run.
    """
    runs = await _Runs.of(read, root, until)
    last = runs.number(run)
    first = last
    while first > 0 and runs.requests[first].goes_on:
        first -= 1
    pinned, later = ({one.run for one in part} for part in (runs.requests[first : last + 1], runs.requests[last + 1 :]))
    request = runs.requests[first]
    begun = request.begun or request.seq  # it may have waited while another one was at work
    folding, before, after = Folding(), None, list[Record]()
    async with aclosing(read(root, upto=until if run is None else runs.requests[last].end)) as records:
        async for record in records:
            if record.run in later:
                continue
            if first == 0 or record.run in pinned or (record.run is None and record.seq > begun):
                hold(record)
                after.append(record)
            elif record.seq < begun:
                folding.apply(record)
                before = record
    return [_folded(folding.state, before, request.seq), *after] if before else after


class _Request:
    """A run of a log: the sequences of its request, its first start and its last event."""

    def __init__(self, record: Record) -> None:
        self.run, self.seq, self.begun, self.end = record.run, record.seq, 0, record.seq
        self.goes_on = isinstance(record.event, RunRequested) and record.event.input is None
        """Tells whether it goes on from the pause of the one before."""


class _Runs:
    """The runs of a log, in the order of their requests."""

    def __init__(self, requests: Sequence[_Request]) -> None:
        self.requests = requests

    @classmethod
    async def of(cls, read: Read, root: Aggregate, until: int | None) -> _Runs:
        requests = dict[str | None, _Request]()
        async with aclosing(read(root, upto=until)) as records:
            async for record in records:
                if isinstance(record.event, RunRequested):
                    requests[record.run] = _Request(record)
                elif record.run in requests:
                    request = requests[record.run]
                    request.end = record.seq
                    if isinstance(record.event, RunStarted):
                        request.begun = request.begun or record.seq
        return cls([*requests.values()])

    def number(self, run: str | None) -> int:
        """Returns the index of a run; None: of the last one. Raises `NotFound`."""
        numbers = [number for number, request in enumerate(self.requests) if run in (None, request.run)]
        if not numbers:
            raise NotFound("there is no run to pin")
        return numbers[-1]


def _folded(state: ThreadState, last: Record, upto: int) -> Record:
    """Returns a state as one event, in the place of the last of those that it amounts to before a sequence."""
    event = ThreadPruned(
        user=state.user, metadata=thread_metadata(state), created_at=state.created_at, values=_values(state)
    )
    fields = {"kind": last.head.kind, "aggregate_id": last.head.aggregate_id, "actor": last.head.actor}
    return Record(min(last.seq, upto - 1), encode(event, written(event, id=last.id, at=last.at, **fields)))


def _values(state: ThreadState) -> Json:
    return {**state.values, "messages": list(state.messages)} if state.messages else dict(state.values)


class _Kept:
    """A reader of the pinned events of a thread and of its subagents, without what holds something of the user."""

    def __init__(self, reader: Reader, root: Aggregate, records: Sequence[Record]) -> None:
        self._reader, self._root, self._records = reader, root, records

    async def stored(self, aggregate: Aggregate) -> AsyncIterator[Record]:
        if aggregate == self._root:
            for record in self._records:
                yield record
        elif aggregate.kind not in (WORKSPACE, OF_THREAD):
            async for record in self._reader.stored(aggregate):
                yield record

    async def body_of(self, record: Record) -> bytes:
        return await self._reader.body_of(record)


async def pin(reader: Reader, root: Aggregate, records: Sequence[Record], path: Path, *, most: int | None) -> int:
    """Writes a pin of events (`records_to_pin`). `most`: limit in bytes. Returns its size.

    Raises `Invalid` if it is too big.
    """
    header = Header(
        format=FORMAT,
        sika=release(),
        thread=root.id,
        kind=root.kind,
        at=now(),
        redacted=True,
        pin=msgspec.to_builtins(Expected(path.stem)),
    )
    shared = Shared(path, most)
    scope = Scope(redaction=Redaction(), blobs=True, shared=shared)
    content = lines(_Kept(reader, root, records), header, scope)
    size = await write(path, limited(content, most))
    await anyio.to_thread.run_sync(shared.write)
    return size


async def limited(content: AsyncIterator[bytes], most: int | None) -> AsyncIterator[bytes]:
    """Yields lines. Raises `Invalid` if they are more than `most` bytes."""
    size = 0
    async for line in content:
        size += len(line)
        if most is not None and size > most:
            raise Invalid(f"the pin has more than {most >> 10} KiB; pin a shorter run (--until), or say --big")
        yield line


async def expect(path: Path, difference: Difference | None) -> None:
    """Writes a pin anew that expects a difference, or none."""
    archive = await Archive.open(path)
    try:
        name = expected(archive).name
        terms = Expected(name, difference.at, difference.decided()) if difference else Expected(name)
        header = msgspec.structs.replace(archive.header, pin=msgspec.to_builtins(terms))
        shared = Shared(path)
        await write(path, lines(archive, header, Scope(blobs=True, shared=shared)))
        await anyio.to_thread.run_sync(shared.write)
    finally:
        archive.close()


def expected(archive: Archive) -> Expected:
    """Returns the terms of a pin. Raises `Invalid` for a file that is none."""
    try:
        return msgspec.convert(archive.header.pin, Expected)
    except msgspec.ValidationError as error:
        raise Invalid(f"{archive.path.name}: is no pin: {error}") from error
