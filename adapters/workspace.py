"""Scans the files of a thread on this machine's disk, and caches their texts to compare them later."""

from __future__ import annotations

import difflib
import fcntl
import fnmatch
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from anyio import to_thread

from adapters.sandboxes.search import BINARY_PROBE, ignored, shown
from core.config.redaction import redactor
from core.errors import Invalid, NotFound
from core.paths import ROOTS, USER_DATA
from core.thread.folder import Folder, digest, open_plain
from core.thread.workspace import (
    ANYTHING,
    MAX_DIFF_BYTES,
    MAX_FILES,
    MAX_SCANNED,
    MAX_TOTAL_DIFF_BYTES,
    Entry,
    FileChange,
    Reason,
    Scan,
    Status,
)

SECONDS = 10.0
"""Timeout of a scan, which leaves out the rest of the files then."""
MAX_HASHED = 64 << 20
"""Limit of bytes of a file whose content is compared; larger files are compared by size and time."""
MAX_LINES = 4000
"""Limit of lines of a text that is compared: the time grows with their square."""
MAX_DEPTH = 32
KEPT_BYTES = 16 << 20
"""Limit of the cached texts of a thread."""
CLOCK = 20_000_000
"""Nanoseconds by which the time of a file may lag behind that of an event: a tick of the kernel, and a margin."""
_SECRETS = """
    .env* .netrc .npmrc .pypirc .git-credentials *.pem *.key *.p12 *.pfx *.keystore id_rsa* id_ed25519* id_ecdsa*
    *secret* *credential* *password* *token*
"""
_SENSITIVE = re.compile("|".join(map(fnmatch.translate, _SECRETS.split())), re.IGNORECASE)


class LocalWorkspace:
    def __init__(self, home: Path) -> None:
        self._home = home

    async def scan(
        self, user: str, thread: str, last: Mapping[str, Entry], before: Mapping[str, Entry], since: float, until: float
    ) -> Scan:
        folder = Folder(self._home, user, thread)
        window = range(int(since * 1e9) - CLOCK, int(until * 1e9) + CLOCK)
        return await to_thread.run_sync(lambda: _Look(folder, last, before, window).scan())


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
    truncated: bool = False
    deadline: float = field(default_factory=lambda: time.monotonic() + SECONDS)
    diffed: int = 0

    def scan(self) -> Scan:
        for root in ROOTS:
            with suppress(NotFound), self.folder.open(root) as directory:
                self._walk(directory, f"{USER_DATA}/{root}")
        updated = {path: entry for path, entry in self.files.items() if self.last.get(path) != entry}
        removed = [] if self.truncated else [path for path in self.last if path not in self.files]
        changes = sorted(self._changes(updated), key=lambda change: change.path)
        self._keep()
        return Scan(updated, removed, changes[:MAX_FILES], self.truncated or len(changes) > MAX_FILES)

    # ── scanning ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _walk(self, directory: int, virtual: str) -> None:
        for where, folders, names, fd in os.fwalk(".", dir_fd=directory, follow_symlinks=False):
            inside = "" if where == "." else where.removeprefix("./") + "/"
            links = [name for name in folders if _is_link(name, fd)]
            deep = inside.count("/") >= MAX_DEPTH
            folders[:] = [] if deep else [name for name in folders if not ignored(name) and name not in links]
            for name in (*names, *links):
                if len(self.files) >= MAX_SCANNED or time.monotonic() > self.deadline:
                    self.truncated = True
                    return
                if not ignored(name):
                    with suppress(OSError, Invalid, NotFound):
                        self._see(fd, name, shown(f"{virtual}/{inside}{name}"))

    def _see(self, directory: int, name: str, path: str) -> None:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        last = self.last.get(path)
        if stat.S_ISLNK(info.st_mode):
            self.files[path] = Entry(0, None, info.st_ctime_ns, shown(os.readlink(name, dir_fd=directory)))
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
        for path, after in updated.items():
            before = self.before.get(path)
            if after.changed not in self.window or before is ANYTHING:
                continue
            if before is None or not _same(before, after):
                yield self._change(path, before, after)
        for path, before in self.before.items():
            deleted = path not in self.files and not self.truncated and not any(map(ignored, path.split("/")))
            if deleted and before is not ANYTHING:
                yield self._change(path, before, None)

    def _change(self, path: str, before: Entry | None, after: Entry | None) -> FileChange:
        link = next((entry.link for entry in (after, before) if entry is not None and entry.link is not None), None)
        status: Status = "modified" if before and after else "created" if after else "deleted"
        if after is not None and after.link is not None and (before is None or before.link is None):
            status = "symlink_created"
        old, new = self._text(before), self._text(after)
        binary = any(text is not None and _binary(text) for text in (old, new))
        reason = self._reason(path, link is not None, binary, before, after, old, new)
        diff, plus, minus = ("", 0, 0) if reason else self._diff(path, old or b"", new or b"")
        room = MAX_TOTAL_DIFF_BYTES - self.diffed
        cut = len(diff) > room
        self.diffed += min(len(diff), room)
        return FileChange(
            path=path,
            root=path.removeprefix(f"{USER_DATA}/").partition("/")[0],
            status=status,
            binary=binary,
            sensitive=_sensitive(path),
            size_before=before.size if before else None,
            size_after=after.size if after else None,
            sha256_before=before.sha256 if before else None,
            sha256_after=after.sha256 if after else None,
            diff=diff[:room],
            diff_truncated=cut,
            diff_unavailable_reason=reason,
            additions=plus,
            deletions=minus,
            symlink=link is not None,
            symlink_target_before=before.link if before else None,
            symlink_target_after=after.link if after else None,
        )

    def _reason(
        self,
        path: str,
        link: bool,
        binary: bool,
        before: Entry | None,
        after: Entry | None,
        old: bytes | None,
        new: bytes | None,
    ) -> Reason | None:
        if link:
            return "symlink"
        if _sensitive(path):
            return "sensitive"
        if binary:
            return "binary"
        if any(entry is not None and entry.size > MAX_DIFF_BYTES for entry in (before, after)):
            return "large"
        if any(text is not None and len(text.decode().splitlines()) > MAX_LINES for text in (old, new)):
            return "large"
        lost = (before is not None and old is None) or (after is not None and new is None)
        return "truncated" if lost or self.diffed >= MAX_TOTAL_DIFF_BYTES or time.monotonic() > self.deadline else None

    def _diff(self, path: str, old: bytes, new: bytes) -> tuple[str, int, int]:
        before, after = (redactor.data(text).decode().splitlines() for text in (old, new))  # as they are cached
        lines = list(difflib.unified_diff(before, after, f"a{path}", f"b{path}", lineterm=""))
        body = lines[2:]
        plus, minus = sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body)
        return "\n".join(lines), plus, minus

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
                if len(text) <= room and not _binary(text) and not place.exists():
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


def _same(before: Entry, after: Entry) -> bool:
    if before.sha256 is None or after.sha256 is None:
        return (before.size, before.link, before.changed) == (after.size, after.link, after.changed)
    return before.sha256 == after.sha256


def _binary(text: bytes) -> bool:
    if b"\0" in text[:BINARY_PROBE]:
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False


def _sensitive(path: str) -> bool:
    return _SENSITIVE.match(path.rpartition("/")[2]) is not None


def _is_link(name: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return True
