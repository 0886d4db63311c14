"""Copies of a thread's files, taken back to an earlier moment as far as the recorded changes allow."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from core.errors import Invalid, NotFound, Refused
from core.events import FolderAttached
from core.files.folder import Folder
from core.files.paths import PROJECT, ROOTS
from core.files.undo import undone
from core.files.workspace import MAX_DIFF_BYTES, FileChange
from core.phrases import counted


def restored(
    source: Folder,
    copy: Folder,
    changes: Sequence[FileChange],
    uploads: Sequence[str],
    *,
    incomplete: bool,
    folder: FolderAttached | None = None,
) -> list[str]:
    """Copies the files, and undoes the `changes` (newest first) and later `uploads` in the copy. Blocks.

    Returns what could not be restored, each with its reason. The person's `folder`, on which the thread works, is none
    of the copy.
    """
    copy.make()
    missing = list(_copied(source, copy))
    missing += [f"{folder.path}: the copy of a thread does not work on its folder"] if folder else []
    lost: dict[str, str] = {}
    for change in changes:
        if not change.path.startswith(f"{PROJECT}/") and change.path not in lost and (reason := _undo(copy, change)):
            lost[change.path] = reason
    for path in uploads:
        _remove(copy, path)
    missing += [f"{path}: {reason}" for path, reason in lost.items()]
    return missing + (["more files changed than were recorded"] if incomplete else [])


def take_back(folder: Folder, changes: Sequence[FileChange]) -> list[str]:
    """Undoes the changes of a run, all or none. Returns the paths. Blocks. Raises `Refused` with the reasons."""
    contents: list[tuple[str, bytes | None]] = []
    problems: list[str] = []
    for change in changes:
        content, problem = _earlier(folder, change)
        problems += [f"{change.path} {problem}"] if problem else []
        contents.append((change.path, content))
    if problems:
        raise Refused(f"nothing was taken back: {'; '.join(problems[:10])}")
    for path, content in contents:
        if content is None:
            _remove(folder, path)
        else:
            _write(folder, path, content)
    return [path for path, _ in contents]


def _earlier(folder: Folder, change: FileChange) -> tuple[bytes | None, str]:
    """Returns the content before a change, None if there was no file, or the reason why it is not known."""
    now = _read(folder, change.path)
    if change.symlink or (change.sha256_after is None and change.status != "deleted"):
        return None, f"cannot be taken back ({change.diff_unavailable_reason or 'too large'})"
    if (hashlib.sha256(now).hexdigest() if _is_there(folder, change.path) else None) != change.sha256_after:
        return None, "was changed since"
    if change.status == "created":
        return None, ""
    content = undone(change, now)
    return content, "" if content is not None else f"is not stored ({change.diff_unavailable_reason or 'cut'})"


def _is_there(folder: Folder, path: str) -> bool:
    with suppress(OSError, Invalid, NotFound), folder.tree().walk(path) as place:
        return place.stat() is not None
    return False


def _copied(source: Folder, copy: Folder) -> Iterator[str]:
    """Copies the files; yields those that cannot be copied. Links stay links, and are followed only inside."""
    if not (source.root / "user-data").is_dir():
        yield "all files: the thread's directory is not here"
        return

    def others(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if not _plain(Path(directory, name))]

    for name in ROOTS:
        origin = source.root / "user-data" / name
        if origin.is_dir() and not origin.is_symlink():
            try:
                place = copy.root / "user-data" / name
                shutil.copytree(origin, place, symlinks=True, ignore=others, dirs_exist_ok=True)
            except shutil.Error as error:
                yield f"{name}: {counted(len(error.args[0]), 'file')} could not be copied"
            except OSError as error:
                yield f"{name}: {error.strerror}"


def _plain(path: Path) -> bool:
    with suppress(OSError):
        mode = path.lstat().st_mode
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
    return False


def _undo(copy: Folder, change: FileChange) -> str:
    """Undoes one change. Returns the reason if that is not possible."""
    if change.status == "created":
        _remove(copy, change.path)
        return ""
    content = undone(change, _read(copy, change.path) if change.status == "modified" else b"")
    if content is None:
        why = change.diff_unavailable_reason or "the difference was not recorded in full, or the file changed since"
        return f"{change.status} later ({why})"
    try:
        _write(copy, change.path, content)
    except (OSError, Invalid, NotFound) as error:
        return str(error)
    return ""


def _read(copy: Folder, path: str) -> bytes:
    with suppress(OSError, Invalid, NotFound), copy.tree().open(path) as fd:
        return os.read(fd, MAX_DIFF_BYTES + 1)
    return b""


def _write(copy: Folder, path: str, content: bytes) -> None:
    with copy.tree().walk(path, create=True) as place:
        if place.fd is None or place.name == ".":
            raise Invalid(f"{path}: is a directory")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(place.name, flags, 0o600, dir_fd=place.fd), "wb") as file:
            file.write(content)


def _remove(copy: Folder, path: str) -> None:
    with suppress(OSError, Invalid, NotFound), copy.tree().walk(path) as place:
        if place.fd is not None:
            os.unlink(place.name, dir_fd=place.fd)
