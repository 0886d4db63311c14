"""Scans the files of a thread on this machine's disk, and caches their texts to compare them later."""

from __future__ import annotations

import fcntl
import fnmatch
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from anyio import to_thread

from adapters import restoring
from adapters.differences import Differences, is_binary, same
from adapters.project import Project, forget
from adapters.sandboxes.files import folders, search
from adapters.sandboxes.files.search import printable
from core.config.redaction import redactor
from core.errors import Invalid, NotFound
from core.files.folder import Folder, digest, open_plain
from core.files.paths import ROOTS, USER_DATA, Mount
from core.files.workspace import (
    ANYTHING,
    MAX_DIFF_BYTES,
    MAX_FILES,
    MAX_SCANNED,
    Entry,
    FileChange,
    Scan,
    Scanned,
)

SECONDS = 10.0
"""Timeout of a scan, which leaves out the rest of the files then."""
MAX_HASHED = 64 << 20
"""Limit of bytes of a file whose content is compared; larger files are compared by size and time."""
MAX_DEPTH = 32
KEPT_BYTES = 16 << 20
"""Limit of the cached texts of a thread."""
CLOCK = 20_000_000
"""Nanoseconds by which the time of a file may lag behind that of an event: a tick of the kernel, and a margin."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_SECRETS = """
    .env* .netrc .npmrc .pypirc .git-credentials *.pem *.key *.p12 *.pfx *.keystore id_rsa* id_ed25519* id_ecdsa*
    *secret* *credential* *password* *token*
