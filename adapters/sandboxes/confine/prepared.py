"""Folders that are prepared once for many commands, because a mount of one folder costs less than one of each file."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

KEEP = 24 * 3600
"""Seconds after its last use in which a folder is kept: commands that see it have ended by then."""
TOUCH = 3600
"""Seconds after which a use is recorded again, as the folder's time."""


def prepared(parent: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Returns a folder, filled if it did not exist. It appears complete or not at all, also under concurrent calls; the
    name must change with the content. Deletes the old folders of the same kind (`<kind>-<key>`). Raises `OSError`.
    """
    path = parent / name
    with suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > TOUCH:
            with suppress(PermissionError):
                os.utime(path)
        return path
    parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=parent))
    try:
        fill(draft)
        draft.chmod(0o755)
        try:
            os.rename(draft, path)
        except OSError:
            if not path.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    _remove_old(parent, name)
    return path


def _remove_old(parent: Path, name: str) -> None:
    oldest = time.time() - KEEP
    kinds = (f"{name.rpartition('-')[0]}-", ".draft-")
    for path in parent.iterdir():
        if path.name != name and path.name.startswith(kinds) and path.stat().st_mtime < oldest:
            shutil.rmtree(path, ignore_errors=True)
