"""A person's folder in a sandbox: what commands must not read there, and what they must not change.

Theory of operation
-------------------
Commands get the folder as a bind mount. Before each of them the folder is searched for names of secrets; over each hit
goes an empty file or directory. A mount point cannot be renamed, removed or linked to, so nothing inside uncovers it.
The directories above a hit are mounts of their own for the same reason: else a command could rename them to a name that
the search passes over. The same keeps what git, an editor or a shell runs on the person's machine: `.git` is a mount,
which cannot be replaced, with its configuration and hooks read-only within it.

The search looks again only at directories whose time changed. It fails rather than leaves something out: else files
that the agent makes could use up its limits.

Non-guarantees: a secret that appears while a command runs can be read by that command. Libraries (`SKIPPED`) are not
searched. A directory that is no repository yet can be made one, with hooks, by a command.
"""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from core.errors import Invalid
from core.files.paths import PROJECT, Mount
from core.files.secret_names import FIXED, GIT_RUN, Rules

_LIBRARIES = "node_modules bower_components .venv venv site-packages __pycache__ .tox .nox"
_CACHES = ".mypy_cache .pytest_cache .ruff_cache"
SKIPPED = frozenset((*_LIBRARIES.split(), *_CACHES.split()))
"""Directories of libraries and caches, whose test certificates are no secrets."""
MAX_DIRECTORIES = 100_000
MAX_HITS = 200
"""Limit of mounts: bubblewrap's time grows with their square."""
KEPT = 32
"""Limit of folders whose search is remembered."""
SETTLED = 2.0
"""Seconds after which a directory's time tells later changes apart: the kernel's clock ticks."""
_PATHS = re.compile(rb"^[ \t]*(?:hookspath|path)[ \t]*=[ \t]*\"?([^\"\n\r]+)", re.IGNORECASE | re.MULTILINE)

GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": PROJECT}
"""Variables by which git works in the folder, whoever owns it."""

Parts = tuple[str, ...]


class Hit(NamedTuple):
    """A path that a rule is about. `secret`: it is covered, else it is read-only."""

    parts: Parts
    secret: bool


class _Listing(NamedTuple):
    """A directory at one time: its subdirectories to search, its hits, and the hits that are symbolic links."""

    changed: float
    below: Sequence[str]
    hits: Sequence[str]
    links: Sequence[str]


class Search:
    """The names in a folder that its rules are about. The methods block; run them in a thread."""

    def __init__(self, mount: Mount) -> None:
        self._host, self._rules = str(mount.host), mount.rules or Rules()
        self._listings: dict[Parts, _Listing] = {}
        self._lock = Lock()

    def hits(self) -> list[Hit]:
        """Returns the paths of secrets and fixed names, and where links of such names lead. Raises `Invalid` for a
        folder that is too large.
        """
        with self._lock:
            hits = sorted({*self._searched()})
        if len(hits) > MAX_HITS:
            raise Invalid(f"more than {MAX_HITS} files of the folder look like secrets; the person can show some")
        return hits

    def _searched(self) -> Iterator[Hit]:
        listings: dict[Parts, _Listing] = {}
        pending: list[Parts] = [()]
        for parts in pending:
            if (listing := self._listing(parts)) is None:
                continue
            listings[parts] = listing
            if len(listings) > MAX_DIRECTORIES:
                raise Invalid(f"the folder has more than {MAX_DIRECTORIES} directories; work on a part of it")
            pending += [(*parts, name) for name in listing.below]
            for name in listing.hits:
                path = (*parts, name)
                yield Hit(path, self._rules.hidden(path))
                if name.lower() == ".git":
                    yield from (Hit(named, False) for named in self._named(path))
            for name in listing.links:
                if (target := self._target((*parts, name))) is not None:
                    yield Hit(target, self._rules.hidden((*parts, name)))
        self._listings = listings

    def _listing(self, parts: Parts) -> _Listing | None:
        place = os.path.join(self._host, *parts)
        with suppress(OSError):
            changed = os.stat(place, follow_symlinks=False).st_mtime
            known = self._listings.get(parts)
            return known if known is not None and known.changed == changed else self._look(place, parts, changed)
        return None

    def _look(self, place: str, parts: Parts, changed: float) -> _Listing:
        below, hits, links = [], [], []
        changed = changed if changed < time.time() - SETTLED else 0
        with os.scandir(place) as entries:
            for entry in entries:
                hit = entry.name.lower() in FIXED or self._rules.hidden((*parts, entry.name))
                if hit and entry.is_symlink():
                    links.append(entry.name)
                elif hit:
                    hits.append(entry.name)
                elif entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED:
                    below.append(entry.name)
        return _Listing(changed, below, hits, links)

    def _named(self, git: Parts) -> Iterator[Parts]:
        """Yields the paths in the folder that a repository's configuration includes, or takes hooks from."""
        place = os.path.join(self._host, *git)
        with suppress(OSError):
            values = _PATHS.findall(Path(place, "config").read_bytes())
            for base, value in product((place, os.path.dirname(place)), values):
                named = os.path.realpath(os.path.join(base, os.fsdecode(value.strip())))
                if named.startswith(f"{self._host}/") and not named.startswith(f"{place}/") and os.path.exists(named):
                    yield tuple(named.removeprefix(f"{self._host}/").split("/"))

    def _target(self, link: Parts) -> Parts | None:
        """Returns where a link leads within the folder. What is outside is not in the sandbox."""
        place = os.path.realpath(os.path.join(self._host, *link))
        if not place.startswith(f"{self._host}/") or not os.path.isfile(place):
            return None
        return tuple(place.removeprefix(f"{self._host}/").split("/"))


