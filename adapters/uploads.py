"""The uploads of threads on this machine's disk, listed with their outlines."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from anyio import to_thread

from core.errors import Invalid, NotFound
from core.files.folder import Folder, digest, open_plain, uploads
from core.files.folder import Upload as Recorded
from core.files.uploads import Outline, Upload, outline
from core.log.store import EventLog
from core.ports.documents import KINDS

Stats = Mapping[str, os.stat_result]
MOST_FILES = 1000
READ_BYTES = 4 << 20
"""Limit of the part of a text that is outlined."""


class LocalUploads:
    """See `core.files.uploads.Uploads`."""

    def __init__(self, home: Path, log: EventLog) -> None:
        self._home, self._known = home, uploads(log)

    async def listing(self, user: str, thread: str, outlined: Collection[str]) -> Sequence[Upload]:
        folder = Folder(self._home, user, thread)
        if not folder.root.exists():  # most threads: not worth a worker thread
            return []
        stats = await to_thread.run_sync(_sizes_and_times, folder)
        recorded = await self._recorded(thread, stats)
        return await to_thread.run_sync(_listing, folder, stats, recorded, outlined)

    async def _recorded(self, thread: str, stats: Stats) -> Mapping[str, Recorded]:
        """Returns what is recorded of documents that have a text, by their names. Another document may have the name
        that a text would have by its own (`report.docx`, `report.pdf`).
        """
        if not any(_is_document(name) for name in stats):
            return {}
        files = (await self._known.load(thread)).files
        settled = {name: file for name, file in files.items() if name in stats and file.settled}
        return {name: file for name, file in settled.items() if file.text is not None and file.text.name in stats}


def _is_document(name: str) -> bool:
    return PurePath(name).suffix.lower() in KINDS


def _sizes_and_times(folder: Folder) -> Stats:
    with suppress(NotFound), folder.open("uploads") as directory:
        return _stats(directory)
    return {}


def _listing(folder: Folder, stats: Stats, recorded: Mapping[str, Recorded], outlined: Collection[str]) -> list[Upload]:
    with suppress(NotFound), folder.open("uploads") as directory:
        texts = {name: text for name, file in recorded.items() if (text := _text(directory, stats, name, file))}
        return [_upload(directory, name, stats[name].st_size, texts, name in outlined) for name in sorted(stats)]
    return []


def _text(directory: int, stats: Stats, name: str, file: Recorded) -> str | None:
    """Returns the name of a document's text, if the document is still the one that was converted. Commands in the
    sandbox replace and rename files without a fact, so one that changed after its text is compared by its content.
    """
    assert file.text is not None
    if stats[name].st_ctime_ns > stats[file.text.name].st_ctime_ns:
        with suppress(OSError, Invalid, NotFound), os.fdopen(open_plain(directory, name), "rb") as content:
            return file.text.name if digest(content.fileno()) == file.sha256 else None
        return None
    return file.text.name


def _stats(directory: int) -> dict[str, os.stat_result]:
    """Returns the regular files with printable names, by name."""
    stats: dict[str, os.stat_result] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) and entry.name.isprintable():
                    stats[entry.name] = info
            if len(stats) == MOST_FILES:
                break
    return stats


def _upload(directory: int, name: str, size: int, texts: Mapping[str, str], outlined: bool) -> Upload:
    text = texts.get(name, name if PurePath(name).suffix == ".md" else None)
    return Upload(name, size, text, _outline(directory, text) if text and outlined else None)


def _outline(directory: int, name: str) -> Outline | None:
    with suppress(OSError, Invalid, NotFound), os.fdopen(open_plain(directory, name), "rb") as file:
        return outline(file.read(READ_BYTES).decode("utf-8", "replace").split("\n"))
    return None
