"""Snapshots: folded aggregates in files, so that a cold one costs what came after its snapshot.

Theory of operation
-------------------
A snapshot is derived. It may be missing, old, damaged or of another version at any time, and then the log is read from
its beginning; so nothing here is flushed to disk, and the whole directory may be deleted. `Form` says how the states of
one kind are written: as *columns* of pages, to which states only ever add, and a *head* with all the rest.

*Files.* Each aggregate has a directory with a file of pages, to which snapshots append, and a file `head`. A head
names its file of pages, how far it is to be read, and how many pages of each column it has. It is written beside the
old one and renamed over it. What lies behind the end of the pages is a snapshot that was not finished: the next one
overwrites it. If the pages of a state do not go on from those in the file, a new file is begun.

*Cost.* A snapshot is written when the events since the last one amount to `SNAPSHOT_BYTES`, and to no less than its
head. So both writing and reading cost in proportion to what was added; all of it is done in a thread, in pieces.

*Truth.* A head says of what version of the fold it is (`Form.version`, a hash of the code), and which event was the
last. It counts only if the log still has this event under this sequence: not if the log is another one, was restored
from an older backup, or has forgotten the event. Each block has a checksum.

*Forgetting.* A tombstone or pruning is appended, then the snapshot is removed, then the events are erased. At the end
the snapshot is removed once more, as a process may have written one meanwhile. One that writes later looks whether its
last event is still in the log after it has written, and removes it otherwise. If it dies in between, the snapshot goes
with the janitor's second look at an erased thread, or with the next read.

*Several processes* share the directory (decision 7). One writes at a time (a lock on a file in the directory of
the aggregate); the others pass, as do those whose state is older than what is there.

Rejected: a stream of the bus (measured: decision 17); one file for each snapshot (each would cost what all did before).
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from core.errors import Invalid, SikaError, Unavailable
from core.events import Aggregate
from core.ids import safe_id
from core.log.store import EventLog

S = TypeVar("S")
P = TypeVar("P")
log = structlog.get_logger("sika.snapshots")

SNAPSHOT_BYTES = 256 * 1024
"""Bytes of events after which there is another snapshot: what a cold aggregate costs to read beside its snapshot."""
KNOWN = 10_000
"""Aggregates of which it is remembered how big they were when the last snapshot was written."""
REMOVALS = 5
"""Attempts to remove a snapshot."""
_DAMAGED = (ValueError, LookupError, TypeError, msgspec.MsgspecError)
"""Errors of reading a file that is not as it was written."""
_HEAD = "head"
_LOCK = ".lock"
_CHECKED = 8
"""Bytes before each block: its length and its checksum."""


class Form(Protocol[S]):
    """Writes and reads the states of one kind, in encoded blocks. Its functions are called in threads."""

    @property
    def version(self) -> str:
        """Another one for each change of the fold, or of this form. Asked for when a snapshot is first used."""
        ...

    def counts(self, state: S) -> Sequence[int]:
        """Returns how many pages each column has."""
        ...

    def pages(self, state: S, after: Sequence[int]) -> Sequence[Sequence[bytes]]:
        """Returns the pages after so many of each column."""
        ...

    def head(self, state: S) -> Sequence[bytes]:
        """Returns all that is in no page."""
        ...

    def state(self, head: Sequence[bytes], pages: Sequence[Sequence[bytes]]) -> S:
        """Returns the state. Raises `ValueError`, `LookupError` or `TypeError` if that cannot be."""
        ...


class Parts(Generic[S, P]):
    """A form without pages: the state in parts, each of which is encoded and decoded in a piece, while everything else
    waits. `modules`: the code that folds. As JSON: facts may hold integers that msgpack cannot say.
    """

    def __init__(
        self, part: type[P], split: Callable[[S], Iterable[P]], join: Callable[[Iterable[P]], S], *modules: str
    ) -> None:
        self._decoder = msgspec.json.Decoder(part)
        self._split = split
        self._join = join
        self._modules = modules

    @cached_property
    def version(self) -> str:
        return version_of(("core.events", __name__, *self._modules))

    def counts(self, state: S) -> Sequence[int]:
        return ()

    def pages(self, state: S, after: Sequence[int]) -> Sequence[Sequence[bytes]]:
        return ()

    def head(self, state: S) -> Sequence[bytes]:
        return [*map(msgspec.json.encode, self._split(state))]

    def state(self, head: Sequence[bytes], pages: Sequence[Sequence[bytes]]) -> S:
        return self._join(map(self._decoder.decode, head))


def version_of(modules: Iterable[str], packages: Iterable[str] = ()) -> str:
    """Returns a hash of the code that makes and reads states: of modules, and of all modules of installed packages."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {msgspec.__version__}".encode())
    for name in modules:
        if file := getattr(import_module(name), "__file__", None):
            digest.update(Path(file).read_bytes())
    for name in packages:
        for file in _files(name):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def _files(package: str) -> list[Path]:
    """Returns the source files of an installed package, or of a single module."""
    module = import_module(package)
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    alone = [Path(module.__file__)] if module.__file__ and not folders else []
    return alone + sorted(file for folder in folders for file in folder.rglob("*.py"))


