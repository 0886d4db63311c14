"""The processes of one command, and the memory they take. For the supervisor: `os` only, and nothing of ours."""

from __future__ import annotations

import os

PAGE = os.sysconf("SC_PAGE_SIZE")


def descendants() -> list[int]:
    """All processes below this one. Orphans are ours (subreaper), so nobody is missed by forking twice."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        if content := read(f"/proc/{name}/stat"):
            parent = int(content.rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def memory(pids: list[int], limit: int) -> int:
    """Bytes that the processes take together: their own, and shared ones once.

    Exact (and slow, as each page is looked at) only if the quick sum with the whole machine's shared memory exceeds
    the limit. Non-guarantee: what lies in a tmpfs and is not mapped is not counted; a tmpfs has a size.
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
    """Bytes that all processes of this machine take: tells cheaply whether there may be news."""
    table = _table("/proc/meminfo")
    return table.get(b"AnonPages", 0) + table.get(b"Shmem", 0)


def read(path: str) -> bytes:
    """A small file of /proc; nothing if it is gone."""
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
    """Lines of the form `Name:   12 kB`, in bytes."""
    lines = (line.split() for line in read(path).splitlines())
    return {words[0][:-1]: int(words[1]) << 10 for words in lines if len(words) == 3 and words[2] == b"kB"}


def _memory_files(pid: int) -> dict[int, int]:
    """Files that a process holds and that are nowhere but in memory (memfd): their sizes by inode."""
    found: dict[int, int] = {}
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            if os.readlink(path).startswith("/memfd:"):
                about = os.stat(path)
                found[about.st_ino] = about.st_blocks * 512
    except OSError:
        pass
    return found
