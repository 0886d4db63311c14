"""Usage of a command: processes, memory and files, against their limits. For the supervisor: few imports."""

from __future__ import annotations

import os
import signal
import time

from adapters.sandboxes.process import cgroups, processes, quota

TYPE_CHECKING = False
if TYPE_CHECKING:
    from adapters.sandboxes.process.launch import Orders

TICK = 0.25
"""Seconds between two checks of the command's usage."""
NEWS = 2.0
"""Seconds after which its memory is summed up, also if the machine's has hardly changed."""
COUNTING_SHARE = 20
"""Counting files takes at most a COUNTING_SHARE-th of the time."""
COUNT_EVERY = 10.0
"""Seconds after which files are counted, also if the disk has hardly changed."""
MUCH_BYTES, MUCH_FILES = 64 << 20, 2000
"""Change of the disk's free space that triggers a count."""


class Greed:
    """Processes and memory of the command. Samples what the kernel does not limit by a control group."""

    def __init__(self, orders: Orders, groups: list[str]) -> None:
        self._most_processes, self._most_bytes = orders["max_processes"], orders["max_bytes"]
        self._groups = groups
        self._memory_is_limited, self._processes_are_limited = cgroups.limited(groups)
        self._summed, self._bytes, self._machine = time.monotonic(), 0, processes.machine()

    def look(self) -> str | None:
        """Returns the exceeded limit. Lists the command's own processes only if a limit may be exceeded."""
        if (reason := self.killed()) is not None:
            return reason
        if self._memory_is_limited and self._processes_are_limited:
            return None
        crowded = os.stat("/proc").st_nlink > self._most_processes  # all of the machine's processes, and some more
        grown = self._bytes + processes.machine() - self._machine > self._most_bytes
        if not crowded and not grown and time.monotonic() - self._summed < NEWS:
            return None
        pids = processes.descendants()
        if len(pids) > self._most_processes:
            return f"more than {self._most_processes} processes"
        self._summed, self._machine = time.monotonic(), processes.machine()
        self._bytes = processes.memory(pids, self._most_bytes)
        return self._too_much() if self._bytes > self._most_bytes else None

    def killed(self) -> str | None:
        """Returns the reason if the kernel has killed a process of the command for its memory."""
        return f"out of memory: {self._too_much()}" if cgroups.out_of_memory(self._groups) else None

    def _too_much(self) -> str:
        return f"more than {self._most_bytes >> 20} MB of memory in all (sandbox.memory_mb)"


class Disk:
    """Files of the thread. A separate process counts them, because it may take seconds."""

    def __init__(self, orders: Orders, lock: int) -> None:
        self._root, self._lock = orders["thread"], lock
        last = quota.recorded(self._root)
        limits: quota.Quota = orders["quota"]
        self._quota = quota.allowing(limits, last[0] if last else (0, 0))
        self._thresholds = (_part(limits["thread_bytes"], MUCH_BYTES), _part(limits["thread_files"], MUCH_FILES))
        self._free = self._space()
        self._counter = self._answer = 0
        self._counted, self._cost = float("-inf"), 0.0
        self._since = time.monotonic()

    def look(self) -> str | None:
        """Returns the exceeded limit, once a count has ended."""
        now = time.monotonic()
        if self._counter:
            return self._read(now)
        changed = self._changed(1)
        pause = max(COUNT_EVERY if not changed else 2 * TICK, COUNTING_SHARE * self._cost)
        if now - max(self._counted, self._since if not changed else self._counted) >= pause:
            self._begin(now)
        return None

    def finish(self) -> None:
        """Counts the files after the command, if they have changed enough."""
        if self._counter or self._changed(8) or quota.stale(self._root):
            os.nice(19)
            quota.record(self._root, quota.count(self._root))

    def _begin(self, now: float) -> None:
        self._free, self._counted = self._space(), now
        self._answer, write_end = os.pipe()
        self._counter = os.fork()
        if self._counter:
            os.close(write_end)
            os.set_blocking(self._answer, False)
            return
        try:
            started = time.process_time()
            signal.set_wakeup_fd(-1)
            os.close(self._lock)
            os.nice(19)
            usage = quota.count(self._root)
            quota.record(self._root, usage)
            text = quota.excess(usage, quota.others(self._root), self._quota)
            os.write(write_end, f"{time.process_time() - started} {text or ''}".encode())
        finally:
            os._exit(0)

    def _read(self, now: float) -> str | None:
        try:
            cost, _, text = os.read(self._answer, 4096).decode().partition(" ")
        except BlockingIOError:
            return None
        os.close(self._answer)
        self._counter, self._cost = 0, float(cost or now - self._counted)
        return text or None

    def _changed(self, part: int) -> bool:
        changes = zip(self._space(), self._free, self._thresholds, strict=True)
        return any(abs(now - then) * part >= threshold for now, then, threshold in changes)

    def _space(self) -> tuple[int, int]:
        try:
            info = os.statvfs(self._root)
        except OSError:
            return 0, 0
        return info.f_bfree * info.f_frsize, info.f_ffree


def _part(limit: int, most: int) -> int:
    return min(most, limit // 8) if limit else most


class Growth:
    """Files of a thread while something works on them that has no supervisor here: counted when the disk has changed,
    and now and then. The methods block.
    """

    def __init__(self, root: str, limits: quota.Quota) -> None:
        self._root = root
        last = quota.recorded(root)
        self._limits = quota.allowing(limits, last[0] if last else (0, 0))
        self._free, self._next, self._stopped = self._space(), time.monotonic() + COUNT_EVERY, False

    def excess(self) -> str | None:
        """Returns the exceeded limit, once."""
        if self._stopped or not any(self._limits.values()):
            return None
        if time.monotonic() < self._next and not self._changed(1):
            return None
        usage = self._count()
        reason = quota.excess(usage, quota.others(self._root), self._limits)
        self._stopped = reason is not None
        return reason

    def finish(self) -> None:
        if any(self._limits.values()) and (self._changed(8) or quota.stale(self._root)):
            self._count()

    def _count(self) -> quota.Usage:
        begun = time.monotonic()
        self._free, usage = self._space(), quota.count(self._root)
        quota.record(self._root, usage)
        now = time.monotonic()
        self._next = now + max(COUNT_EVERY, COUNTING_SHARE * (now - begun))
        return usage

    def _changed(self, part: int) -> bool:
        now = self._space()
        return abs(now[0] - self._free[0]) * part >= MUCH_BYTES or abs(now[1] - self._free[1]) * part >= MUCH_FILES

    def _space(self) -> tuple[int, int]:
        info = os.statvfs(self._root)
        return info.f_bfree * info.f_frsize, info.f_ffree
