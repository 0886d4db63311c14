"""The files of batches in a thread's folder on this machine's disk."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from anyio import to_thread

from adapters.sandboxes.files.operations import Files, refusals
from core.errors import Invalid
from core.files.folder import Folder
from core.ports.batches import MAX_BYTES

_MAGIC = re.compile(r"[*?\[{]")
_MAX_TABLE_MB = 1024


class LocalBatchFiles:
    """See `core.ports.batches.BatchFiles`."""

    def __init__(self, home: Path) -> None:
        self._home = home

    async def read(self, user: str, thread: str, path: str) -> bytes:
        return await to_thread.run_sync(_read, Folder(self._home, user, thread), path)

    async def glob(self, user: str, thread: str, pattern: str, limit: int) -> list[str]:
        parts = pattern.split("/")
        fixed = next((n for n, part in enumerate(parts) if _MAGIC.search(part)), len(parts) - 1)
        files = self._files(user, thread)
        base, rest = "/".join(parts[:fixed]) or "/", "/".join(parts[fixed:])
        return sorted((await files.glob(base, rest, dirs=False, limit=limit)).found)

    async def append(self, user: str, thread: str, path: str, line: bytes) -> None:
        await to_thread.run_sync(_append, Folder(self._home, user, thread), path, line)

    async def replace(self, user: str, thread: str, path: str, lines: Iterable[bytes]) -> None:
        await to_thread.run_sync(Folder(self._home, user, thread).make)
        text = (await to_thread.run_sync(b"".join, lines)).decode()
        await self._files(user, thread).write(path, text)

    def _files(self, user: str, thread: str) -> Files:
        folder = Folder(self._home, user, thread)
        return Files(folder.root, folder.tree(), _MAX_TABLE_MB)


def _read(folder: Folder, path: str) -> bytes:
    with refusals(path), folder.tree().open(path) as fd:
        _check(fd, path)
        with open(fd, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise Invalid(f"{path}: larger than {MAX_BYTES >> 20} MB")
    return content


def _append(folder: Folder, path: str, line: bytes) -> None:
    with refusals(path), folder.tree().open(path, os.O_WRONLY | os.O_APPEND) as fd:
        _check(fd, path)
        with open(fd, "ab", closefd=False) as file:
            file.write(line)


def _check(fd: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise Invalid(f"{path}: is not a file")
