"""Import: the events of a file become threads of a log.

Theory of operation
-------------------
The file was checked as a whole when it was opened. An aggregate is appended in batches, each all or nothing, with the
ids and times of its events. A thread keeps its id where that is free, or gets another one: then every id in it is
derived from the old one and the new thread's, so that a second import of the same file finds the first. An import that
was interrupted is resumed: what is there already must be the beginning of what the file holds.

Bytes of events stay as they are, except for new ids, another owner, and references to sequences of the log (`base`,
`upto`), which are others here. Where nothing is changed, the chain of hashes is the one of the file.

Nobody reacts to imported events: they have the label `IMPORTED`, with which no actor is woken. Runs that had not ended
when they were exported are cancelled, as a server would carry them on. What nobody agreed to here is left out: folders,
variables, shares, expiry, webhooks and chats of runs, and contents that were recorded for other threads.

The file may be anybody's. It holds the thread and what that called, and nothing that could be appended to another log;
a body keeps the envelope that was checked, whatever its ids are called.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread
import msgspec

from core.errors import Invalid, Refused
from core.events import (
    Aggregate,
    Event,
    FolderAttached,
    Json,
    Record,
    RunCancelled,
    RunRequested,
    RunStarted,
    SetupRecorded,
    SubagentStarted,
    ThreadCreated,
    ThreadExpirySet,
    ThreadImported,
    ThreadPruned,
    ThreadShared,
    VariableSet,
    encode,
    written,
)
from core.files import paths
from core.ids import now, safe_id, uuid7
from core.lifecycle import DELIVER, IMPORTED, OPEN, TARGET
from core.log.kinds import KIND, SUBAGENT
from core.log.store import EventLog
from core.replay.exports.archive import Archive
from core.replay.exports.format import WORKSPACE, FileLine
from core.runs.prompts import OF_THREAD, SETUP
from core.thread.fold import fold

ACTOR = "import"
BATCH = 100
BATCH_BYTES = 512 * 1024
"""Limits of a batch; the server allows 1 000 messages in one."""
_OWNERS = (ThreadCreated, ThreadPruned)
_REFERENCES = ("base", "upto")
"""Fields that name sequences of the thread's log."""
_TEXTS = frozenset(("content", "text", "title", "prompt", "description", "result"))
"""Keys under which an id is text of a conversation, and stays."""
_ENVELOPE = frozenset(("type", "kind", "actor", "at", "v", "blob"))
"""Fields that are no ids."""
_SPACE = uuid.UUID("a8f5f167-f44f-5964-9b5a-1f5d1c0f6f3e")


class Imported(NamedTuple):
    """The result of an import."""

    thread: str
    events: int
    """Events that were appended; 0 if all were there."""
    cancelled: int
    """Runs that had not ended."""
    chain: str | None
    """The hash of the thread's last event, as far as it was imported."""
    files: int = 0
    present: int = 0
    """Files that were there, and stay as they are."""


async def restore(
    log: EventLog, archive: Archive, *, thread: str | None = None, user: str | None = None, by: str | None = None
) -> Imported:
    """Imports a file, as the thread `thread` (default: its own id), owned by `user` (default: its owner). `by`: who
    does it, for an event at the end that says so.

    Raises `Refused` if the thread is there with other events, `Invalid` for a file that cannot be imported, `Conflict`
    and `Unavailable`.
    """
    root = archive.root
    if root.kind != KIND:
        raise Invalid(f"{archive.path.name}: is a {root.kind}; export the thread that called it")
    await _check_parts(archive)
    names = await _names(archive, safe_id(thread, "thread")) if thread not in (None, root.id) else {}
    work = _Import(log, archive, names, user)
    kinds = (SETUP, OF_THREAD, SUBAGENT, KIND, WORKSPACE)
    order = sorted(archive.aggregates(), key=lambda aggregate: kinds.index(aggregate.kind))
    for aggregate in order:
        await work.aggregate(aggregate)
    new = work.renamed(root)
    if by is not None:
        await work.sign(new, by)
    chain = [record.chain async for record in log.read(new, bodies=False)][-1]
    return Imported(new.id, work.events, work.cancelled, chain)


