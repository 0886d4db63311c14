"""Control groups: limits for all processes of a command together, kept by the kernel.

Version 2 where the own group is delegated to the server, version 1 where the server is root and the controllers are
there. Which of them work is found by trying: containers mount them read-only, and service managers delegate only some.
Without any, the supervisor samples (`usage.Greed`). Standard library only, because the supervisor imports it.
"""

from __future__ import annotations

import functools
import os
import time

PREFIX = "sika-"
LEAF = "sika-server"
"""The group of the server itself: version 2 allows no processes beside groups with controllers."""
SHARES, WEIGHT = 512, 50
"""Share of the processors if the machine is busy, in version 1 and 2: half of what other processes get."""
OVERHEAD = 2
"""Processes of bubblewrap itself."""
STALE = 3600
"""Seconds after which an empty group is one that a killed supervisor has left."""
_NEEDED = ("memory", "pids", "cpu")

Group = tuple[str, dict[str, str]]
"""A folder to make, and what to write into its files."""


def groups(mark: str, memory_bytes: int, processes: int) -> list[Group]:
    """Returns the groups of a command; empty where there are none. `mark` names the command."""
    settings = {
        "memory": {
            "memory.max": str(memory_bytes),
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "memory.limit_in_bytes": str(memory_bytes),
            "memory.memsw.limit_in_bytes": str(memory_bytes),
        },
        "pids": {"pids.max": str(processes + OVERHEAD)},
        "cpu": {"cpu.weight": str(WEIGHT), "cpu.shares": str(SHARES)},
    }
    return [
        (
            f"{base}/{PREFIX}{mark}",
            {name: value for controller in controllers for name, value in settings[controller].items()},
        )
        for base, controllers in bases()
    ]


def controllers() -> set[str]:
    """Returns what the kernel limits here for a whole command: some of memory, pids, cpu."""
    return {name for _, names in bases() for name in names}


def describe() -> str:
    """Returns which limits are in force, for people."""
    if not (names := controllers()):
        return "memory and processes are sampled: no cgroup is delegated to this server"
    versions = "v2" if any(names and _is_v2(base) for base, names in bases()) else "v1"
    rest = "" if {"memory", "pids"} <= names else "; the others are sampled"
    return f"{', '.join(sorted(names))} limited by cgroup {versions}{rest}"


@functools.cache
def bases() -> list[tuple[str, tuple[str, ...]]]:
    """Returns the folders in which groups can be made, and their controllers. One without any is good for killing."""
    mounts, own = _mounts(), _own()
    result: list[tuple[str, tuple[str, ...]]] = []
    if "cgroup2" in mounts and (base := _delegated(mounts["cgroup2"] + own.get("", ""))):
        result.append(
            (base, tuple(name for name in _NEEDED if name in _read(f"{base}/cgroup.subtree_control").split()))
        )
    there = {name for _, names in result for name in names}
    for name in _NEEDED:
        if name not in there and name in mounts and _works(place := mounts[name] + own.get(name, "")):
            result.append((place, (name,)))
    return result


def sweep() -> None:
    """Removes the groups that killed supervisors have left."""
    for base, _ in bases():
        for name in os.listdir(base):
            path = f"{base}/{name}"
            try:
                if name.startswith(PREFIX) and name != LEAF and time.time() - os.stat(path).st_mtime > STALE:
                    os.rmdir(path)  # fails if it has processes
            except OSError:
                continue


def end(mark: str) -> None:
    """Kills what is left of a command whose supervisor died, and removes its groups."""
    paths = [path for path, _ in groups(mark, 0, 0)]
    kill(paths)
    remove(paths)


# ── for the supervisor ──────────────────────────────────────────────────────────────────────────────────────────────


def make(wanted: list[Group]) -> list[str]:
    """Makes the groups. Returns the folders of those that exist now. A file that is not there is left out."""
    paths = []
    for path, files in wanted:
        try:
            os.mkdir(path)
        except FileExistsError:
            pass
        except OSError:
            continue
        for name, value in files.items():
            _write(f"{path}/{name}", value)
        paths.append(path)
    return paths


def enter(paths: list[str], pid: int = 0) -> None:
    """Moves a process, by default this one, into the groups. Raises `OSError`: a command must not run without its
    limits.
    """
    for path in paths:
        with open(f"{path}/cgroup.procs", "w") as file:
            file.write(str(pid))


def limited(paths: list[str]) -> tuple[bool, bool]:
    """Returns whether the kernel limits memory, and processes."""
    names = ("memory.max", "memory.limit_in_bytes"), ("pids.max",)
    memory, pids = (any(os.path.exists(f"{path}/{name}") for path in paths for name in either) for either in names)
    return memory, pids


def out_of_memory(paths: list[str]) -> bool:
    """Returns True if the kernel has killed a process of the groups for its memory."""
    for path in paths:
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(f"{path}/{name}").splitlines():
                if line.startswith("oom_kill ") and line != "oom_kill 0":
                    return True
    return False


def kill(paths: list[str]) -> None:
    """Kills all processes of the groups at once, where the kernel can (version 2, since Linux 5.14)."""
    for path in paths:
        _write(f"{path}/cgroup.kill", "1")


def remove(paths: list[str]) -> None:
    """Removes the groups of processes that have ended, which takes the kernel a moment."""
    deadline = time.monotonic() + 1.0
    for path in paths:
        while os.path.isdir(path):
            try:
                os.rmdir(path)
            except OSError:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.001)


# ── trying ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mounts() -> dict[str, str]:
    """Returns the mounted hierarchies: by controller (version 1), or `cgroup2`."""
    result: dict[str, str] = {}
    for line in _read("/proc/self/mounts").splitlines():
        _, place, kind, options, *_ = line.split(" ")
        for name in ("cgroup2",) if kind == "cgroup2" else options.split(",") if kind == "cgroup" else ():
            result.setdefault(name, place)
    return result


def _own() -> dict[str, str]:
    """Returns this process's group per controller; that of version 2 under ""."""
    lines = [line.split(":", 2) for line in _read("/proc/self/cgroup").splitlines()]
    return {name: path.rstrip("/") for _, names, path in lines for name in names.split(",")}


def _delegated(own: str) -> str | None:
    """Returns the folder of version 2 in which groups can be made, with as many controllers as the server may enable.

    Moves the server into a leaf, if it is alone in its group.
    """
    base = os.path.dirname(own) if os.path.basename(own) == LEAF else own
    if not _works(base):
        return None
    for name in _NEEDED:
        if name not in _read(f"{base}/cgroup.controllers").split():
            continue
        if not _write(f"{base}/cgroup.subtree_control", f"+{name}") and _step_aside(base):
            _write(f"{base}/cgroup.subtree_control", f"+{name}")
    return base


def _step_aside(base: str) -> bool:
    """Moves this process into a leaf of its group. Returns False if the group has other processes."""
    pids = _read(f"{base}/cgroup.procs").split()
    if pids != [str(os.getpid())]:
        return False
    try:
        os.mkdir(f"{base}/{LEAF}")
    except FileExistsError:
        pass
    except OSError:
        return False
    return _write(f"{base}/{LEAF}/cgroup.procs", str(os.getpid()))


def _works(base: str) -> bool:
    """Returns True if a group can be made and removed here."""
    path = f"{base}/{PREFIX}try-{os.getpid()}"
    try:
        os.mkdir(path)
        os.rmdir(path)
    except OSError:
        return False
    return True


def _is_v2(base: str) -> bool:
    return os.path.exists(f"{base}/cgroup.subtree_control")


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
