"""The uploads of threads on this machine's disk, listed with their outlines."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from anyio import to_thread

from core.errors import Invalid, NotFound
from core.log.store import EventLog
from core.ports.documents import KINDS
from core.thread.folder import Folder, open_plain, uploads
from core.thread.uploads import Outline, Upload, outline

MOST_FILES = 1000
READ_BYTES = 4 << 20
"""Limit of the part of a text that is outlined."""


class LocalUploads:
    """See `core.thread.uploads.Uploads`."""

    def __init__(self, home: Path, log: EventLog) -> None:
        self._home, self._known = home, uploads(log)

    async def listing(self, user: str, thread: str, outlined: Collection[str]) -> Sequence[Upload]:
        folder = Folder(self._home, user, thread)
        if not folder.root.exists():  # most threads: not worth a worker thread
            return []
        sizes = await to_thread.run_sync(_listed, folder)
        texts = await self._texts(thread, sizes)
        return await to_thread.run_sync(_listing, folder, sizes, texts, outlined)

    async def _texts(self, thread: str, sizes: Mapping[str, int]) -> Mapping[str, str]:
        """Returns the files with the texts of documents, as their conversions recorded them, by the documents' names.
        Another document may have the name that a text would have by its own (`report.docx`, `report.pdf`).
        """
        if not any(_is_document(name) for name in sizes):
            return {}
        files = (await self._known.load(thread)).files
        recorded = {name: file.text.name for name, file in files.items() if file.settled and file.text is not None}
        return {name: text for name, text in recorded.items() if text in sizes}


def _is_document(name: str) -> bool:
    return PurePath(name).suffix.lower() in KINDS


def _listed(folder: Folder) -> Mapping[str, int]:
    with suppress(NotFound), folder.open("uploads") as directory:
        return _sizes(directory)
    return {}


def _listing(
    folder: Folder, sizes: Mapping[str, int], texts: Mapping[str, str], outlined: Collection[str]
) -> list[Upload]:
    with suppress(NotFound), folder.open("uploads") as directory:
        return [_upload(directory, name, sizes[name], texts, name in outlined) for name in sorted(sizes)]
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


def _upload(directory: int, name: str, size: int, texts: Mapping[str, str], outlined: bool) -> Upload:
    text = texts.get(name, name if PurePath(name).suffix == ".md" else None)
    return Upload(name, size, text, _outline(directory, text) if text and outlined else None)


def _outline(directory: int, name: str) -> Outline | None:
    with suppress(OSError, Invalid, NotFound), os.fdopen(open_plain(directory, name), "rb") as file:
        return outline(file.read(READ_BYTES).decode("utf-8", "replace").split("\n"))
    return None