class _Import:
    """An import in progress."""

    def __init__(self, log: EventLog, archive: Archive, names: Mapping[str, str], user: str | None) -> None:
        self._log = log
        self._archive = archive
        self._names = names
        self._user = user
        self._seqs: dict[int, int] = {}
        """Sequences of the thread's events here, by those in the file."""
        self.events = 0
        self.cancelled = 0

    def renamed(self, aggregate: Aggregate) -> Aggregate:
        return Aggregate(aggregate.kind, self._names.get(aggregate.id, aggregate.id))

    async def aggregate(self, old: Aggregate) -> None:
        """Imports the events of one aggregate."""
        new = self.renamed(old)
        there = [record async for record in self._log.read(new)]
        batch: list[Record] = []
        last, count, size = there[-1].seq if there else 0, 0, 0
        async for record in self._archive.stored(old):
            count += 1
            if count <= len(there):
                self._compare(new, record, there[count - 1])
                self._seqs[record.seq] = there[count - 1].seq
                continue
            full = len(batch) >= BATCH or size > BATCH_BYTES
            if batch and (full or self._refers(record, batch)):
                last, size = await self._append(new, batch, last), 0
                batch = []
            batch.append(record)
            size += len(record.raw)
        if batch:
            last = await self._append(new, batch, last)
        if old.kind in (KIND, SUBAGENT) and len(there) <= count:  # else somebody went on with it
            await self._close(new, last)

    async def sign(self, aggregate: Aggregate, by: str) -> None:
        """Appends who imported the thread."""
        old = self._archive.root
        event = ThreadImported(source=old.id, by=by, events=self.events, chain=self._archive.chain(old) or "")
        tip = await self._log.tip(aggregate)
        await self._log.restore(aggregate, [_event(aggregate, event)], expected=tip, labels={IMPORTED})

    async def _append(self, aggregate: Aggregate, batch: Sequence[Record], last: int) -> int:
        bodies = [await self._body(record) for record in batch]
        seq = await self._log.restore(aggregate, bodies, expected=last, labels={IMPORTED})
        for number, record in enumerate(reversed(batch)):
            self._seqs[record.seq] = seq - number
        self.events += len(batch)
        return seq

    def _compare(self, aggregate: Aggregate, record: Record, there: Record) -> None:
        """Raises `Refused` if an event of the log is another one than that of the file."""
        if aggregate.kind != SETUP and there.id != self._names.get(record.id, record.id):
            raise Refused(f"{aggregate}: exists with other events; import it as another one (--as ID)")

    def _refers(self, record: Record, batch: Sequence[Record]) -> bool:
        """Tells whether an event names the sequence of one that is still to be appended."""
        if not any(f'"{name}":'.encode() in record.raw for name in _REFERENCES):
            return False
        fields = msgspec.json.decode(record.raw)
        pending = {record.seq for record in batch}
        return any(fields.get(name) in pending for name in _REFERENCES)

    async def _body(self, record: Record) -> bytes:
        """Returns the bytes of an event as they are to be stored here."""
        raw = await self._archive.body_of(record) if record.head.blob else record.raw
        fields: Json = msgspec.json.decode(raw)
        changes = self._changes(Record(record.seq, raw), fields)
        if not self._names and not changes:
            return raw
        same = {name: fields[name] for name in _ENVELOPE & fields.keys()}
        replaced = {
            name: value if _is_text(name, value) else _replaced(value, self._names) for name, value in fields.items()
        }
        return msgspec.json.encode(replaced | same | changes)

    def _changes(self, record: Record, fields: Json) -> Json:
        references = {name: self._seqs[fields[name]] for name in _REFERENCES if fields.get(name) in self._seqs}
        owner = {"user": self._user} if self._user and isinstance(record.event, _OWNERS) else {}
        folder = {"path": ""} if isinstance(record.event, FolderAttached) else {}  # nobody agreed to it here
        values = [key for key in ("value", "sealed") if isinstance(record.event, VariableSet) and fields.get(key)]
        changes = references | owner | folder | self._dropped(record.event, fields) | dict.fromkeys(values, "")
        return {name: value for name, value in changes.items() if name not in fields or fields[name] != value}

    def _dropped(self, event: object, fields: Json) -> Json:
        """Returns other values for what nobody agreed to here."""
        match event:
            case ThreadShared():
                return {"digest": ""}
            case ThreadExpirySet(minutes=minutes) if minutes is not None:
                return {"minutes": None}
            case RunRequested(metadata=metadata):
                copied = {key: value for key, value in metadata.items() if key not in (DELIVER, TARGET)}
                values = {"webhook": None, "on_completion": "keep", "metadata": _replaced(copied, self._names)}
                return {name: value for name, value in values.items() if name in fields}
            case RunStarted(setup_thread=other) if other:
                root = self._archive.root
                return {"setup_thread": self.renamed(root).id if other == root.id else ""}
        return {}

    async def _close(self, aggregate: Aggregate, last: int) -> None:
        """Cancels the runs that have not ended."""
        records = [record async for record in self._log.read(aggregate)]
        state = await anyio.to_thread.run_sync(fold, records)
        runs = [run.id for run in state.runs.values() if run.status in OPEN]
        if runs and state.seq == last:
            bodies = [_event(aggregate, RunCancelled(), run=run) for run in runs]
            await self._log.restore(aggregate, bodies, expected=last, labels={IMPORTED})
            self.cancelled += len(runs)


async def _check_body(archive: Archive, record: Record) -> None:
    """Raises `Invalid` for a body that is not in the file, or is that of another event."""
    head = Record(record.seq, await archive.body_of(record)).head
    if msgspec.structs.replace(head, blob=record.head.blob) != record.head:
        raise Invalid(f"{archive.path.name}: event {record.seq}: its body is that of another event")


