"""Snapshots of a person's folder around runs, beside the data directory's threads: for differences and undoing.

Theory of operation
-------------------
Before the first effect of a run the folder is scanned, and when the run has ended it is scanned again. What differs is
what the run changed, and what the person changed meanwhile. A scan reads only files whose size or time changed since
the last one. The contents of small files are stored by their hash, as they are: they are the person's own, in the data
directory, which is closed to others. The folder itself gets nothing.

Non-guarantees: `SKIPPED` directories, and those of builds, are not looked at. A scan has limits of files, bytes and
time; what is beyond them is neither shown nor undone, and `Scanned.truncated` says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from adapters.differences import Differences, same
from adapters.sandboxes.files.folders import SKIPPED
from adapters.sandboxes.files.search import printable
from core.errors import Invalid, Refused
from core.files.paths import MAX_PATH, Mount, Tree
from core.files.workspace import MAX_FILES, Entry, Scanned

MAX_SCANNED = 20_000
SECONDS = 10.0
"""Timeout of a scan."""
MAX_CONTENT = 4 << 20
"""Limit of a file whose content is stored; larger ones are compared by size and time, and cannot be undone."""
STORED_BYTES = 256 << 20
"""Limit of the stored contents of a folder."""
STORED_SECONDS = 14 * 24 * 3600
"""Age at which a content that no newer scan needs is removed."""
RUNS = 8
"""Runs of a thread whose snapshots are stored."""
CLOCK = 20_000_000
"""Nanoseconds by which the time of a file may lag behind that of an event."""
_VERSIONS = ".git .hg .svn .bzr CVS"
_BUILT = "target build dist out .next .nuxt .output .turbo .parcel-cache .cache .gradle .terraform coverage htmlcov"
NOT_SCANNED = SKIPPED | frozenset((*_VERSIONS.split(), *_BUILT.split()))
MOST_NAMED = 20
"""Limit of the skipped directories that are named."""


class Seen(Entry, frozen=True, omit_defaults=True):
    """A file at the time of a scan, with its permissions."""

    mode: int = 0o644


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of a folder by relative path, at a time in nanoseconds."""

    at: int = 0
    files: Mapping[str, Seen] = {}
    skipped: Sequence[str] = ()
    truncated: bool = False
    until: int = 0
    """The end of the run after which it was taken. What changed later is not of the run."""


