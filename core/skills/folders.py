"""Discovery: the skills in the folders `public` and `custom`, and why others are not among them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import anyio.to_thread

from core.errors import Invalid
from core.files.paths import SKILLS
from core.skills.format import FILE, MOST_BYTES, Front, read
from core.skills.watch import Watch, watch

Category = Literal["public", "custom"]
CATEGORIES: Sequence[Category] = ("public", "custom")
MOST_DEPTH, MOST_DIRECTORIES, MOST_SKILLS = 8, 5000, 2000
"""Limits of a walk: levels of folders, folders, and skills."""


class Skill(NamedTuple):
    """A skill as it lies in a folder of the host. `path` is that of its `SKILL.md` in sandboxes."""

    name: str
    description: str
    category: Category
    path: str
    folder: Path
    hash: str
    """Short hash of its `SKILL.md`."""
    license: str | None = None
    allowed_tools: tuple[str, ...] | None = None
    secrets: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    """Names or patterns of tools (`Front.requires`)."""
    own: bool = False
    """True if it belongs to one user, who may edit it."""
    enabled: bool = True

    @property
    def root(self) -> str:
        """The skill's folder in sandboxes."""
        return self.path.removesuffix(f"/{FILE}")

    def text(self) -> str:
        """Returns its `SKILL.md`. Blocks: call it in a thread. Raises `Invalid`."""
        return content(self.folder / FILE)


class Skipped(NamedTuple):
    """A skill that is not used. `path` is in sandboxes."""

    path: str
    reason: str


class Listing(NamedTuple):
    """The skills of some folders by name, in order of their names."""

    skills: Mapping[str, Skill]
    skipped: Sequence[Skipped] = ()


_Signature = tuple[int, ...]
_Entry = tuple[_Signature, Front | Invalid, str]


def folders_in(root: Path) -> Mapping[str, Path]:
    """Returns the folders of a root by category."""
    return {category: root / category for category in CATEGORIES}


