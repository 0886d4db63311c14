"""The virtual paths of a thread, and the only way from them to files of the host.

The agent changes the tree while we walk it, so a path is never resolved first and opened later. We walk it part by
part on directory descriptors, follow no link by the kernel, and read each link ourselves as a *virtual* path: whatever
a link says, it can only lead to a place that could have been named directly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from core.errors import Invalid
from core.files.secret_names import Rules

log = structlog.get_logger("sika.paths")

USER_DATA = "/mnt/user-data"
WORKSPACE = f"{USER_DATA}/workspace"
OUTPUTS = f"{USER_DATA}/outputs"
ROOTS = ("workspace", "uploads", "outputs")
SKILLS = "/mnt/skills"
OWN_SKILLS = "user"
"""Name of the folder in `SKILLS` with the skills of the user."""
ACP = "/mnt/acp-workspace"
PROJECT = "/mnt/project"
"""Where a thread sees the folder of the person that it works on."""

HIDDEN = "{}: is hidden, because files of such names hold secrets; only the person can make it readable"

MAX_PATH = 4096
"""PATH_MAX of Linux."""
THREADS = "users/*/threads/*"
"""Pattern of the directories of threads in the data directory."""
MAX_PART = 255
"""NAME_MAX of Linux."""
MAX_LINKS = 40
"""MAXSYMLINKS of Linux; also bounds how often a walk can be sent back by a racing agent."""

_ID = re.compile(r"[A-Za-z0-9_-]+\Z")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mount:
    """A host directory under a virtual name."""

    host: Path
    virtual: str
    writable: bool = False
    rules: Rules | None = None
    """The rules for a folder of the person's: what is hidden, and what cannot be changed."""


def make_home(home: Path) -> None:
    """Creates the data directory if needed, and closes it to other users of the machine (0700).

    A volume of another owner cannot be closed: a warning is logged, and its entries that belong to this user are
    closed instead. Raises `Invalid` for a shared directory such as `/tmp`.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home_info = home.stat()
    if home_info.st_mode & stat.S_ISVTX:
        raise Invalid(f"data directory {home}: everybody writes there; use a directory of its own")
    try:
        if home_info.st_mode & 0o077:
            home.chmod(0o700)
    except OSError:
        log.warning(
            "other users of this machine can enter the data directory",
            home=str(home),
            mode=f"{stat.S_IMODE(home_info.st_mode):04o}",
            owner=home_info.st_uid,
            fix=f"`chown {os.geteuid()} {home}` (of a Docker volume: as root, once), or `chmod 700` by its owner",
        )
    for entry in os.scandir(home):
        info = entry.stat(follow_symlinks=False)
        if info.st_uid == os.geteuid() and info.st_mode & 0o077 and not entry.is_symlink():
            os.chmod(entry.path, stat.S_IMODE(info.st_mode) & 0o700)


def private_file(path: Path) -> None:
    """Creates the file if needed, and closes it to all but its owner (0600)."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)


def thread_root(home: Path, user: str, thread: str) -> Path:
    """Returns a thread's host directory. Raises `Invalid` for ids that are no plain names."""
    for label, value in (("user", user), ("thread", thread)):
        if not _ID.match(value) or len(value) > MAX_PART:
            raise Invalid(f"{label}: {value[:80]!r} is not an id (letters, digits, '_' and '-')")
    return home / "users" / user / "threads" / thread


def make_thread(root: Path) -> None:
    """Creates the directories of a thread. 0700: only the server's own user needs them."""
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o700)
    (root.parent.parent / "skills").mkdir(mode=0o700, exist_ok=True)
    for name in ROOTS:
        (root / "user-data" / name).mkdir(parents=True, exist_ok=True)


def reopen(root: Path) -> None:
    """Gives back the rights on the folders of a thread, which commands can take from all later ones. Blocks."""
    for name in ROOTS:
        make_accessible(root / "user-data" / name)


