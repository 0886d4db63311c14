"""Watch on files and folders: whether anything about them has changed, at the cost of one read.

The kernel (inotify) queues a change before the call that made it returns, so that a look after a change sees it. It
does so only for what this machine writes: on network volumes, and on other systems than Linux, there is no watch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

LOCAL = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"))
"""File systems that only this machine writes."""
CHANGES = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""IN_MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF (linux/inotify.h)."""


class Watch:
    """A watch on paths that exist. It ends with the object."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Raises `OSError`, also if the kernel's limit of watches is reached."""
        from inotify_simple import INotify

        self._kernel = INotify(nonblocking=True)
        try:
            for path in paths:
                self._kernel.add_watch(path, CHANGES)
        except OSError:
            self._kernel.close()
            raise
        self._changed = False

    def changed(self) -> bool:
        """Returns whether anything has changed since the watch began, or since `reset`."""
        self._changed = self._changed or bool(self._kernel.read(timeout=0))
        return self._changed

    def reset(self) -> None:
        """Forgets the changes until now."""
        self._kernel.read(timeout=0)
        self._changed = False

    def __del__(self) -> None:
        if hasattr(self, "_kernel"):
            self._kernel.close()


def watch(paths: Iterable[str]) -> Watch | None:
    """Returns a watch on those of the paths that exist, None where the kernel cannot tell."""
    existing = [path for path in paths if os.path.exists(path)]
    if sys.platform != "linux" or not existing or not _are_local(existing):
        return None
    try:
        return Watch(existing)
    except OSError:
        return None


def _are_local(paths: Iterable[str]) -> bool:
    types = _types()
    devices = {os.stat(path).st_dev for path in paths if os.path.isdir(path)}
    return all(types.get(f"{os.major(device)}:{os.minor(device)}") in LOCAL for device in devices)


def _types() -> Mapping[str, str]:
    """Returns the types of the mounted file systems by their devices (proc_pid_mountinfo(5))."""
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {fields[2]: fields[fields.index("-") + 1] for fields in lines}
