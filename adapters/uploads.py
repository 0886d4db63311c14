"""The uploads of threads on this machine's disk, listed with their outlines."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from anyio import to_thread

from core.errors import Invalid, NotFound
from core.thread.folder import Folder, open_plain
from core.thread.uploads import Outline, Upload, outline

MOST_FILES = 1000
READ_BYTES = 4 << 20
"""Limit of the part of a text that is outlined."""


class LocalUploads:
    """See `core.thread.uploads.Uploads`."""

    def __init__(self, home: Path) -> None:
        self._home = home

    async def listing(self, user: str, thread: str, outlined: Collection[str]) -> Sequence[Upload]:
        folder = Folder(self._home, user, thread)
        if not folder.root.exists():  # most threads: not worth a worker thread
            return []
        return await to_thread.run_sync(_listing, folder, outlined)


def _listing(folder: Folder, outlined: Collection[str]) -> list[Upload]:
    with suppress(NotFound), folder.open("uploads") as directory:
        sizes = _sizes(directory)
        return [_upload(directory, name, sizes, name in outlined) for name in sorted(sizes)]
    return []


def _sizes(directory: int) -> dict[str, int]:
    """Returns the bytes of the regular files with printable names, by name."""
    sizes: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) and entry.name.isprintable():
                    sizes[entry.name] = info.st_size
            if len(sizes) == MOST_FILES:
                break
    return sizes


def _upload(directory: int, name: str, sizes: Mapping[str, int], outlined: bool) -> Upload:
    text = PurePath(name).stem + ".md"
    markdown = text if text in sizes else None
    listing = _outline(directory, markdown) if markdown and outlined else None
    return Upload(name, sizes[name], markdown, listing)


def _outline(directory: int, name: str) -> Outline | None:
    with suppress(OSError, Invalid, NotFound), os.fdopen(open_plain(directory, name), "rb") as file:
        return outline(file.read(READ_BYTES).decode("utf-8", "replace").split("\n"))
    return None
