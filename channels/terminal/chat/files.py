"""Paths of the agent's files for the person."""

from __future__ import annotations

import glob
from pathlib import Path

from core.files.paths import USER_DATA


def host_path(home: Path, thread_id: str, path: str) -> str:
    """Returns a thread's file on this machine; the virtual path if there is none."""
    if thread_id and path.startswith(f"{USER_DATA}/"):
        for root in home.glob(f"users/*/threads/{glob.escape(thread_id)}/user-data"):
            if (file := root / path.removeprefix(f"{USER_DATA}/")).is_file():
                return str(file)
    return path
