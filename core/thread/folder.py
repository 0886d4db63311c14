"""A thread's folder on disk as people reach it: files appear all at once, under plain names, and never through links.

The agent works in the same directories while we do, so they are opened once and named by descriptor; a file in the
making lies in `drafts`, which no sandbox sees, and gets its name when it is whole.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from core.errors import Invalid, NotFound, Unavailable
from core.events import (
    FileConverted,
    FileRejected,
    FileRemoved,
    FileUploaded,
    Record,
    ThreadCreated,
    ThreadErased,
    ThreadPruned,
)
from core.log.repository import Repository
from core.log.store import EventLog
from core.paths import ROOTS, USER_DATA, Mount, Tree, make_thread, thread_root
from core.thread.threads import KIND

STALE_SECONDS = 24 * 3600
"""A draft that nobody has written to for so long belongs to a process that died."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
UPLOAD_BYTES = 512
"""What an upload that the log knows of counts for in memory."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Folder:
    """One thread's folder. The methods block: run them in a thread."""

    def __init__(self, home: Path, user: str, thread: str) -> None:
        self.root = thread_root(home, user, thread)

    def tree(self) -> Tree:
        """The three directories by their virtual paths; what lies elsewhere cannot be reached."""
        return Tree([Mount(self.root / "user-data" / name, f"{USER_DATA}/{name}", writable=True) for name in ROOTS])

    def make(self) -> None:
        """Make the three directories. Raises `NotFound` if something else is in the place of one."""
        try:
            make_thread(self.root)
        except (FileExistsError, NotADirectoryError):
            raise NotFound(f"{USER_DATA}: not a directory") from None

    @contextmanager
    def open(self, name: str) -> Iterator[int]:
        """One of the three directories. Raises `NotFound` if the thread has no files."""
        try:
            fd = os.open(self.root / "user-data" / name, _DIRECTORY)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            raise NotFound(f"{USER_DATA}/{name}: not found") from None
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One at a time, across processes: for a decision about what is there, not for the work before it."""
        fd = os.open(self.root / "uploads.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def draft(self) -> Draft:
        """A new file in the making. Drafts of processes that died are swept away."""
        drafts = self.root / "drafts"
        drafts.mkdir(mode=0o700, exist_ok=True)
        oldest = time.time() - STALE_SECONDS
        for entry in os.scandir(drafts):
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
        return Draft(drafts)


class Draft:
    """A file in the making. `close` removes it unless it was published."""

    def __init__(self, drafts: Path) -> None:
        self._path: Path | None = drafts / secrets.token_hex(8)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._file = open(fd, "r+b", buffering=0)  # noqa: SIM115  closed by `close`, or with the last reference
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def fd(self) -> int:
        return self._file.fileno()

    @property
    def sha256(self) -> str:
        """Of what was written with `write`."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        self.size += len(data)
        view = memoryview(data)
        with _room():
            while view:
                view = view[self._file.write(view) :]

    def seal(self) -> None:
        """Have it on disk before it gets its name."""
        with _room():
            os.fsync(self.fd)

    def publish(self, directory: int, name: str) -> None:
        """Give it its name, in place of a plain file of that name. Raises `Invalid` for anything else there."""
        plain(directory, name)
        assert self._path is not None
        with _room():
            try:
                os.rename(self._path, name, dst_dir_fd=directory)
            except IsADirectoryError:
                raise Invalid(f"{name}: is not a regular file") from None
            self._path = None
            os.fsync(directory)

    def publish_new(self, directory: int, name: str) -> bool:
        """Give it its name if nothing has that name."""
        assert self._path is not None
        try:
            with _room():
                os.link(self._path, name, dst_dir_fd=directory, follow_symlinks=False)
        except FileExistsError:
            return False
        self._path.unlink()
        self._path = None
        os.fsync(directory)
        return True

    def close(self) -> None:
        self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def plain(directory: int, name: str) -> os.stat_result | None:
    """What is there under a name, if it may be replaced: a regular file with no second name, or nothing.

    Raises `Invalid` for everything else: what is written to that could land somewhere else.
    """
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        raise Invalid(f"{name}: is a symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise Invalid(f"{name}: is not a regular file")
    if found.st_nlink > 1:
        raise Invalid(f"{name}: is a hard link")
    return found


def open_plain(directory: int, name: str) -> int:
    """A regular file to read. Raises `NotFound`, `Invalid` for a link or anything else."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        raise NotFound(f"{name}: not found") from None
    except OSError as error:
        raise Invalid(f"{name}: {os.strerror(error.errno or 0).lower()}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Invalid(f"{name}: is not a regular file")
    return fd


def digest(fd: int) -> str:
    """SHA-256 of an open file, from its beginning; its position is left at the beginning."""
    found = hashlib.sha256()
    os.lseek(fd, 0, os.SEEK_SET)
    while data := os.read(fd, 1 << 20):
        found.update(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return found.hexdigest()


class Upload(NamedTuple):
    """What the log says of one file in the uploads."""

    sha256: str
    markdown: str | None = None
    """The file with its text."""
    of: str = ""
    """SHA-256 of the content that `markdown`, `pages` and `reason` are about."""
    pages: int | None = None
    reason: str | None = None
    """Why it could not be converted."""

    @property
    def settled(self) -> bool:
        """Whether its present content was converted or refused."""
        return self.of == self.sha256


class KnownUploads(NamedTuple):
    """The uploads of a thread by name, and whether there is such a thread."""

    files: Mapping[str, Upload] = {}
    exists: bool = False


def fold_uploads(records: Iterable[Record], state: KnownUploads) -> KnownUploads:
    """The uploads after these events of a thread: pure and total."""
    files, exists = dict(state.files), state.exists
    for record in records:
        match record.event:
            case ThreadCreated() | ThreadPruned():
                files, exists = {}, True
            case ThreadErased():
                files, exists = {}, False
            case FileUploaded(name=name, sha256=sha256):
                _disown(files, name)
                files[name] = files.get(name, Upload(sha256))._replace(sha256=sha256)
            case FileConverted(name=name, markdown=markdown, source_sha256=of, pages=pages):
                before = files.get(name, Upload(of))
                files[name] = Upload(before.sha256, markdown, of, pages)
            case FileRejected(name=name, reason=reason, source_sha256=of):
                files[name] = Upload(files.get(name, Upload(of)).sha256, None, of, None, reason)
            case FileRemoved(name=name):
                files.pop(name, None)
                _disown(files, name)
    return KnownUploads(files, exists)


def uploads(log: EventLog) -> Repository[KnownUploads]:
    """The uploads of threads, by thread."""

    def weigh(state: KnownUploads) -> int:
        return UPLOAD_BYTES * (1 + len(state.files))

    return Repository(log, KIND, fold_uploads, KnownUploads(), weigh=weigh)


def _disown(found: dict[str, Upload], name: str) -> None:
    """A file of that name is a person's own now, or gone: no text of another file any more."""
    for other, upload in found.items():
        if upload.markdown == name:
            found[other] = Upload(upload.sha256)


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise Unavailable("no space left on the server's disk") from None
        raise