class Snapshot(NamedTuple, Generic[S]):
    """The state as of the event `seq`, whose id is `last`, made of `size` bytes of events."""

    seq: int
    last: str
    size: int
    state: S


class _Head(msgspec.Struct, frozen=True):
    version: str
    seq: int
    last: str
    size: int
    pages: str
    """Name of the file of pages."""
    end: int
    """Where in that file the pages end."""
    counts: list[int]
    checks: list[int]
    """Checksum of the last page of each column, 0 without any."""


class Snapshots(Generic[S]):
    """The snapshots of the aggregates of one kind. `run` writes those that are offered."""

    def __init__(self, log: EventLog, directory: Path, kind: str, form: Form[S]) -> None:
        self._log = log
        self._directory = directory / kind
        self._kind = kind
        self._form = form
        self._next: dict[str, int] = {}
        """The size from which on there is another snapshot."""
        self._due: dict[str, Snapshot[S]] = {}
        self._offered = asyncio.Event()
        self._running = False

    async def read(self, identity: str) -> Snapshot[S] | None:
        """Returns the newest snapshot that can be read. Its last event may no longer be in the log."""
        try:
            snapshot, size = await asyncio.to_thread(self._read, identity)
        except (FileNotFoundError, Invalid):
            return None
        except (OSError, *_DAMAGED) as error:
            log.warning("a snapshot cannot be read: the log is", aggregate=self._name(identity), error=str(error))
            await self.discard(identity)
            return None
        if snapshot is not None:
            self._plan(identity, snapshot, size)
        return snapshot

    async def remove(self, identity: str) -> None:
        """Removes what is there of an aggregate; nothing is fine too. Raises `Unavailable`."""
        self._due.pop(identity, None)
        self._next.pop(identity, None)
        try:
            with suppress(Invalid):
                await asyncio.to_thread(self._remove, identity)
        except OSError as error:
            raise Unavailable(f"{self._name(identity)}: its snapshot cannot be removed: {error}") from error

    async def discard(self, identity: str) -> None:
        """Removes a snapshot that counts for nothing. One that cannot be removed does no harm."""
        try:
            await self.remove(identity)
        except Unavailable as error:
            log.warning("a snapshot stays", aggregate=self._name(identity), error=str(error))

    def offer(self, identity: str, snapshot: Snapshot[S]) -> None:
        """Has a snapshot written soon if it is time for one."""
        due = self._next.get(identity, SNAPSHOT_BYTES)
        if snapshot.size < SNAPSHOT_BYTES:
            self._next.pop(identity, None)  # its past was forgotten
        elif self._running and snapshot.size >= due:
            self._due[identity] = snapshot
            self._offered.set()

    async def run(self) -> None:
        """Runs for as long as the process: writes what is offered, one after the other."""
        self._running = True
        try:
            while True:
                await self._offered.wait()
                self._offered.clear()
                while self._due:
                    identity = next(iter(self._due))
                    await self._write_checked(identity, self._due.pop(identity))
        finally:
            self._running = False
            self._due.clear()

    async def _write_checked(self, identity: str, snapshot: Snapshot[S]) -> None:
        try:
            size = await asyncio.to_thread(self._write, identity, snapshot)
            self._plan(identity, snapshot, size)
            if not await self._holds(identity, snapshot):
                await self.remove(identity)
        except Exception as error:  # whatever is wrong with one state: the others get their snapshots
            self._plan(identity, snapshot, 0)
            known = isinstance(error, OSError | SikaError)
            log.warning("no snapshot written", aggregate=self._name(identity), error=str(error), exc_info=not known)

    async def _holds(self, identity: str, snapshot: Snapshot[S]) -> bool:
        """Tells whether the log has the last event of a snapshot."""
        records = self._log.read(Aggregate(self._kind, identity), after=snapshot.seq - 1, upto=snapshot.seq)
        return [record.id async for record in records] == [snapshot.last]

    def _plan(self, identity: str, snapshot: Snapshot[S], head_size: int) -> None:
        self._next.pop(identity, None)
        self._next[identity] = snapshot.size + max(SNAPSHOT_BYTES, head_size)
        while len(self._next) > KNOWN:
            del self._next[next(iter(self._next))]

    # ── files, in a thread ──────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, identity: str) -> tuple[Snapshot[S] | None, int]:
        """Returns a snapshot (None if it is of another version) and the size of its head."""
        directory = self._place(identity)
        for _ in range(3):  # a new file of pages may take the place of the old one between the two reads
            data = (directory / _HEAD).read_bytes()
            [raw, *head] = _blocks(data)
            about = msgspec.json.decode(raw, type=_Head)
            if about.version != self._form.version:
                log.info("a snapshot of another version: the log is read", aggregate=self._name(identity))
                return None, len(data)
            with suppress(FileNotFoundError), (directory / about.pages).open("rb") as file:
                pages = list(_blocks(file.read(about.end)))
                state = self._form.state(head, _split(pages, about.counts))
                return Snapshot(about.seq, about.last, about.size, state), len(data)
        raise ValueError("its pages are missing")

    def _write(self, identity: str, snapshot: Snapshot[S]) -> int:
        """Writes what a snapshot adds to the one that is there, unless that is newer. Returns the size of its head."""
        directory, state = self._place(identity), snapshot.state
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(directory) as alone:
            there = self._head(directory)
            if not alone or (there is not None and there.seq >= snapshot.seq):
                return 0
            if there is None or not self._goes_on(directory, there, state):
                none = [0] * len(self._form.counts(state))
                there = _Head("", 0, "", 0, f"pages-{secrets.token_hex(4)}", 0, none, none)
            columns = self._form.pages(state, there.counts)
            end = _append(directory / there.pages, there.end, columns)
            checks = [zlib.crc32(new[-1]) if new else old for new, old in zip(columns, there.checks, strict=True)]
            about = _Head(
                version=self._form.version,
                seq=snapshot.seq,
                last=snapshot.last,
                size=snapshot.size,
                pages=there.pages,
                end=end,
                counts=[*self._form.counts(state)],
                checks=checks,
            )
            return _replace(directory, about, self._form.head(state))

    def _goes_on(self, directory: Path, there: _Head, state: S) -> bool:
        """Tells whether the pages of a state go on from those of a snapshot, and these are there."""
        with suppress(FileNotFoundError):
            if (directory / there.pages).stat().st_size < there.end:
                return False
            if any(old > new for old, new in zip(there.counts, self._form.counts(state), strict=True)):
                return False
            columns = self._form.pages(state, [max(0, count - 1) for count in there.counts])
            last = [column[0] if count else b"" for column, count in zip(columns, there.counts, strict=True)]
            return [zlib.crc32(page) for page in last] == there.checks
        return False

    def _head(self, directory: Path) -> _Head | None:
        """Returns the head of the snapshot that is there, if it is of this version."""
        with suppress(OSError, *_DAMAGED):
            [about, *_] = _blocks((directory / _HEAD).read_bytes())
            head = msgspec.json.decode(about, type=_Head)
            return head if head.version == self._form.version else None
        return None

    def _remove(self, identity: str) -> None:
        for attempt in range(REMOVALS):
            try:
                return shutil.rmtree(self._place(identity))
            except FileNotFoundError:
                return
            except OSError:  # somebody wrote there meanwhile
                if attempt == REMOVALS - 1:
                    raise

    def _place(self, identity: str) -> Path:
        return self._directory / safe_id(identity, "id of an aggregate")

    def _name(self, identity: str) -> str:
        return str(Aggregate(self._kind, identity))


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Tells whether nobody else writes there, for as long as the block lasts."""
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _append(path: Path, end: int, columns: Sequence[Sequence[bytes]]) -> int:
    """Writes pages to a file from a place on, column by column. Returns where they end."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        file.truncate(end)
        file.seek(end)
        for number, pages in enumerate(columns):
            for page in pages:
                file.write(_block(bytes([number]) + page))
        return file.tell()


