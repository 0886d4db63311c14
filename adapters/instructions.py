"""The instructions for agents in the folders of a thread, on this machine's disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from anyio import to_thread

from core.errors import Invalid, NotFound
from core.files.folder import Folder, open_plain
from core.files.paths import WORKSPACE
from core.thread.instructions import MOST_BYTES, MOST_FILES, NAMES, InstructionFile


class LocalInstructions:
    """See `core.thread.instructions.InstructionFiles`. Links are left out: they may lead anywhere."""

    def __init__(self, home: Path) -> None:
        self._home = home

    async def read(self, user: str, thread: str, mounts: Mapping[str, str]) -> Sequence[InstructionFile]:
        folder = Folder(self._home, user, thread)
        if not mounts and not folder.root.exists():  # most threads: not worth a worker thread
            return []
        return await to_thread.run_sync(_read, folder, mounts)


def _read(folder: Folder, mounts: Mapping[str, str]) -> list[InstructionFile]:
    files: list[InstructionFile] = []
    left = MOST_BYTES
    folders = {path: _open(host) for path, host in mounts.items()} | {WORKSPACE: folder.open("workspace")}
    for path, opened in folders.items():
        with suppress(OSError, NotFound), opened as directory:
            if left > 0 and len(files) < MOST_FILES and (file := _first(directory, path, left)):
                files.append(file)
                left -= len(file.text.encode())
    return files


def _first(directory: int, path: str, most: int) -> InstructionFile | None:
    """Returns the file of a folder that counts: the first that has a text."""
    for name in NAMES:
        with suppress(OSError, Invalid, NotFound), os.fdopen(open_plain(directory, name), "rb") as file:
            data = file.read(most)
            text = data.decode("utf-8", "ignore")
            if text.strip() and "\0" not in text:
                return InstructionFile(f"{path}/{name}", text, os.fstat(file.fileno()).st_size - len(data))
    return None


@contextmanager
def _open(host: str) -> Iterator[int]:
    fd = os.open(host, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
