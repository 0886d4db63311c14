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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from core.files.paths import ROOTS, USER_DATA, Mount, Tree, make_thread, owner_within, thread_root
from core.log.kinds import KIND
from core.log.repository import Repository
from core.log.store import EventLog

STALE_SECONDS = 24 * 3600
"""A draft that nobody has written to for so long belongs to a process that died."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
UPLOAD_BYTES = 512
"""Estimated memory of one upload, in bytes."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Text(NamedTuple):
    """A Markdown file that was made of a document. `sha256` is that of its content; None: any."""

    name: str
    sha256: str | None


class Folder:
    """One thread's folder. The methods block: run them in a thread."""

    def __init__(self, home: Path, user: str, thread: str) -> None:
        self.root = thread_root(home, user, thread)

    def tree(self, extra: Sequence[Mount] = ()) -> Tree:
        """Returns the three directories, and the extra mounts, by their virtual paths; what lies elsewhere cannot be
        reached.
        """
        own = [Mount(self.root / "user-data" / name, f"{USER_DATA}/{name}", writable=True) for name in ROOTS]
        return Tree([*own, *extra])

    def make(self) -> None:
        """Makes the three directories. Raises `NotFound` if something else is in the place of one."""
        try:
            make_thread(self.root)
        except (FileExistsError, NotADirectoryError):
            raise NotFound(f"{USER_DATA}: not a directory") from None

    @contextmanager
    def open(self, name: str) -> Iterator[int]:
        """Opens one of the three directories. Raises `NotFound` if the thread has no files."""
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
        """Locks the uploads across processes: for a decision about the names there, not for the work before it."""
        fd = os.open(self.root / "uploads.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def versions(self, names: Iterable[str]) -> dict[str, Version]:
        """Returns the versions of those of these uploads that are there. Costs a look at each: no thread is needed."""
        with suppress(NotFound), self.open("uploads") as directory:
            return {name: there for name in names if (there := version(directory, name)) is not None}
        return {}

    def remove_text(self, text: Text) -> None:
        """Removes a Markdown file that was made, if it is there and nobody has put another one in its place. Raises
        `OSError` if it cannot be removed.
        """
        with suppress(NotFound), self.open("uploads") as directory, self.exclusive():
            if is_text(directory, text):
                os.unlink(text.name, dir_fd=directory)

    def draft(self) -> Draft:
        """Creates a draft. Removes drafts of processes that died."""
        drafts = self.root / "drafts"
        drafts.mkdir(mode=0o700, exist_ok=True)
        oldest = time.time() - STALE_SECONDS
        for entry in os.scandir(drafts):
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
        return Draft(drafts)


class Draft:
    """A file being written. `close` removes it unless it was published. `name`: what it has until then."""

    def __init__(self, drafts: Path) -> None:
        self.name = secrets.token_hex(8)
        self._path: Path | None = drafts / self.name
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._file = open(fd, "r+b", buffering=0)  # noqa: SIM115  closed by `close`, or with the last reference
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def fd(self) -> int:
        return self._file.fileno()

    @property
    def sha256(self) -> str:
        """SHA-256 of what was written with `write`."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        self.size += len(data)
        view = memoryview(data)
        with _room():
            while view:
                view = view[self._file.write(view) :]

    def seal(self) -> None:
        """Flushes the draft to disk; to be called before it gets its name."""
        with _room():
            os.fsync(self.fd)

    def publish(self, directory: int, name: str) -> None:
        """Gives the draft its name, replacing a plain file. Raises `Invalid` for anything else of that name."""
        plain(directory, name)
        assert self._path is not None
        with _room():
            self._hand_over(directory)
            try:
                os.rename(self._path, name, dst_dir_fd=directory)
            except IsADirectoryError:
                raise Invalid(f"{name}: is not a regular file") from None
            self._path = None
            os.fsync(directory)

    def publish_new(self, directory: int, name: str) -> bool:
        """Gives the draft its name if the name is free. Returns whether it was."""
        assert self._path is not None
        try:
            with _room():
                self._hand_over(directory)
                os.link(self._path, name, dst_dir_fd=directory, follow_symlinks=False)
        except FileExistsError:
            return False
        self._path.unlink()
        self._path = None
        os.fsync(directory)
        return True

    def _hand_over(self, directory: int) -> None:
        """Gives the draft to the owner of its directory, who may be the user of a container."""
        if (owner := owner_within(directory)) is not None:
            os.fchown(self.fd, *owner)

    def close(self) -> None:
        self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def plain(directory: int, name: str) -> os.stat_result | None:
    """Returns the status of a regular file with one name, None if there is no file.

    Raises `Invalid` for everything else: a write to it could end up elsewhere.
    """
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise Invalid(f"{name}: is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise Invalid(f"{name}: is not a regular file")
    if status.st_nlink > 1:
        raise Invalid(f"{name}: is a hard link")
    return status


class Version(NamedTuple):
    """The content of a file at one time: it has another one once it was replaced or written to."""

    device: int
    inode: int
    changed: int
    size: int


def version(directory: int, name: str) -> Version | None:
    """Returns the version of the regular file that lies under a name, None if there is none."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Version(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def open_plain(directory: int, name: str) -> int:
    """Opens a regular file for reading. Raises `NotFound`, `Invalid` for a link or anything else."""
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
    """Returns the SHA-256 of an open file. Its position is left at the beginning."""
    hasher = hashlib.sha256()
    os.lseek(fd, 0, os.SEEK_SET)
    while data := os.read(fd, 1 << 20):
        hasher.update(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return hasher.hexdigest()


def is_text(directory: int, text: Text) -> bool:
    """Tells whether a Markdown file is there as it was made."""
    try:
        fd = open_plain(directory, text.name)
    except (Invalid, NotFound):
        return False
    try:
        return text.sha256 is None or digest(fd) == text.sha256
    finally:
        os.close(fd)


class Upload(NamedTuple):
    """One file of the uploads as recorded in the log."""

    sha256: str
    text: Text | None = None
    of: str = ""
    """SHA-256 of the content that `text`, `pages` and `reason` are about."""
    pages: int | None = None
    reason: str | None = None
    """Why it could not be converted."""

    @property
    def settled(self) -> bool:
        """Tells if its present content was converted or refused."""
        return self.of == self.sha256


class KnownUploads(NamedTuple):
    """The uploads of a thread by name. `exists`: the thread is there."""

    files: Mapping[str, Upload] = {}
    exists: bool = False


def fold_uploads(records: Iterable[Record], state: KnownUploads) -> KnownUploads:
    """Folds events of a thread into its uploads: pure and total."""
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
            case FileConverted(name=name, markdown=markdown, source_sha256=of, pages=pages, markdown_sha256=sha256):
                before = files.get(name, Upload(of))
                files[name] = Upload(before.sha256, Text(markdown, sha256), of, pages)
            case FileRejected(name=name, reason=reason, source_sha256=of):
                files[name] = Upload(files.get(name, Upload(of)).sha256, None, of, None, reason)
            case FileRemoved(name=name):
                files.pop(name, None)
                _disown(files, name)
    return KnownUploads(files, exists)


def uploads(log: EventLog) -> Repository[KnownUploads]:
    """Returns the repository of uploads, by thread."""

    def weigh(state: KnownUploads) -> int:
        return UPLOAD_BYTES * (1 + len(state.files))

    return Repository(log, KIND, fold_uploads, KnownUploads(), weigh=weigh)


def _disown(files: dict[str, Upload], name: str) -> None:
    """Unlinks a file that a person replaced or removed from the file whose text it was."""
    for other, upload in files.items():
        if upload.text is not None and upload.text.name == name:
            files[other] = Upload(upload.sha256)


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise Unavailable("no space left on the server's disk") from None
        raise
