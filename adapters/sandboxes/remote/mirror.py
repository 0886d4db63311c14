"""Copies a thread's files between the server's disk and a machine that does not see it.

Theory of operation
===================

The folder on the server is what people see. The machine has a copy. The *base* is what both sides last agreed on: for
each path its kind, the digest of its content, and how each side's file system describes it (size, time of change,
inode). Only what a description tells as changed is looked at, and only other contents are transferred, all of one
direction in one archive. The base lies beside the machine's records, so that another worker goes on with it.

    push: what changed here since the base goes there, before a command starts and after a write of a file tool
    pull: what changed there comes here, after a command and, while one runs, before a file is read

Changed on both sides: the agent's command wins, and its result says so. Deleted on one side and changed on the other:
the change wins. What the machine sends is hostile: names are walked part by part without following links, only files,
folders and symbolic links are taken (links as text; `core.files.paths.Tree` reads them safely), and numbers and bytes
are bounded. Other mounts (skills, `sandbox.mounts`) are copied to the machine only.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from adapters.sandboxes.process.supervisor import publish
from core.errors import Unavailable
from core.files.paths import MAX_PART, MAX_PATH, ROOTS, USER_DATA, Mount
from core.ports.sandbox import MachineLost

MAX_FILES, MAX_BYTES = 200_000, 4 << 30
"""Limits where the quota of the thread has none."""
BLOCK = 1 << 18
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PREFIX = USER_DATA.removeprefix("/mnt/")


class Entry(msgspec.Struct, array_like=True):
    """A path of the base. Names are bytes: they need not be text."""

    kind: str
    """`f`, `d` or `l`."""
    digest: str
    here: tuple[int, ...]
    there: bytes


Base = dict[bytes, Entry]
Listing = dict[bytes, tuple[str, int, bytes]]
"""Kind, size and description of each path on the machine."""


class Copy:
    """Both sides of one thread. The methods block, and are called by one thread at a time."""

    def __init__(self, data: Path, records: Path, mounts: Sequence[Mount], max_files: int, max_bytes: int) -> None:
        self._data, self._state, self._mounts = data, records / "mirror", mounts
        self._max_files, self._max_bytes = max_files or MAX_FILES, max_bytes or MAX_BYTES
        self.work = records / "transfer"

    # ── to the machine ──────────────────────────────────────────────────────────────────────────────────────────────

    def outgoing(self) -> Path | None:
        """Returns an archive of what changed here, None if nothing did. `sent` is called when it has arrived."""
        base, self._draft = self._load(), {}
        changed: list[tuple[bytes, Path]] = []
        present: set[bytes] = set()
        for name, path, info in self._here():
            present.add(name)
            entry = base.get(name)
            described = _described(info)
            if entry is not None and entry.here == described:
                continue
            kind, digest = _content(path, info)
            if entry is None or (entry.kind, entry.digest) != (kind, digest) or kind == "f":
                changed.append((name, path))
            self._draft[name] = Entry(kind, digest, described, b"")
        gone = [name for name in base if name not in present]
        gone += [name for name, entry in self._draft.items() if name in base and base[name].kind != entry.kind]
        self._gone = gone
        return self._archive(changed, gone) if changed or gone else None

    def sent(self, listing: bytes) -> None:
        """Records that the archive has arrived; `listing` is what the machine then has."""
        base, there = self._load(), parsed(listing, self._max_files)
        for name in self._gone:
            base.pop(name, None)
        for name, entry in self._draft.items():
            entry.there = there.get(name.removeprefix(_PREFIX.encode() + b"/"), ("", 0, b""))[2]
            base[name] = entry
        self._save(base)

    def _here(self) -> Iterator[tuple[bytes, Path, os.stat_result]]:
        for root in ROOTS:
            folder = self._data / root
            yield f"{_PREFIX}/{root}".encode(), folder, os.stat(folder, follow_symlinks=False)
            yield from _entries(self._data / root, f"{_PREFIX}/{root}".encode())
        for mount in self._mounts:
            if not mount.virtual.startswith(USER_DATA + "/"):
                name = mount.virtual.removeprefix("/mnt/").encode()
                with contextlib.suppress(OSError):
                    info = os.stat(mount.host)
                    yield name, mount.host, info
                    if stat.S_ISDIR(info.st_mode):
                        yield from _entries(mount.host, name)

    def _archive(self, changed: Iterable[tuple[bytes, Path]], gone: Iterable[bytes]) -> Path:
        path = self.work / f"push-{secrets.token_hex(4)}.tar"
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as archive:
            names = b"".join(name + b"\0" for name in gone)
            member = tarfile.TarInfo("delete")
            member.size = len(names)
            archive.addfile(member, io.BytesIO(names))
            archive.addfile(_folder("tree"))
            for name, source in changed:
                with contextlib.suppress(OSError):  # deleted meanwhile
                    _add(archive, f"tree/{os.fsdecode(name)}", source)
        return path

    # ── from the machine ────────────────────────────────────────────────────────────────────────────────────────────

    def wanted(self, listing: bytes) -> tuple[bytes, list[str]]:
        """Returns the names (NUL after each) of what changed there, and what is left out and why."""
        base, self._there = self._load(), parsed(listing, self._max_files)
        changed = []
        for name, (kind, _, described) in self._there.items():
            entry = base.get(_full(name))
            if entry is None or entry.there != described:
                changed.append((name, kind))
        sizes = {name: self._there[name][1] for name, kind in changed if kind == "f"}
        free = self._max_bytes - sum(size for _, size, _ in self._there.values()) + sum(sizes.values())
        left_out = set()
        for name in sorted(sizes, key=sizes.__getitem__):
            free -= sizes[name]
            if free < 0:
                left_out.add(name)
        self._names = [name for name, _ in changed if name not in left_out]
        return b"".join(name + b"\0" for name in self._names), self._over(left_out)

    def _over(self, names: set[bytes]) -> list[str]:
        if not names:
            return []
        limit = f"over the limit of a thread's files, {self._max_bytes >> 20} MB (sandbox.max_thread_mb)"
        return [f"{len(names)} files were not copied to the server, as {_virtual_path(min(names))}: {limit}"]

    def received(self, archive: Path | None) -> list[str]:
        """Applies what the machine sent, and deletes what it deleted. Returns what somebody else had changed here."""
        base, notes = self._load(), list[str]()
        if archive is not None:
            try:
                with tarfile.open(archive, "r|", encoding="utf-8", errors="surrogateescape") as tar:
                    self._apply(tar, base, notes)
            except tarfile.TarError as error:
                raise Unavailable(f"the sandbox's machine sent a broken archive: {error}") from error
        known = set(self._there)
        for name in sorted((name for name in base if _own(name)), key=len, reverse=True):
            if name.removeprefix(_PREFIX.encode() + b"/") not in known:
                self._delete(name, base, notes)
        self._save(base)
        return notes

    def _apply(self, tar: tarfile.TarFile, base: Base, notes: list[str]) -> None:
        expected, total = set(self._names), 0
        for member in tar:
            name = os.fsencode(member.name).removeprefix(b"./").rstrip(b"/")
            kind = "f" if member.isreg() else "d" if member.isdir() else "l" if member.issym() else ""
            if name not in expected or not kind or not _plain(name):
                continue
            total += member.size
            if total > self._max_bytes:
                raise Unavailable(f"the sandbox's machine sends more than {self._max_bytes >> 20} MB")
            full, entry = _full(name), base.get(_full(name))
            if self._changed(full, entry):
                notes.append(
                    f"{_virtual_path(name)}: was changed by somebody else at the same time; the command's version stays"
                )
            with contextlib.suppress(OSError):
                digest = self._store(name, kind, member, tar)
                if info := self._stat(name):
                    base[full] = Entry(kind, digest, _described(info), self._there[name][2])

    def _changed(self, full: bytes, entry: Entry | None) -> bool:
        info = self._stat(full.removeprefix(_PREFIX.encode() + b"/"))
        if info is None or stat.S_ISDIR(info.st_mode):
            return False
        return entry is None or entry.here != _described(info)

    def _store(self, name: bytes, kind: str, member: tarfile.TarInfo, tar: tarfile.TarFile) -> str:
        parent, last = self._parent(name)
        try:
            if kind == "d":
                os.close(_folder_in(parent, last))
                return ""
            temporary = f".{secrets.token_hex(8)}.part"
            try:
                if kind == "l":
                    os.symlink(os.fsencode(member.linkname)[:MAX_PATH], temporary, dir_fd=parent)
                    digest = os.fsencode(member.linkname).hex()
                else:
                    source = tar.extractfile(member)
                    assert source is not None
                    digest = _write(parent, temporary, source, 0o700 & member.mode | 0o644 | member.mode & 0o111)
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    if stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
                        shutil.rmtree(last, dir_fd=parent)
                os.replace(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)
                return digest
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
        finally:
            os.close(parent)

    def _delete(self, full: bytes, base: Base, notes: list[str]) -> None:
        name = full.removeprefix(_PREFIX.encode() + b"/")
        entry = base[full]
        if name.decode(errors="replace") in ROOTS:
            return
        if entry.kind != "d" and self._changed(full, entry):
            del base[full]  # changed here: it is pushed again
            return
        with contextlib.suppress(OSError):
            parent, last = self._parent(name, create=False)
            try:
                os.rmdir(last, dir_fd=parent) if entry.kind == "d" else os.unlink(last, dir_fd=parent)
            finally:
                os.close(parent)
        del base[full]

    def _parent(self, name: bytes, *, create: bool = True) -> tuple[int, bytes]:
        """Opens the folder of a path, without following links. What is in the way of a folder is deleted."""
        *folders, last = name.split(b"/")
        fd = os.open(self._data, _DIRECTORY)
        for folder in folders:
            try:
                below = _folder_in(fd, folder) if create else os.open(folder, _DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd, last

    def _stat(self, name: bytes) -> os.stat_result | None:
        with contextlib.suppress(OSError):
            parent, last = self._parent(name, create=False)
            try:
                return os.stat(last, dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(parent)
        return None

    # ── the base ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _load(self) -> Base:
        self.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return msgspec.msgpack.decode(self._state.read_bytes(), type=Base)
        except FileNotFoundError:
            return {}

    def _save(self, base: Base) -> None:
        publish(self._state, msgspec.msgpack.encode(base))


def parsed(listing: bytes, most: int) -> Listing:
    """Returns the entries of a listing (`agent.sh`, list) below the three folders. Raises `Unavailable`."""
    entries: Listing = {}
    for line in listing.split(b"\0"):
        kind, _, rest = line.partition(b" ")
        fields = rest.split(b" ", 4)
        if len(fields) != 5 or kind not in (b"f", b"d", b"l") or not fields[0].isdigit():
            continue
        size, changed, inode, mode, name = fields
        if not _plain(name):
            continue
        described = mode if kind == b"d" else b" ".join((size, changed, inode, mode))
        entries[name] = (kind.decode(), int(size), described)
        if len(entries) > most:
            raise Unavailable(f"the sandbox has more than {most} files (sandbox.max_thread_files); they are not copied")
    if not all(root.encode() in entries for root in ROOTS):
        raise MachineLost("the sandbox's machine has lost the folders of the thread")
    return entries


def _plain(name: bytes) -> bool:
    parts = name.split(b"/")
    good = all(part not in (b"", b".", b"..") and len(part) <= MAX_PART for part in parts)
    return good and len(name) <= MAX_PATH and os.fsdecode(parts[0]) in ROOTS and len(parts) <= 200


def _full(name: bytes) -> bytes:
    return _PREFIX.encode() + b"/" + name


def _own(full: bytes) -> bool:
    return full.startswith(_PREFIX.encode() + b"/")


def _virtual_path(name: bytes) -> str:
    return f"{USER_DATA}/{name.decode(errors='replace')}"


def _entries(folder: Path, prefix: bytes) -> Iterator[tuple[bytes, Path, os.stat_result]]:
    """Yields the files, folders and links below a folder, a folder before what it holds. Links are not followed."""
    for path, folders, files, fd in os.fwalk(os.fsencode(folder), follow_symlinks=False):
        inside = prefix + path[len(os.fsencode(folder)) :]
        for name in [*folders, *files]:
            with contextlib.suppress(OSError):
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                draft = name.startswith(b".") and name.endswith(b".part")  # of a write that is under way
                if not draft and stat.S_IFMT(info.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                    yield inside + b"/" + name, Path(os.fsdecode(path)) / os.fsdecode(name), info


def _described(info: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(info.st_mode):
        return (stat.S_IFDIR,)
    return (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


def _content(path: Path, info: os.stat_result) -> tuple[str, str]:
    if stat.S_ISDIR(info.st_mode):
        return "d", ""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(info.st_mode):
            return "l", os.fsencode(os.readlink(path)).hex()
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return "f", hashlib.file_digest(file, "sha256").hexdigest()
    return "f", ""


def _folder(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    return member


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    info = os.lstat(path) if not path.is_dir() or path.is_symlink() else None
    if info is None:
        archive.addfile(_folder(name))
    elif stat.S_ISLNK(info.st_mode):
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        archive.addfile(member)
    else:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            member = tarfile.TarInfo(name)
            member.size, member.mode = os.fstat(file.fileno()).st_size, stat.S_IMODE(info.st_mode) & 0o777
            archive.addfile(member, file)


def _folder_in(parent: int, name: bytes) -> int:
    """Opens a folder, made if there is none, in place of a file or link of that name."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError:
        os.unlink(name, dir_fd=parent)
    os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


def _write(parent: int, name: str, source: IO[bytes], mode: int) -> str:
    digest = hashlib.sha256()
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    with open(fd, "wb") as file:
        while block := source.read(BLOCK):
            digest.update(block)
            file.write(block)
        os.fchmod(fd, mode & 0o777)
    return digest.hexdigest()