"""
_SENSITIVE = re.compile("|".join(map(fnmatch.translate, _SECRETS.split())), re.IGNORECASE)
_CACHES = frozenset(
    ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".tool-results")
)
SKIPPED = search.SKIPPED | folders.SKIPPED
"""Directories of version control, of libraries, and caches, whose files are not looked at."""
MOST_NAMED = 20
"""Limit of the skipped directories that are named."""
_BUILT = frozenset(
    ["build", "dist", "target", "out", "coverage", "htmlcov", "logs", ".next", ".nuxt", ".output", ".terraform"]
)
"""Directories of what programs make: looked at last, so that they do not take the place of what people write."""


class LocalWorkspace:
    def __init__(self, home: Path) -> None:
        self._home = home

    async def scan(
        self, user: str, thread: str, last: Mapping[str, Entry], before: Mapping[str, Entry], since: float, until: float
    ) -> Scan:
        folder = Folder(self._home, user, thread)
        window = range(int(since * 1e9) - CLOCK, int(until * 1e9) + CLOCK)
        return await to_thread.run_sync(lambda: _Look(folder, last, before, window).scan())

    async def before(self, user: str, thread: str, run: str, folder: Mount) -> None:
        await to_thread.run_sync(Project(self._home, user, folder).begin, thread, run)

    async def after(self, user: str, thread: str, run: str, folder: Mount, until: float) -> Scanned:
        return await to_thread.run_sync(Project(self._home, user, folder).end, thread, run, until)

    async def undo(
        self, user: str, thread: str, run: str, folder: Mount | None, changes: Sequence[FileChange]
    ) -> Sequence[str]:
        if folder is not None:
            return await to_thread.run_sync(Project(self._home, user, folder).undo, thread, run)
        return await to_thread.run_sync(restoring.take_back, Folder(self._home, user, thread), changes)

    async def forget(self, user: str, thread: str) -> None:
        await to_thread.run_sync(forget, self._home, user, thread)


@dataclass(slots=True)
class _Look:
    """A scan. Blocks."""

    folder: Folder
    last: Mapping[str, Entry]
    before: Mapping[str, Entry]
    window: range
    """Nanoseconds of the run."""
    files: dict[str, Entry] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    """Texts read by this scan, by SHA-256."""
    skipped: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    """Directories of what programs make, which are walked after all others."""
    changed_later: list[str] = field(default_factory=list)
    """Files that differ, but were last changed after the end of the run."""
    truncated: bool = False
    deadline: float = field(default_factory=lambda: time.monotonic() + SECONDS)

    def scan(self) -> Scan:
        for root in ROOTS:
            with suppress(NotFound), self.folder.open(root) as directory:
                self._walk(directory, f"{USER_DATA}/{root}")
        for path in self.later:
            with suppress(OSError, Invalid, NotFound), self.folder.tree().open(path, _DIRECTORY) as directory:
                self._walk(directory, path, within=True)
        updated = {path: entry for path, entry in self.files.items() if self.last.get(path) != entry}
        removed = [] if self.truncated else [path for path in self.last if path not in self.files]
        changes = sorted(self._changes(updated), key=lambda change: (_is_built(change.path), change.path))
        self._keep()
        truncated = self.truncated or len(changes) > MAX_FILES
        skipped, later = sorted(self.skipped)[:MOST_NAMED], sorted(self.changed_later)[:MOST_NAMED]
        return Scan(updated, removed, changes[:MAX_FILES], truncated, skipped, later)

    # ── scanning ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _walk(self, directory: int, virtual: str, *, within: bool = False) -> None:
        """Looks at a directory and those below. `within`: also at those of what programs make."""
        for where, directories, names, fd in os.fwalk(".", dir_fd=directory, follow_symlinks=False):
            inside = "" if where == "." else where.removeprefix("./") + "/"
            links = [name for name in directories if _is_link(name, fd)]
            deep = inside.count("/") >= MAX_DEPTH
            self.truncated |= deep and bool(directories)
            below = [] if deep else [name for name in directories if name not in links]
            directories[:] = [name for name in below if self._enters(name, virtual, inside, within)]
            for name in (*names, *links):
                if len(self.files) >= MAX_SCANNED or time.monotonic() > self.deadline:
                    self.truncated = True
                    return
                with suppress(OSError, Invalid, NotFound):
                    self._see(fd, name, printable(f"{virtual}/{inside}{name}"))

    def _enters(self, name: str, virtual: str, inside: str, within: bool) -> bool:
        """Tells whether a walk enters a directory now, and notes the others."""
        if name in SKIPPED:
            if not inside and name not in _CACHES:
                self.skipped.append(printable(f"{virtual}/{name}"))
            return False
        if name in _BUILT and not within:
            self.later.append(f"{virtual}/{inside}{name}")
            return False
        return True

    def _see(self, directory: int, name: str, path: str) -> None:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        last = self.last.get(path)
        if stat.S_ISLNK(info.st_mode):
            self.files[path] = Entry(0, None, info.st_ctime_ns, printable(os.readlink(name, dir_fd=directory)))
        elif not stat.S_ISREG(info.st_mode):
            return
        elif last is not None and (last.size, last.changed) == (info.st_size, info.st_ctime_ns):
            self.files[path] = last
        else:
            sha256 = self._read(directory, name, path) if info.st_size <= MAX_HASHED else None
            self.files[path] = Entry(info.st_size, sha256, info.st_ctime_ns)

    def _read(self, directory: int, name: str, path: str) -> str:
        fd = open_plain(directory, name)
        try:
            sha256 = digest(fd)
            if os.fstat(fd).st_size <= MAX_DIFF_BYTES and not _sensitive(path):
                self.texts[sha256] = os.pread(fd, MAX_DIFF_BYTES, 0)
            return sha256
        finally:
            os.close(fd)

    # ── comparing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _changes(self, updated: Mapping[str, Entry]) -> Iterator[FileChange]:
        differences = Differences(self._text, _sensitive, self.deadline)
        for path, after in updated.items():
            before = self.before.get(path)
            if before is ANYTHING or (before is not None and same(before, after)):
                continue
            if after.changed >= self.window.stop:
                self.changed_later.append(path)
            elif after.changed in self.window:
                yield differences.change(path, before, after)
        for path, before in self.before.items():
            deleted = path not in self.files and not self.truncated and SKIPPED.isdisjoint(path.split("/")[:-1])
            if deleted and before is not ANYTHING:
                yield differences.change(path, before, None)

    # ── texts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _text(self, entry: Entry | None) -> bytes | None:
        """Returns the content of a file at that time, if it is cached."""
        if entry is None or entry.sha256 is None:
            return None
        if (text := self.texts.get(entry.sha256)) is not None:
            return text
        with suppress(OSError):
            return (self._shelf / entry.sha256).read_bytes()
        return None

    def _keep(self) -> None:
        """Caches the texts of the current files, and no others."""
        if not self.folder.root.is_dir():
            return
        self._shelf.mkdir(mode=0o700, exist_ok=True)
        with _alone(self._shelf):
            current = {entry.sha256 for entry in self.files.values()}
            room = KEPT_BYTES
            for stored in list(self._shelf.iterdir()):
                if stored.name not in current:
                    stored.unlink(missing_ok=True)
                else:
                    room -= stored.stat().st_size
            for sha256, text in self.texts.items():
                place = self._shelf / sha256
                if len(text) <= room and not is_binary(text) and not place.exists():
                    room -= len(text)
                    draft = place.with_suffix(".part")
                    draft.write_bytes(redactor.data(text))
                    draft.replace(place)

    @property
    def _shelf(self) -> Path:
        return self.folder.root / "texts"


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Locks a directory across processes: a scan takes the drafts of another for those of a crash."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _is_built(path: str) -> bool:
    return not _BUILT.isdisjoint(path.split("/")[:-1])


def _sensitive(path: str) -> bool:
    return _SENSITIVE.match(path.rpartition("/")[2]) is not None


def _is_link(name: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return True