def make_accessible(directory: Path) -> None:
    """Lets the owner, this process, read and change a directory, if it is one. Never follows a link. Blocks."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_DIRECTORY)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            if mode & 0o700 != 0o700:
                os.chmod(f"/proc/self/fd/{descriptor}", mode | 0o700)
        finally:
            os.close(descriptor)


def mounts_of(root: Path, skills: Mapping[str, Path] | None, extra: Sequence[Mount]) -> list[Mount]:
    """Returns the mounts of a thread, the shortest virtual path first. Extra mounts without a host directory are left
    out. Skills: the folders `skills` by their names, and the one of the thread's user; None: none of both.
    """
    mounts = [Mount(root / "user-data" / name, f"{USER_DATA}/{name}", writable=True) for name in ROOTS]
    mounts.append(Mount(root / "acp-workspace", ACP))
    if skills is not None:
        mounts += _skills(root.parent.parent / "skills", skills)
    mounts += [mount for mount in extra if os.path.isdir(mount.host)]
    resolved = [replace(mount, host=mount.host.resolve(), virtual=join(split(mount.virtual))) for mount in mounts]
    return sorted(resolved, key=lambda mount: len(mount.virtual))


def _skills(own: Path, shared: Mapping[str, Path]) -> Iterator[Mount]:
    """Yields the mounts of skills. Each folder has its own: no mount can be made within a read-only one."""
    for name, folder in {**shared, OWN_SKILLS: own}.items():
        if os.path.isdir(folder):
            yield Mount(folder, f"{SKILLS}/{name}")


def owner_within(directory: int | None) -> tuple[int, int] | None:
    """Returns the owner that a new entry of an open directory gets from a server that is root, if that is another: in
    a folder that a container's user works in, files of root would be closed to it.
    """
    if directory is None or os.geteuid() != 0:
        return None
    info = os.fstat(directory)
    return (info.st_uid, info.st_gid) if info.st_uid else None


def parse(path: str, start: str = WORKSPACE) -> Parts:
    """Returns the parts of a virtual path; relative paths begin at `start`. Refuses `..`, NUL and too long names."""
    if "\0" in path:
        raise Invalid("path: contains a NUL byte")
    if not path.strip():
        raise Invalid("path: is empty")
    if len(os.fsencode(path)) > MAX_PATH:
        raise Invalid(f"path: longer than {MAX_PATH} bytes")
    absolute = path if path.startswith("/") else f"{start}/{path}"
    parts = split(absolute)
    if ".." in parts:
        raise Invalid(f"{path}: '..' is not allowed")
    if any(len(os.fsencode(part)) > MAX_PART for part in parts):
        raise Invalid(f"path: a name is longer than {MAX_PART} bytes")
    return parts


def split(path: str) -> Parts:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def join(parts: Sequence[str]) -> str:
    return "/" + "/".join(parts)


class Translation:
    """Rewrites whole path prefixes in free text, the longest first and only on segment boundaries."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        longest_first = sorted(self._names, key=len, reverse=True)
        alternatives = "|".join(re.escape(name) for name in longest_first)
        self._pattern = re.compile(rf"(?<![\w./-])(?:{alternatives})(?![\w-]|\.\w)") if alternatives else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._names[match.group()], text) if self._pattern else text


@dataclass(slots=True)
class Place:
    """The end of a walk: `name` inside the open directory `fd`, or a directory itself (`name` is `.`).

    `fd` is None for the directories that exist only virtually, above the mounts (`/mnt`).
    """

    fd: int | None
    name: str
    parts: Parts
    writable: bool

    @property
    def virtual(self) -> str:
        return join(self.parts)

    def stat(self) -> os.stat_result | None:
        """Returns the status of the entry itself, never of a link's target; None if there is none."""
        if self.fd is None:
            return None
        try:
            return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None


