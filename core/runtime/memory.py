"""How much of the memory that this process may have is in use, by everything that could end it for want of memory."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
UNLIMITED = 1 << 60
"""A limit above this is none: version 1 of cgroups has no word for it."""


class Memory(NamedTuple):
    """A limit and what of it is used, in bytes. `by`: whose limit it is, in words, and `change` where it is set."""

    by: str
    used: int
    limit: int
    change: str

    @property
    def part(self) -> float:
        """The part that is used: 1.0 is all."""
        return self.used / self.limit


def tightest(proc: Path = PROC, cgroups: Path = CGROUPS) -> Memory | None:
    """Returns the limit that is nearest; None on a system that says nothing of its memory."""
    readings = [*_machine(proc), *_groups(proc, cgroups), *_own_limits(proc)]
    return max(readings, key=lambda memory: memory.part, default=None)


def _machine(proc: Path) -> Iterator[Memory]:
    fields = _fields(proc / "meminfo")
    if total := fields.get("MemTotal:"):
        used = total - fields.get("MemAvailable:", total)
        yield Memory("the machine's memory", used * 1024, total * 1024, "give the machine more memory")
    elif sys.platform == "darwin":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes here
        yield Memory("half of the machine's memory", peak, PAGE * os.sysconf("SC_PHYS_PAGES") // 2, "add memory")


def _groups(proc: Path, cgroups: Path) -> Iterator[Memory]:
    """Yields the limits of the process's control groups, and of those around them."""
    for folder, current, most, idle in _folders(proc, cgroups):
        limit = _number(folder / most)
        if limit is None or limit > UNLIMITED:
            continue
        used = _number(folder / current)
        if used is not None:
            freed = _fields(folder / "memory.stat").get(idle, 0)
            yield Memory("the control group's memory", max(0, used - freed), limit, f"raise the group's `{most}`")


@cache
def _folders(proc: Path, cgroups: Path) -> list[tuple[Path, str, str, str]]:
    """Returns the folders of control groups, each with the names of its files: use, limit, and the pages that are freed
    when memory is short.
    """
    folders = []
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            top, names = cgroups, ("memory.current", "memory.max", "inactive_file")
        elif "memory" in controllers.split(","):
            top = cgroups / "memory"
            names = ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")
        else:
            continue
        inner = Path(os.path.normpath(top / path.lstrip("/")))
        around = [folder for folder in (inner, *inner.parents) if folder == top or top in folder.parents]
        folders += [(folder, *names) for folder in around or [top]]
    return folders


def _own_limits(proc: Path) -> Iterator[Memory]:
    """Yields the limits of this process, as `ulimit` sets them."""
    sizes = _text(proc / "self" / "statm").split()
    for name, place, flag in (("RLIMIT_AS", 0, "-v"), ("RLIMIT_DATA", 5, "-d")):
        limit = resource.getrlimit(getattr(resource, name))[0]
        if limit not in (resource.RLIM_INFINITY, 0) and len(sizes) > place:
            yield Memory("the process's memory", int(sizes[place]) * PAGE, limit, f"raise `ulimit {flag}`")


def _fields(path: Path) -> Mapping[str, int]:
    """Returns the numbers of a file with a name and a number on each line."""
    lines = (line.split() for line in _text(path).splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
