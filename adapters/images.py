"""Images in a thread's folder on this machine's disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from anyio import to_thread

from adapters.sandboxes.files import refusals
from core.errors import Invalid
from core.ports.images import MAX_BYTES
from core.thread.folder import Folder


class LocalImages:
    """See `core.ports.images.Images`."""

    def __init__(self, home: Path) -> None:
        self._home = home

    async def load(self, user: str, thread: str, path: str) -> bytes:
        return await to_thread.run_sync(_load, Folder(self._home, user, thread), path)


def _load(folder: Folder, path: str) -> bytes:
    with refusals(path), folder.tree().open(path) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Invalid(f"{path}: is not a file")
        with open(fd, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise Invalid(f"{path}: larger than {MAX_BYTES >> 20} MB")
    return content