class Tree:
    """The mounts of one thread, walked safely.

    Guarantees: a file opened through here lies inside a mount at the moment it is opened, whatever links the agent
    makes or swaps meanwhile, and is not hidden by the mount's rules. Non-guarantees: hard links and bind mounts made on
    the host are followed.
    """

    def __init__(self, mounts: Sequence[Mount]) -> None:
        self.mounts = {split(mount.virtual): mount for mount in mounts}
        self.start = PROJECT if split(PROJECT) in self.mounts else WORKSPACE
        """Where commands and relative paths begin."""
        self.above = {parts[:depth] for parts in self.mounts for depth in range(len(parts))}
        names = {mount.virtual: str(mount.host) for mount in mounts}
        if WORKSPACE in names:  # the directory above the three roots is no mount, but it is talked about
            names[USER_DATA] = str(Path(names[WORKSPACE]).parent)
        self.to_host = Translation(names)
        self.to_virtual = Translation({host: virtual for virtual, host in names.items()})

    @contextlib.contextmanager
    def walk(self, path: str, *, create: bool = False) -> Iterator[Place]:
        """Walks to a path. `create` makes the missing directories on the way. Raises `Invalid` for a path outside."""
        walk = _Walk(self, path, create)
        try:
            yield walk.run()
        finally:
            walk.close()

    @contextlib.contextmanager
    def open(self, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Opens an existing file. A link swapped in at the last moment is walked like any other."""
        for _ in range(MAX_LINKS):
            with self.walk(path) as place:
                if place.fd is None:
                    raise Invalid(f"{path}: is a directory" if place.parts in self.above else f"{path}: not found")
                try:
                    # O_NONBLOCK: opening a FIFO must not wait for its other end.
                    fd = os.open(place.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.fd)
                except OSError as error:
                    if error.errno == errno.ELOOP:
                        continue
                    raise
            try:
                yield fd
            finally:
                os.close(fd)
            return
        raise Invalid(f"{path}: too many symbolic links")

    def hidden(self, parts: Parts) -> bool:
        """Tells whether a path is hidden by the rules of its mount. Costs no look at the disk."""
        return any(
            mount.rules is not None and parts[: len(place)] == place and mount.rules.hidden(parts[len(place) :])
            for place, mount in self.mounts.items()
        )

    def below(self, parts: Parts) -> list[str]:
        """Names of mounts, or of directories above them, that show up in this directory."""
        depth = len(parts)
        return sorted({mount[depth] for mount in self.mounts if len(mount) > depth and mount[:depth] == parts})


class _Walk:
    """A walk: the parts walked so far, each with its open directory, and the pending parts."""

    def __init__(self, tree: Tree, path: str, create: bool) -> None:
        self._tree, self._path, self._create = tree, path, create
        self._walked: list[str] = []
        self._fds: list[int | None] = []
        self._writable: list[bool] = []
        self._rules: list[tuple[int, Rules | None]] = []
        """For each part: the depth at which its mount begins, and the rules there."""
        self._pending = list(reversed(parse(path, tree.start)))
        self._links = 0

    def run(self) -> Place:
        while self._pending:
            name = self._pending.pop()
            if name == "..":
                self._back()
            elif (mount := self._tree.mounts.get((*self._walked, name))) is not None:
                rules = (len(self._walked) + 1, mount.rules)
                self._enter(name, os.open(mount.host, _DIRECTORY), mount.writable, rules)
            elif not self._fds or self._fds[-1] is None:
                self._virtual(name)
            elif self._refuses(name):
                raise Invalid(HIDDEN.format(self._path))
            elif (target := self._link(name)) is not None:
                self._follow(target)
            elif not self._pending:
                return Place(self._fds[-1], name, (*self._walked, name), self._may_write(name))
            else:
                self._descend(name)
        fd, writable = (self._fds[-1], self._writable[-1]) if self._fds else (None, False)
        return Place(fd, ".", tuple(self._walked), writable)

    def close(self) -> None:
        while self._fds:
            self._back()

    def _enter(self, name: str, fd: int | None, writable: bool, rules: tuple[int, Rules | None] = (0, None)) -> None:
        self._walked.append(name)
        self._fds.append(fd)
        self._writable.append(writable)
        self._rules.append(rules)

    def _refuses(self, name: str) -> bool:
        depth, rules = self._rules[-1]
        return rules is not None and rules.hidden((*self._walked[depth:], name))

    def _may_write(self, name: str) -> bool:
        depth, rules = self._rules[-1]
        return self._writable[-1] and (rules is None or not rules.fixed((*self._walked[depth:], name)))

    def _back(self) -> None:
        if self._fds:
            self._walked.pop()
            self._writable.pop()
            self._rules.pop()
            if (fd := self._fds.pop()) is not None:
                os.close(fd)

    def _virtual(self, name: str) -> None:
        if (*self._walked, name) not in self._tree.above:
            if self._walked:
                names = ", ".join(self._tree.below(tuple(self._walked)))
                raise Invalid(f"{self._path}: not found; in {join(self._walked)} there are only: {names}")
            raise Invalid(f"{self._path}: outside of the directories of this thread")
        self._enter(name, None, False)

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self._fds[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def _follow(self, target: str) -> None:
        self._count()
        if target.startswith("/"):
            self.close()
            target = self._tree.to_virtual(target)
        self._pending.extend(reversed(split(target)))

    def _count(self) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise Invalid(f"{self._path}: too many symbolic links")

    def _descend(self, name: str) -> None:
        parent, writable = self._fds[-1], self._may_write(name)
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not self._create or not writable:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
                if (owner := owner_within(parent)) is not None:
                    os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
            self._again(name)
        except OSError as error:
            # A link was swapped in after we looked: Linux says ENOTDIR for it, others ELOOP.
            if error.errno not in (errno.ENOTDIR, errno.ELOOP) or self._link(name) is None:
                raise
            self._again(name)
        else:
            self._enter(name, fd, writable, self._rules[-1])

    def _again(self, name: str) -> None:
        self._count()
        self._pending.append(name)


def file_path(path: str) -> str:
    """Returns the absolute path of a file of a thread (see `core.tools.Files`)."""
    if path.startswith("/"):
        return path
    first = path.partition("/")[0]
    root = USER_DATA if first in ("uploads", "outputs", "workspace") else WORKSPACE
    return f"{root}/{path}".rstrip("/")
