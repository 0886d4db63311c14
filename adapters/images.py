"""Images on this machine's disk: in a thread's files, and in the folder of a person that it works on."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from anyio import to_thread

from adapters.sandboxes.files.operations import refusals
from core.config.load import ConfigSource
from core.errors import Invalid
from core.events import FolderAttached
from core.files.folder import Folder
from core.files.paths import Mount, Tree
from core.ports.images import MAX_BYTES
from core.sandbox.folders import installation
from core.thread.threads import Threads


class LocalImages:
    """See `core.ports.images.Images`."""

    def __init__(self, home: Path, config: ConfigSource | None = None, threads: Threads | None = None) -> None:
        self._home, self._config, self._threads = home, config, threads

    async def load(self, user: str, thread: str, path: str) -> bytes:
        state = await self._threads.load(thread) if self._threads is not None else None
        chosen = state.folder if state is not None and state.user == user else None
        return await to_thread.run_sync(self._load, Folder(self._home, user, thread), chosen, path)

    def _load(self, files: Folder, chosen: FolderAttached | None, path: str) -> bytes:
        extra: Sequence[Mount] = ()
        if chosen is not None and self._config is not None:
            extra = [installation(self._home, self._config).mount(chosen)]
        return _content(files.tree(extra), path)


def _content(tree: Tree, path: str) -> bytes:
    with refusals(path), tree.open(path) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Invalid(f"{path}: is not a file")
        with open(fd, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise Invalid(f"{path}: larger than {MAX_BYTES >> 20} MB")
    return content
