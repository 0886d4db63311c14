"""Small disks, which can be filled. They need Linux and root; without, the test is skipped with a word."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PAGE = 4096


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs at a new folder."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small tmpfs needs Linux, root and mount")
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "sika-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """Take all space but a little; the file that takes it."""
    ballast = disk / "ballast"
    free = shutil.disk_usage(disk).free
    with ballast.open("wb", buffering=0) as file, suppress(OSError):  # others write, too
        for _ in range((free - leave) // PAGE):
            file.write(bytes(PAGE))
    return ballast
