"""Disk usage of the files of a thread and of a user.

A count walks all files of a thread, so its result is stored beside them (`<thread>/usage`). The sum over a user's
threads adds these results. The supervisor counts while a command runs and after it, in a process of its own; the file
tools use the last count. Standard library only, because the supervisor imports it.
"""

from __future__ import annotations

import os
import time
from _thread import get_ident

RECORD = "usage"
AGE = 60.0
"""Seconds after which a count is stale."""
Quota = dict[str, int]
"""Limits: `thread_bytes`, `thread_files`, `user_bytes`, `user_files`; 0 is no limit."""
UNLIMITED: Quota = {"thread_bytes": 0, "thread_files": 0, "user_bytes": 0, "user_files": 0}
Usage = tuple[int, int]
"""Bytes on the disk, and number of files and folders."""


def count(root: str) -> Usage:
    """Counts the files of a thread, those of other agents (ACP), and those that commands in a machine leave beside
    their output. Links are not followed.
    """
    size = number = 0
    pending = [os.path.join(root, name) for name in ("user-data", "acp-workspace", "machines")]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    number += 1
                    try:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                    except OSError:
                        continue
        except OSError:
            continue
    return size, number


def record(root: str, usage: Usage, counted: float | None = None) -> None:
    """Stores a count atomically. `counted` is its time (default: now)."""
    draft = os.path.join(root, f".{RECORD}.{os.getpid()}.{get_ident()}")  # two commands may end at once
    with open(draft, "w") as file:
        file.write(f"{usage[0]} {usage[1]} {counted or time.time()}")
    os.replace(draft, os.path.join(root, RECORD))


def recorded(root: str) -> tuple[Usage, float] | None:
    """Returns the last count, and its time."""
    try:
        with open(os.path.join(root, RECORD)) as file:
            size, number, counted = file.read().split()
            return (int(size), int(number)), float(counted)
    except (OSError, ValueError):
        return None


def stale(root: str) -> bool:
    last = recorded(root)
    return last is None or not 0 <= time.time() - last[1] <= AGE


def others(root: str) -> Usage:
    """Returns the usage of the user's other threads, by their last counts."""
    threads, own = os.path.split(root)
    records = [recorded(os.path.join(threads, name)) for name in os.listdir(threads) if name != own]
    usages = [counted[0] for counted in records if counted is not None]
    return sum(usage[0] for usage in usages), sum(usage[1] for usage in usages)


def allowing(quota: Quota, usage: Usage) -> Quota:
    """Returns limits under which a thread that is above one already may stay so, to delete files, but not grow."""
    size, number = usage
    return {
        **quota,
        "thread_bytes": quota["thread_bytes"] and max(quota["thread_bytes"], size),
        "thread_files": quota["thread_files"] and max(quota["thread_files"], number),
    }


def excess(usage: Usage, rest: Usage, quota: Quota) -> str | None:
    """Returns the exceeded limit as text that names the setting. `rest` is the usage of the user's other threads."""
    if quota["thread_bytes"] and usage[0] > quota["thread_bytes"]:
        return f"the files of this thread take more than {quota['thread_bytes'] >> 20} MB (sandbox.max_thread_mb)"
    if quota["thread_files"] and usage[1] > quota["thread_files"]:
        return f"this thread has more than {quota['thread_files']} files (sandbox.max_thread_files)"
    if quota["user_bytes"] and usage[0] + rest[0] > quota["user_bytes"]:
        return (
            f"the files of all threads of this user take more than {quota['user_bytes'] >> 20} MB (sandbox.max_user_mb)"
        )
    if quota["user_files"] and usage[1] + rest[1] > quota["user_files"]:
        return f"all threads of this user have more than {quota['user_files']} files (sandbox.max_user_files)"
    return None
