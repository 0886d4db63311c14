"""Numbers: of samples, of processes (from `/proc`), and what is expected of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_QUIET = 0.03
"""CPU seconds in a second of a server that has nothing to do."""


@dataclass(frozen=True)
class Limit:
    """What a figure must not exceed, or not fall below; or how far it may be from 1."""

    kind: Literal["≤", "≥", "1 ±"]
    value: float

    def holds(self, figure: float) -> bool:
        match self.kind:
            case "≤":
                return figure <= self.value
            case "≥":
                return figure >= self.value
            case "1 ±":
                return abs(figure - 1) <= self.value

    def __str__(self) -> str:
        return f"{self.kind} {self.value:g}"


@dataclass(frozen=True)
class Row:
    """A line of the table. `value` is what counts (a ratio, unless `what` says otherwise), the others explain it."""

    what: str
    value: float
    limit: Limit | None = None
    unit: str = ""
    """Of `ours`, `bare` and `sqlite`."""
    ours: float | None = None
    bare: float | None = None
    sqlite: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "pass" if self.limit.holds(self.value) else "MISS"


def at_most(value: float) -> Limit:
    return Limit("≤", value)


def at_least(value: float) -> Limit:
    return Limit("≥", value)


def flat(value: float) -> Limit:
    return Limit("1 ±", value)


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def percentile(values: Iterable[float], percent: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def ratio(ours: Sequence[float], bare: Sequence[float]) -> float:
    """The median of the ratios of neighbours: what slows the machine down for a while slows both of a pair."""
    return median(a / b for a, b in zip(ours, bare, strict=True))


# ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def cpu_seconds(pid: int, *, own: bool = True) -> float:
    """What a process (`own`) and its descendants have used so far, those that have ended included."""
    stats = [fields for member in family(pid)[not own :] if (fields := _stat(member))]
    return _TICK * sum(int(ticks) for fields in stats for ticks in fields[11:15])


def memory_bytes(pid: int) -> int:
    """The memory of a process and its descendants: shared pages counted once where the kernel tells, else RSS."""
    return sum(_pss(member) for member in family(pid))


def settle(pid: int, seconds: float = 30) -> None:
    """Return when the processes have nothing more to do."""
    deadline = time.monotonic() + seconds
    before = cpu_seconds(pid)
    while time.monotonic() < deadline:
        time.sleep(1)
        now = cpu_seconds(pid)
        if now - before <= _QUIET:
            return
        before = now


def loop_of(pid: int) -> str:
    """The kind of event loop of a Python process, by what it has loaded."""
    return "uvloop" if "/uvloop/" in Path(f"/proc/{pid}/maps").read_text() else "asyncio.unix_events"


def size_of(*paths: Path) -> int:
    """Bytes of files and folders. Files may vanish meanwhile."""
    total = 0
    for path in paths:
        try:
            total += sum(size_of(child) for child in path.iterdir()) if path.is_dir() else path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _stat(pid: int) -> list[str]:
    """The fields of `/proc/<pid>/stat` after the name; none if there is no such process any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _pss(pid: int) -> int:
    for file, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        except (OSError, ProcessLookupError):
            continue
        for line in lines:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0