class Project:
    """The snapshots of one folder for one user. The methods block."""

    def __init__(self, home: Path, user: str, mount: Mount) -> None:
        digest = hashlib.sha256(os.fsencode(mount.host)).hexdigest()[:32]
        self._place, self._mount = home / "users" / user / "folders" / digest, mount
        self._objects = self._place / "objects"

    def begin(self, thread: str, run: str) -> None:
        """Takes the snapshot before a run's first effect, if there is none yet."""
        if not self._of("before", thread, run).exists():
            with self._locked():
                if not self._of("before", thread, run).exists():
                    self._take("before", thread, run)
                    self._tidy(thread)

    def end(self, thread: str, run: str, until: float) -> Scanned:
        """Returns what has changed since the snapshot before a run, up to a time (Unix seconds)."""
        before = self._load(self._of("before", thread, run))
        if before is None:
            return Scanned()
        with self._locked():
            after = self._take("after", thread, run, int(until * 1e9) + CLOCK)
        changed = [*_changed(before, after)]
        differences = Differences(self._content, lambda path: False, time.monotonic() + SECONDS)
        changes = [
            differences.change(f"{self._mount.virtual}/{printable(path)}", old, new)
            for path, old, new in changed[:MAX_FILES]
        ]
        later = [f"{self._mount.virtual}/{printable(path)}" for path in _changed_later(before, after)[:MOST_NAMED]]
        truncated = before.truncated or after.truncated or len(changed) > MAX_FILES
        return Scanned(changes, after.skipped, truncated, later)

    def undo(self, thread: str, run: str) -> list[str]:
        """Takes the changes of a run back, all or none. Returns the paths. Raises `Refused` with the reasons."""
        with self._locked():
            before, after = (self._load(self._of(kind, thread, run)) for kind in ("before", "after"))
            if before is None or after is None:
                raise Refused("the files of this run are not stored any more")
            if before.truncated or after.truncated:
                raise Refused("the folder has more files than are looked at, so that not all changes are known")
            if later := [printable(path) for path in _changed_later(before, after)]:
                raise Refused(f"nothing was taken back: {', '.join(later[:10])} changed after the run's end")
            changed = [*_changed(before, after)]
            if problems := [problem for change in changed if (problem := self._problem(*change))]:
                raise Refused(f"nothing was taken back: {'; '.join(problems[:10])}")
            self._restore(changed)
        return [f"{self._mount.virtual}/{printable(path)}" for path, _, _ in changed]

    # ── scans ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, kind: str, thread: str, run: str, until: int = 0) -> Snapshot:
        last = self._load(self._place / "newest") or Snapshot()
        snapshot = _Scan(self._mount, last, self._objects).run(until)
        place, draft = self._of(kind, thread, run), self._place / "draft"
        draft.write_bytes(msgspec.msgpack.encode(snapshot))
        place.unlink(missing_ok=True)
        os.link(draft, place)
        draft.replace(self._place / "newest")
        return snapshot

    def _tidy(self, thread: str) -> None:
        """Removes snapshots of older runs of the thread, and contents that are old."""
        for kind in ("before", "after"):
            there = sorted(self._place.glob(f"{kind}.{thread}.*"), key=lambda path: path.stat().st_mtime)
            for place in there[:-RUNS]:
                place.unlink(missing_ok=True)
        needed = {seen.sha256 for path in self._place.glob("*.*.*") for seen in self._files(path)}
        oldest = time.time() - STORED_SECONDS
        with os.scandir(self._objects) as entries:
            for entry in entries:
                if entry.name not in needed and entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)

    def _files(self, place: Path) -> Iterator[Seen]:
        snapshot = self._load(place)
        yield from snapshot.files.values() if snapshot else ()

    def _load(self, place: Path) -> Snapshot | None:
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.msgpack.decode(place.read_bytes(), type=Snapshot)
        return None

    def _of(self, kind: str, thread: str, run: str) -> Path:
        return self._place / f"{kind}.{thread}.{run}"

    def _content(self, entry: Entry | None) -> bytes | None:
        if entry is None or entry.sha256 is None:
            return None
        with suppress(OSError):
            return (self._objects / entry.sha256).read_bytes()
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._objects.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._place.parent.chmod(0o700)
        fd = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    # ── undoing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _problem(self, path: str, before: Seen | None, after: Seen | None) -> str:
        """Returns why a change cannot be taken back; empty if it can."""
        now = _look(self._tree, self._virtual(path))
        if (now is None) != (after is None) or (now is not None and after is not None and not same(after, now)):
            return f"{printable(path)} was changed since"
        if before is not None and before.link is None and self._content(before) is None:
            return (
                f"{printable(path)} is too large to be stored"
                if before.sha256 is None
                else f"{printable(path)} is not stored"
            )
        return ""

    def _restore(self, changed: Sequence[tuple[str, Seen | None, Seen | None]]) -> None:
        """Writes the files as they were. If that fails, those that were written get back what they had."""
        done: list[tuple[str, Seen | None]] = []
        try:
            for path, before, after in sorted(changed, key=lambda change: change[1] is not None):  # removals first
                _put(self._tree, self._virtual(path), before, self._content(before))
                done.append((path, after))
        except OSError as error:
            for path, after in reversed(done):
                with suppress(OSError):
                    _put(self._tree, self._virtual(path), after, self._content(after))
            raise Refused(f"nothing was taken back: {error.filename or ''} {error.strerror}".strip()) from error

    @property
    def _tree(self) -> Tree:
        return Tree([Mount(self._mount.host, self._mount.virtual, writable=True)])

    def _virtual(self, path: str) -> str:
        return f"{self._mount.virtual}/{path}"