_searches: OrderedDict[Mount, Search] = OrderedDict()


def search(mount: Mount) -> Search:
    """Returns the search of a folder, which remembers what it has seen."""
    found = _searches.setdefault(mount, Search(mount))
    _searches.move_to_end(mount)
    while len(_searches) > KEPT:
        _searches.popitem(last=False)
    return found


def hidden(mount: Mount) -> list[str]:
    """Returns the virtual paths of the secrets of a folder. Blocks. Raises `Invalid`."""
    hits = search(mount).hits() if mount.rules is not None else []
    return ["/".join((mount.virtual, *hit.parts)) for hit in hits if hit.secret]


def make_empty(place: Path) -> Path:
    """Creates what covers secrets, an empty file and an empty folder, in a directory. Returns their directory."""
    empty = place / "empty"
    (empty / "folder").mkdir(mode=0o755, parents=True, exist_ok=True)
    (empty / "file").touch(mode=0o444)
    return empty


def binds(mounts: Sequence[Mount], empty: Path) -> list[str]:
    """Returns the arguments of bubblewrap that cover and protect paths of the folders among the mounts, which come
    before them. `empty`: a directory with the entries `file` and `folder`. Blocks. Raises `Invalid`.
    """
    words: list[str] = []
    for mount in mounts:
        if mount.rules is not None:
            hits = search(mount).hits()
            words += _pinned(mount, hits) if mount.writable else []
            for hit in hits:
                words += _bind(mount, hit, empty)
    return words


def _pinned(mount: Mount, hits: Sequence[Hit]) -> Iterator[str]:
    """Yields the arguments that make a mount of each directory above a hit, the upper ones first."""
    for parts in sorted({hit.parts[:depth] for hit in hits for depth in range(1, len(hit.parts))}, key=len):
        yield from ("--bind", str(mount.host.joinpath(*parts)), "/".join((mount.virtual, *parts)))


def _bind(mount: Mount, hit: Hit, empty: Path) -> list[str]:
    host, virtual = mount.host.joinpath(*hit.parts), "/".join((mount.virtual, *hit.parts))
    if hit.secret:
        return ["--ro-bind", str(empty / ("folder" if host.is_dir() else "file")), virtual]
    if not mount.writable:
        return []
    if hit.parts[-1].lower() == ".git" and host.is_dir():
        return _repository(mount, hit.parts, empty)
    return ["--ro-bind", str(host), virtual]


def _repository(mount: Mount, parts: Parts, empty: Path) -> list[str]:
    """Returns the arguments for a directory of git: it stays where it is, and what makes git run programs is fixed."""
    git = mount.host.joinpath(*parts)
    words = ["--bind", str(git), "/".join((mount.virtual, *parts))]
    for directory in (git, *_modules(git)):
        inside = "/".join((mount.virtual, *directory.relative_to(mount.host).parts))
        for name in GIT_RUN:
            place = directory / name
            if place.exists() and not place.is_symlink():
                words += ["--ro-bind", str(place), f"{inside}/{name}"]
            elif name == "hooks":
                words += ["--ro-bind", str(empty / "folder"), f"{inside}/{name}"]
    return words


def _modules(git: Path) -> Iterator[Path]:
    """Yields the directories of git of submodules."""
    for directory, folders, names in os.walk(git / "modules"):
        if "HEAD" in names and "config" in names:
            yield Path(directory)
            folders[:] = [name for name in folders if name == "modules"]