def _replace(directory: Path, about: _Head, head: Sequence[bytes]) -> int:
    """Puts a new head in the place of the old one. Returns its size."""
    draft = directory / f".{_HEAD}-{os.getpid()}"
    data = b"".join(map(_block, [msgspec.json.encode(about), *head]))
    draft.touch(mode=0o600)
    draft.write_bytes(data)
    draft.replace(directory / _HEAD)
    for path in directory.glob("pages-*"):
        if path.name != about.pages:
            path.unlink(missing_ok=True)
    return len(data)


def _block(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + zlib.crc32(data).to_bytes(4, "big") + data


def _blocks(data: bytes) -> Iterator[bytes]:
    """Yields the blocks in what was read. Raises `ValueError` if one is damaged."""
    view, place = memoryview(data), 0
    while place < len(data):
        length, check = int.from_bytes(view[place : place + 4], "big"), view[place + 4 : place + _CHECKED]
        block = bytes(view[place + _CHECKED : place + _CHECKED + length])
        if len(block) != length or zlib.crc32(block).to_bytes(4, "big") != check:
            raise ValueError(f"the block at {place} is damaged")
        yield block
        place += _CHECKED + length


def _split(blocks: Sequence[bytes], counts: Sequence[int]) -> list[list[bytes]]:
    """Returns the blocks of a file of pages, column by column."""
    columns: list[list[bytes]] = [[] for _ in counts]
    for block in blocks:
        columns[block[0]].append(block[1:])
    if [len(column) for column in columns] != [*counts]:
        raise ValueError(f"pages of {[len(column) for column in columns]}, expected {counts}")
    return columns