class Folders:
    """The skills in folders, which are named as in sandboxes; a later one shadows those before. While nothing changes,
    a look costs one read of the kernel's queue, or where it keeps none a `stat` for each folder and file that was read.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._files: dict[Path, _Entry] = {}
        self._seen: dict[str, _Signature | None] = {}
        """The folders and files that the listing was made of, as they were."""
        self._watch: Watch | None = None
        self._listing = Listing({})
        self._as_of = -1.0
        self._scanning = asyncio.Lock()

    async def listing(self) -> Listing:
        """Returns the skills as they lie there after the call. Callers at the same time share a walk."""
        called = time.monotonic()
        async with self._scanning:
            if self._as_of < called and not self._is_unchanged():
                began = time.monotonic()
                await anyio.to_thread.run_sync(self.scan, abandon_on_cancel=True)
                self._as_of = began
        return self._listing

    def scan(self) -> Listing:
        """Walks the folders if anything has changed. Blocks: call it in a thread."""
        if self._watch is not None:
            self._watch.reset()
        if not self._seen or self._differs():
            self._walk()
            watched = watch(self._seen)
            self._watch = None if self._differs() else watched  # what changed before the watch began is no event
        return self._listing

    def _is_unchanged(self) -> bool:
        """Returns whether the kernel knows of no change. A folder that is replaced as a whole has another inode."""
        return (
            self._watch is not None
            and not self._watch.changed()
            and all(_signature(start) == self._seen[start] for start in map(str, self._folders.values()))
        )

    def _differs(self) -> bool:
        return any(_signature(path) != known for path, known in self._seen.items())

    def _walk(self) -> None:
        files, seen = dict[Path, _Entry](), dict[str, _Signature | None]()
        skills, skipped = dict[str, Skill](), list[Skipped]()
        for name, start in self._folders.items():
            category: Category = "custom" if name == "custom" else "public"
            for folder, virtual, problem in _walk(start, name, seen):
                path = f"{virtual}/{FILE}"
                try:
                    if problem:
                        raise Invalid(problem)
                    if len(skills) >= MOST_SKILLS:
                        raise Invalid(f"there are more than {MOST_SKILLS} skills")
                    files[folder] = entry = _parsed(folder, self._files.get(folder))
                    skill = _skill(entry, folder, path, category)
                except Invalid as error:
                    skipped.append(Skipped(path, str(error)))
                    continue
                if (shadowed := skills.get(skill.name)) is not None:
                    skipped.append(Skipped(shadowed.path, f"shadowed by {path}"))
                skills[skill.name] = skill
        self._files, self._seen = files, seen
        self._listing = Listing(dict(sorted(skills.items())), skipped)


def content(file: Path) -> str:
    """Returns a `SKILL.md`. Blocks: call it in a thread. Raises `Invalid`."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise Invalid(f"cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise Invalid(f"is longer than {MOST_BYTES >> 10} KB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid("is not UTF-8") from None


def short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def skill_at(folder: Path, path: str, category: Category) -> Skill:
    """Reads the skill in a folder. Blocks: call it in a thread. Raises `Invalid`."""
    return _skill(_parsed(folder, None), folder, path, category)


def _skill(entry: _Entry, folder: Path, path: str, category: Category) -> Skill:
    _, front, digest = entry
    if isinstance(front, Invalid):
        raise front
    tools = front.allowed_tools, front.secrets, front.requires
    return Skill(front.name, front.description, category, path, folder, digest, front.license, *tools)


def _parsed(folder: Path, known: _Entry | None) -> _Entry:
    file = folder / FILE
    try:
        info = os.stat(file)
    except OSError as error:
        raise Invalid(f"cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(info.st_mode):
        raise Invalid("is not a regular file")
    signature = (info.st_mtime_ns, info.st_size, info.st_ino, info.st_dev, info.st_ctime_ns)
    if known is not None and known[0] == signature:
        return known
    try:
        text = content(file)
        return signature, read(text), short_hash(text)
    except Invalid as error:
        return signature, error, ""


def _signature(path: str) -> _Signature | None:
    """Returns what changes with a file or the names in a folder; None if there is none."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_dev


def _walk(start: Path, name: str, looked: dict[str, _Signature | None]) -> Iterator[tuple[Path, str, str]]:
    """Yields the folders with a `SKILL.md`, with their paths in sandboxes and what is wrong with them. What lies below
    such a folder belongs to its skill. Links are followed to what lies beside the folder: sandboxes see nothing else.
    """
    home = Path(os.path.realpath(start))
    top = home if os.path.islink(start) else home.parent
    looked[str(start)] = _signature(str(start))
    pending, seen = [(home, f"{SKILLS}/{name}", 0)], set[str]()
    while pending:
        folder, virtual, depth = pending.pop()
        looked[str(folder)] = _signature(str(folder))
        real = os.path.realpath(folder)
        if depth and not Path(real).is_relative_to(top):
            if os.path.isfile(f"{real}/{FILE}"):
                yield folder, virtual, "is a link out of the folder of skills, where sandboxes cannot follow"
            continue
        if real in seen or len(seen) >= MOST_DIRECTORIES:
            continue
        seen.add(real)
        if depth and os.path.lexists(folder / FILE):
            looked[f"{folder}/{FILE}"] = _signature(f"{folder}/{FILE}")
            inside = Path(os.path.realpath(folder / FILE)).is_relative_to(top)
            yield folder, virtual, "" if inside else f"{FILE} is a link out of the folder of skills"
        elif depth < MOST_DEPTH:
            below = partial(_below, folder, virtual, depth)
            pending.extend(sorted(below(), key=lambda entry: entry[1], reverse=True))


def _below(folder: Path, virtual: str, depth: int) -> Iterator[tuple[Path, str, int]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir():
                    yield folder / entry.name, f"{virtual}/{entry.name}", depth + 1
    except OSError:
        return