class _Scan:
    """A scan of a folder."""

    def __init__(self, mount: Mount, last: Snapshot, objects: Path) -> None:
        self._mount, self._last, self._objects = mount, last, objects
        self._files: dict[str, Seen] = {}
        self._skipped: list[str] = []
        self._room: int | None = None

    def run(self, until: int) -> Snapshot:
        at, deadline = time.time_ns(), time.monotonic() + SECONDS
        complete = self._walk(deadline)
        return Snapshot(at, self._files, sorted(self._skipped)[:MOST_NAMED], not complete, until)

    def _walk(self, deadline: float) -> bool:
        """Looks at all files. Returns whether it came to the end."""
        rules = self._mount.rules
        for where, folders, names, fd in os.fwalk(self._mount.host, follow_symlinks=False):
            inside = os.path.relpath(where, self._mount.host)
            parts = () if inside == "." else tuple(inside.split("/"))
            links = [name for name in folders if _is_link(name, fd)]
            hidden = {n for n in (*folders, *names) if rules is not None and rules.hidden((*parts, n))}
            self._skipped += [
                printable("/".join((*parts, name))) for name in folders if name in NOT_SCANNED and not parts
            ]
            folders[:] = sorted(n for n in folders if n not in NOT_SCANNED and n not in hidden and n not in links)
            for name in sorted((*names, *links)):
                if len(self._files) >= MAX_SCANNED or time.monotonic() > deadline:
                    return False
                if name not in hidden and len(path := "/".join((*parts, name))) < MAX_PATH:
                    with suppress(OSError):
                        self._see(fd, name, path)
        return True

    def _see(self, directory: int, name: str, path: str) -> None:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        last, mode = self._last.files.get(path), stat.S_IMODE(info.st_mode)
        settled = info.st_ctime_ns < self._last.at - CLOCK
        if stat.S_ISLNK(info.st_mode):
            self._files[path] = Seen(0, None, info.st_ctime_ns, os.readlink(name, dir_fd=directory), mode)
        elif not stat.S_ISREG(info.st_mode):
            return
        elif last is not None and settled and (last.size, last.changed) == (info.st_size, info.st_ctime_ns):
            self._files[path] = last
        else:
            sha256 = self._store(directory, name) if info.st_size <= MAX_CONTENT else None
            self._files[path] = Seen(info.st_size, sha256, info.st_ctime_ns, None, mode)

    def _store(self, directory: int, name: str) -> str:
        """Stores the content of a file, if there is room. Returns its hash."""
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        with open(fd, "rb") as file:
            content = file.read(MAX_CONTENT + 1)
        sha256 = hashlib.sha256(content).hexdigest()
        place = self._objects / sha256
        if not place.exists() and len(content) <= self._left():
            draft = place.with_suffix(".part")
            draft.write_bytes(content)
            draft.replace(place)
            self._room = self._left() - len(content)
        return sha256

    def _left(self) -> int:
        """Returns the bytes that may still be stored."""
        if self._room is None:
            with os.scandir(self._objects) as entries:
                self._room = STORED_BYTES - sum(entry.stat().st_size for entry in entries)
        return self._room


def _changed(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, Seen | None, Seen | None]]:
    """Yields the paths that differ, with their files before and after, but for those of `_changed_later`."""
    for path in sorted({*before.files, *after.files}):
        old, new = before.files.get(path), after.files.get(path)
        if new is None:
            if not after.truncated:
                yield path, old, None
        elif old is None:
            if new.changed <= after.until and (not before.truncated or new.changed >= before.at - CLOCK):
                yield path, None, new
        elif new.changed <= after.until and not (same(old, new) and old.mode == new.mode):
            yield path, old, new


def _changed_later(before: Snapshot, after: Snapshot) -> Sequence[str]:
    """Returns the paths that differ and were last changed after the run: what it did to them is not known."""
    return [
        path
        for path, new in sorted(after.files.items())
        if new.changed > after.until
        and ((old := before.files.get(path)) is None or not (same(old, new) and old.mode == new.mode))
    ]


def _look(tree: Tree, path: str) -> Seen | None:
    """Returns a file as it is now; None if there is none."""
    with suppress(FileNotFoundError, NotADirectoryError), _unfollowed(tree, path) as (directory, name):
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(info.st_mode):
            return Seen(0, None, info.st_ctime_ns, os.readlink(name, dir_fd=directory))
        if not stat.S_ISREG(info.st_mode):
            return Seen(-1)
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        with open(fd, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest() if info.st_size <= MAX_CONTENT else None
        return Seen(info.st_size, sha256, info.st_ctime_ns, None, stat.S_IMODE(info.st_mode))
    return None


def _put(tree: Tree, path: str, seen: Seen | None, content: bytes | None) -> None:
    """Makes a file what it was; None: there was none."""
    with _unfollowed(tree, path, create=seen is not None) as (directory, name):
        if seen is None:
            return os.unlink(name, dir_fd=directory)
        draft = f".{secrets.token_hex(8)}.part"
        try:
            if seen.link is not None:
                os.symlink(seen.link, draft, dir_fd=directory)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(draft, flags, 0o600, dir_fd=directory), "wb") as file:
                    file.write(content or b"")
                    os.fchmod(file.fileno(), seen.mode)
            os.replace(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with suppress(OSError):
                os.unlink(draft, dir_fd=directory)
            raise


@contextmanager
def _unfollowed(tree: Tree, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the directory of a path and its last name, which may be that of a link. Raises `OSError`."""
    parent, _, name = path.rpartition("/")
    try:
        with tree.walk(f"{parent}/.", create=create) as place:
            if place.fd is None:
                raise FileNotFoundError(parent)
            if create and place.name != ".":
                with suppress(FileExistsError):
                    os.mkdir(place.name, 0o755, dir_fd=place.fd)
            fd = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.fd)
    except Invalid as error:
        raise FileNotFoundError(str(error)) from None
    try:
        yield fd, name
    finally:
        os.close(fd)


def forget(home: Path, user: str, thread: str) -> None:
    """Removes the snapshots of the folders that a thread worked on, with the contents. Blocks."""
    for place in (home / "users" / user / "folders").glob(f"*/before.{thread}.*"):
        shutil.rmtree(place.parent, ignore_errors=True)


def _is_link(name: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return True
