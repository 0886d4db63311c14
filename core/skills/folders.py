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
from core.paths import SKILLS
from core.skills.format import FILE, MOST_BYTES, Front, read

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


_Entry = tuple[tuple[int, ...], Front | Invalid, str]


class Folders:
    """The skills below a root with `public/` and `custom/`. Unchanged files are parsed once."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._files: dict[Path, _Entry] = {}
        self._listing = Listing({})
        self._as_of = -1.0
        self._scanning = asyncio.Lock()

    async def listing(self) -> Listing:
        """Returns the skills as they lie there after the call. Callers at the same time share a walk."""
        called = time.monotonic()
        async with self._scanning:
            if self._as_of < called:
                began = time.monotonic()
                self._listing = await anyio.to_thread.run_sync(self.scan, abandon_on_cancel=True)
                self._as_of = began
        return self._listing

    def scan(self) -> Listing:
        """Walks the folders. Blocks: call it in a thread."""
        root, files = self._root, dict[Path, _Entry]()
        if root is None:
            return Listing({}, [])
        skills, skipped = dict[str, Skill](), list[Skipped]()
        for category in CATEGORIES:
            for folder, virtual, problem in _walk(root, category):
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
        self._files = files
        return Listing(dict(sorted(skills.items())), skipped)


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
    tools, secrets = front.allowed_tools, front.secrets
    return Skill(front.name, front.description, category, path, folder, digest, front.license, tools, secrets)


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


def _walk(root: Path, category: str) -> Iterator[tuple[Path, str, str]]:
    """Yields the folders with a `SKILL.md`, with their paths in sandboxes and what is wrong with them. What lies below
    such a folder belongs to its skill. Links are followed within the root: sandboxes see nothing else.
    """
    top = Path(os.path.realpath(root))
    pending, seen = [(top / category, f"{SKILLS}/{category}", 0)], set[str]()
    while pending:
        folder, virtual, depth = pending.pop()
        real = os.path.realpath(folder)
        if depth and not Path(real).is_relative_to(top):
            if os.path.isfile(f"{real}/{FILE}"):
                yield folder, virtual, "is a link out of the folder of skills, where sandboxes cannot follow"
            continue
        if real in seen or len(seen) >= MOST_DIRECTORIES:
            continue
        seen.add(real)
        if depth and os.path.lexists(folder / FILE):
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
