"""The files of users' skills: each version is a folder that never changes, and a link names the current one.

    users/<user>/skills/.trees/<hash>/SKILL.md …     a version, written completely before it gets this name
    users/<user>/skills/<name> -> .trees/<hash>      the version in use, switched by one rename

The log says which version a skill has; links follow it. A crash in between leaves a version without a name, which the
next look puts right (`published`). All functions block: call them in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from core.errors import Invalid
from core.files.paths import OWN_SKILLS, SKILLS
from core.ids import safe_id

TREES = ".trees"
USER = f"{SKILLS}/{OWN_SKILLS}"
"""The user's skills in sandboxes."""
_CHUNK = 1 << 20
_STAGED = re.compile(r"\.staged-[a-z0-9_]+/[0-9a-f]+")


def folder_of(home: Path, user: str) -> Path:
    """Returns the folder of a user's skills."""
    return home / "users" / safe_id(user, "user") / "skills"


def tree_of(home: Path, user: str, tree: str) -> Path:
    return folder_of(home, user) / TREES / safe_id(tree, "tree")


def staged_file(home: Path, user: str, name: str) -> Path:
    """Returns a file that somebody put into a folder of `staged`. Raises `Invalid` for a name that leads elsewhere."""
    if _STAGED.fullmatch(name) is None:
        raise Invalid(f"staged: {name[:80]!r} is not a file that was staged")
    return folder_of(home, user) / TREES / name


@contextmanager
def staged(home: Path, user: str) -> Iterator[Path]:
    """Yields an empty folder for a new version. What is left in it afterwards is removed."""
    trees = folder_of(home, user) / TREES
    trees.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staged-", dir=trees))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def keep(home: Path, user: str, staging: Path) -> str:
    """Gives a staged version its name, and returns it."""
    tree = digest(staging)
    with contextlib.suppress(FileExistsError, OSError):
        os.rename(staging, tree_of(home, user, tree))
    if not tree_of(home, user, tree).is_dir():
        raise Invalid("the skill could not be stored")
    os.chmod(tree_of(home, user, tree), 0o755)
    return tree


def copy(source: Path, target: Path) -> None:
    """Copies a version into a staged one. Files share their content, which nobody changes in place."""
    shutil.copytree(source, target, copy_function=os.link, dirs_exist_ok=True, symlinks=True)


def replace(folder: Path, path: str, content: str | None) -> None:
    """Replaces a file of a staged version; None removes it."""
    file = folder / path
    mode = 0o755 if file.exists() and os.access(file, os.X_OK) else 0o644
    file.unlink(missing_ok=True)
    if content is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(mode)


def digest(folder: Path) -> str:
    """Returns the hash of all files: their paths, whether they can be executed, and their content."""
    whole = hashlib.blake2b(digest_size=12)
    for file in files(folder):
        info, path = file.stat(), file.relative_to(folder).as_posix()
        whole.update(f"{len(path)}:{path}:{bool(info.st_mode & 0o100)}:{info.st_size}:".encode())
        with open(file, "rb") as opened:
            while chunk := opened.read(_CHUNK):
                whole.update(chunk)
    return whole.hexdigest()


def files(folder: Path) -> list[Path]:
    """Returns the regular files of a folder in the order of their paths. Links are left out."""
    below = [Path(parent) / name for parent, _, names in os.walk(folder) for name in names]
    return sorted(file for file in below if file.is_file() and not file.is_symlink())


def published(home: Path, user: str, trees: Mapping[str, str]) -> list[str]:
    """Makes the links say what the log says. Returns the names of skills whose files are not there."""
    folder, missing = folder_of(home, user), list[str]()
    present = _links(folder)
    for name, tree in trees.items():
        if not (folder / TREES / tree).is_dir():
            missing.append(name)
        elif present.get(name) != f"{TREES}/{tree}":
            _link(folder, name, f"{TREES}/{tree}")
    for name in present.keys() - trees.keys():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / name)
    return missing


def prune(home: Path, user: str, used: Collection[str]) -> None:
    """Removes the versions that no history names."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder_of(home, user) / TREES):
            if not entry.name.startswith(".") and entry.name not in used:
                shutil.rmtree(entry.path, ignore_errors=True)


def _links(folder: Path) -> dict[str, str]:
    links = dict[str, str]()
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.is_symlink() and not entry.name.startswith("."):
                links[entry.name] = os.readlink(entry.path)
    return links


def _link(folder: Path, name: str, target: str) -> None:
    temporary = folder / f".{name}-{os.getpid()}-{os.urandom(4).hex()}"
    os.symlink(target, temporary)
    os.replace(temporary, folder / name)
