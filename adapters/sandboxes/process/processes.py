"""The processes of a command, and their memory. For the supervisor: imports `os` and `signal` only."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = os.sysconf("SC_PAGE_SIZE")


def descendants(root: int | None = None) -> list[int]:
    """Returns all processes below a supervisor, by default this one, also after double forks: orphans become its
    children (subreaper).
    """
    below = _children if os.path.exists(f"/proc/self/task/{os.getpid()}/children") else _family()
    pids, queue = [], [root or os.getpid()]
    while queue:
        children = below(queue.pop())
        pids += children
        queue += children
    return pids


def _children(parent: int) -> list[int]:
    """Returns the children of a process. Costs nothing for the other processes of this machine."""
    try:
        threads = os.listdir(f"/proc/{parent}/task")
    except OSError:
        return []
    return [int(pid) for thread in threads for pid in _words(f"/proc/{parent}/task/{thread}/children")]


def _family() -> Callable[[int], list[int]]:
    """Returns the children of each process, by the parents of all: for a kernel without lists of children."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        if content := read(f"/proc/{pid}/stat"):
            parent = int(content.rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(pid)
    return lambda pid: children.get(pid, [])


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []


def end_marked(mark: str) -> None:
    """Kills the processes that a dead supervisor left behind, until none has its mark in `SIKA_CALL`."""
    entry = f"SIKA_CALL={mark}".encode()
    for _ in range(100):
        marked = [pid for pid in _pids() if entry in _environment(pid)]
        if not marked:
            return
        for pid in marked:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has ended, or is not ours
                continue


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _words(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read().split()
    except OSError:
        return []


def memory(pids: list[int], limit: int) -> int:
    """Returns the bytes of the processes together: their own, and shared ones once.

    Exact (and slow, as each page is visited) only if the quick sum with the whole machine's shared memory exceeds the
    limit. Non-guarantee: unmapped files in a tmpfs are not counted; a tmpfs has a size.
    """
    resident = sum(_resident(pid) for pid in pids)
    if resident + _table("/proc/meminfo").get(b"Shmem", 0) <= limit:
        return resident
    own = shared = 0
    files: dict[int, int] = {}
    for pid in pids:
        rollup = _table(f"/proc/{pid}/smaps_rollup")
        if b"Pss_Anon" in rollup:
            own, shared = own + rollup[b"Pss_Anon"], shared + rollup.get(b"Pss_Shmem", 0)
        else:  # before Linux 5.4, or not readable
            own += rollup.get(b"Pss", 0) or _resident(pid)
        files.update(_memory_files(pid))
    return own + max(shared, sum(files.values()))


def machine() -> int:
    """Returns the bytes of all processes of this machine: a cheap test for changes."""
    table = _table("/proc/meminfo")
    return table.get(b"AnonPages", 0) + table.get(b"Shmem", 0)


def read(path: str) -> bytes:
    """Returns the content of a small file of /proc; empty if it does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _resident(pid: int) -> int:
    words = read(f"/proc/{pid}/statm").split()
    return int(words[1]) * PAGE if words else 0


def _table(path: str) -> dict[bytes, int]:
    """Returns the lines of the form `Name:   12 kB`, in bytes."""
    lines = (line.split() for line in read(path).splitlines())
    return {words[0][:-1]: int(words[1]) << 10 for words in lines if len(words) == 3 and words[2] == b"kB"}


def _memory_files(pid: int) -> dict[int, int]:
    """Returns the sizes of a process's open files in memory (memfd), by inode."""
    sizes: dict[int, int] = {}
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            if os.readlink(path).startswith("/memfd:"):
                info = os.stat(path)
                sizes[info.st_ino] = info.st_blocks * 512
    except OSError:
        pass
    return sizes