def _check_setup(record: Record) -> None:
    """Raises `Invalid` for a content that is not the one whose hash is its name."""
    content = record.event.content if isinstance(record.event, SetupRecorded) else ""
    if sha256(content.encode()).hexdigest() != record.aggregate.id:
        raise Invalid(f"{record.aggregate}: the content does not match its hash")


def _event(aggregate: Aggregate, event: Event, **more: str) -> bytes:
    fields = {"kind": aggregate.kind, "aggregate_id": aggregate.id, "actor": ACTOR, **more}
    return encode(event, written(event, id=uuid7(), at=now(), **fields))


async def _check_parts(archive: Archive) -> None:
    """Raises `Invalid` for what would be refused halfway, and for a part that the thread of the file did not call."""
    called, root = set[str](), archive.root
    for aggregate in archive.aggregates():
        events = 0
        async for record in archive.stored(aggregate):
            events += 1
            if record.head.blob:
                await _check_body(archive, record)
            if aggregate.kind == SETUP:
                _check_setup(record)
            called |= {record.event.subagent} if isinstance(record.event, SubagentStarted) else set()
        if aggregate.kind == SETUP and events > 1:
            raise Invalid(f"{archive.path.name}: {aggregate}: a content is one event, got {events}")
    for aggregate in archive.aggregates():
        own = aggregate.kind == SETUP or aggregate.id == (root.id if aggregate.kind != SUBAGENT else aggregate.id)
        if not own or (aggregate.kind == SUBAGENT and aggregate.id not in called):
            raise Invalid(f"{archive.path.name}: {aggregate}: thread {root.id} did not call it")


async def _names(archive: Archive, thread: str) -> dict[str, str]:
    """Returns the new ids of all that a thread under another id holds, by the old ones."""
    names, seen = {archive.root.id: thread}, set[str]()
    for aggregate in archive.aggregates():
        if aggregate.kind == SETUP:
            continue
        async for record in archive.stored(aggregate):
            if record.id in seen:
                raise Invalid(f"{archive.path.name}: event {record.seq}: the id {record.id} is there twice")
            seen.add(record.id)
            ids = [record.id, record.run]
            ids += [record.event.subagent] if isinstance(record.event, SubagentStarted) else []
            names |= {old: derived(thread, old) for old in ids if old and old not in names}
    return names


def derived(thread: str, old: str) -> str:
    """Returns the id that an old one gets in a thread under another id: a UUID of the same time, if the old one is one.

    So the order of ids stays.
    """
    try:
        time = uuid.UUID(old)
    except ValueError:
        return str(uuid.uuid5(_SPACE, f"{thread}/{old}"))
    rest = int.from_bytes(sha256(f"{thread}/{old}".encode()).digest()[:8]) >> 2
    return str(uuid.UUID(int=(time.int >> 62 << 62) | rest))


def _is_text(key: str, value: Any) -> bool:
    return key in _TEXTS and isinstance(value, str)


def _replaced(value: Any, names: Mapping[str, str]) -> Any:
    """Returns a JSON value with other ids, outside of texts."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):  # by `map`: a comprehension is a second call for each level before Python 3.12
        replaced = dict(zip(value, map(_replaced, value.values(), repeat(names)), strict=True))
        replaced |= {key: value[key] for key in _TEXTS & value.keys() if _is_text(key, value[key])}
        return {names.get(key, key): item for key, item in replaced.items()}
    return list(map(_replaced, value, repeat(names))) if isinstance(value, list) else value


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def restore_files(archive: Archive, home: Path, user: str, thread: str) -> tuple[int, int]:
    """Writes the files of an archive into the folders of a thread; those that are there stay. Returns the numbers of
    both. Raises `Invalid` for a path outside of the folders.
    """
    return await anyio.to_thread.run_sync(_restore_files, archive, paths.thread_root(home, user, thread))


def _restore_files(archive: Archive, root: Path) -> tuple[int, int]:
    tree, new, present = None, set[str](), set[str]()
    for line in archive.lines():
        if not isinstance(line, FileLine) or line.left_out:
            continue
        if tree is None:
            paths.make_thread(root)
            tree = paths.Tree(paths.mounts_of(root, None, ()))
        if line.path not in present:
            (new if _piece(tree, line, line.path in new) else present).add(line.path)
    return len(new), len(present)


def _piece(tree: paths.Tree, line: FileLine, begun: bool) -> bool:
    """Writes a piece of a file; returns False if the file was there before."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if begun else os.O_CREAT | os.O_EXCL)
    try:
        with tree.walk(f"{paths.USER_DATA}/{line.path}", create=True) as place:
            if place.fd is None:
                raise Invalid(f"{line.path}: is outside of the thread's folders")
            file = os.open(place.name, flags, 0o600, dir_fd=place.fd)
            try:
                os.pwrite(file, line.data, line.offset)
            finally:
                os.close(file)
    except FileExistsError:
        return False
    except OSError as error:
        raise Invalid(f"{line.path}: {error.strerror}") from error
    return True
