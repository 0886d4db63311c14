"""The governor: whether this process can take on more runs, by its event loop's lag and its memory.

Theory of operation
-------------------
A run that waits for a model costs memory and nothing else, so no number says how many a machine bears. Two things do.

*Lag*: how late the event loop is for an appointment, ten times a second; the median of the last second counts, so that
one slow step changes nothing. It counts only while the loop's thread had something to do nearly all the time, on a
processor or waiting for one: else others on the machine make it late, and fewer runs would change nothing.

*Memory*: the nearest of the limits that could end the process (`core.runtime.memory`).

Each has a level to which it rises at one value and from which it falls at a lower one, so that it does not swing:

| level | lag rises at, falls at | memory | starts |
|---|---|---|---|
| free | | | every run |
| tight | 100, 50 ms | | runs of who has less than a fair share of those at work |
| full | 300, 150 ms | 85, 75 % | none |

So one who alone would fill the process stops at `tight`, and what is between `tight` and `full` is for the others.
Between two looks at memory runs take at most what is left of it, at `RUN_BYTES` each. `FLOOR` runs may always be at
work: a run that waits for runs of subagents must not hold them up, and a machine with a heavy neighbour still serves.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from statistics import median
from typing import Literal

from core.pace import pace
from core.runtime.memory import PROC, Memory, tightest

BEAT_SECONDS = 0.1
LAGS = 10
"""Lags of which the median counts: a second of them."""
MEMORY_BEATS = 5
"""Beats between two looks at the memory."""
BUSY = 0.8
"""The part of a beat in which the thread had something to do, from which on its lag counts."""
FLOOR = 16
"""Runs that may be at work however late the loop is, and however little memory there is."""
RUN_BYTES = 1 << 20
"""Memory that a run at work may come to need; a plain one has a fifth of it."""


class Level(IntEnum):
    """How much the process can take on."""

    FREE = 0
    TIGHT = 1
    FULL = 2


LAG_STEPS = {Level.TIGHT: (0.1, 0.05), Level.FULL: (0.3, 0.15)}
"""Seconds of lag at which a level is reached, and below which it is left."""
MEMORY_STEP = (0.85, 0.75)
"""The parts of the memory at which the process is full, and below which it is not any more."""


class Governor:
    """The governor of one process. `memory` returns the nearest limit."""

    def __init__(self, memory: Callable[[], Memory | None] = tightest) -> None:
        self.lag_seconds = 0.0
        """The median lag of the last second."""
        self.memory: Memory | None = None
        self._look = memory
        self._lags: deque[float] = deque(maxlen=LAGS)
        self._by_lag = Level.FREE
        self._by_memory = Level.FREE
        self._left: float = float("inf")
        """Runs for which there is memory until the next look."""

    @property
    def level(self) -> Level:
        if self._left < 1:
            return Level.FULL
        return max(self._by_lag, self._by_memory)

    @property
    def by(self) -> Literal["memory", "lag"] | None:
        """Returns what keeps runs waiting now; None if nothing does."""
        if self.memory is not None and (self._by_memory or self._left < 1):
            return "memory"
        return "lag" if self._by_lag else None

    @property
    def bound(self) -> str | None:
        """Says what keeps runs waiting now, for people; None if nothing does."""
        match self.by:
            case "memory" if self.memory is not None:
                return f"{self.memory.by}: {self.memory.part:.0%} of {self.memory.limit >> 20} MiB are used"
            case "lag":
                return f"the processor: the event loop is {1000 * self.lag_seconds:.0f} ms late"
        return None

    @property
    def change(self) -> str | None:
        """Says what to change for more runs at work; None if nothing keeps runs waiting."""
        if self.by == "memory" and self.memory is not None:
            return self.memory.change
        return "start another process of the server, on processors of its own" if self.by else None

    @property
    def reached(self) -> dict[str, float]:
        """Returns the part of each bound that is reached: from 1 on, it keeps runs waiting."""
        memory = {"memory": self.memory.part / MEMORY_STEP[0]} if self.memory is not None else {}
        return {**memory, "lag": self.lag_seconds / LAG_STEPS[Level.TIGHT][0]}

    def took(self) -> None:
        """A run was started: it will need memory."""
        self._left -= 1

    def note(self, lag: float, busy: float = 1.0) -> None:
        """Takes in how late the loop was, in seconds, and the part of the time in which its thread had to do."""
        self._lags.append(lag if busy >= BUSY else 0.0)
        self.lag_seconds = median(self._lags)
        level = Level.FREE
        for step, (rises, falls) in LAG_STEPS.items():
            if self.lag_seconds >= (falls if self._by_lag >= step else rises):
                level = step
        self._by_lag = level

    def look(self) -> None:
        """Looks at the memory."""
        memory = self.memory = self._look()
        if memory is None:
            return
        rises, falls = MEMORY_STEP
        self._by_memory = Level.FULL if memory.part >= (falls if self._by_memory else rises) else Level.FREE
        self._left = max(0, rises * memory.limit - memory.used) / RUN_BYTES

    async def run(self, changed: Callable[[], None]) -> None:
        """Measures for as long as the process runs. Calls `changed` after each beat."""
        loop, beat = asyncio.get_running_loop(), 0
        occupied = Occupied(PROC / "self" / "task" / str(threading.get_native_id()) / "schedstat")
        while True:
            if beat % MEMORY_BEATS == 0:
                self.look()
            began, before, beat = loop.time(), occupied.seconds(), beat + 1
            await asyncio.sleep(BEAT_SECONDS)
            took, spent = loop.time() - began, occupied.seconds() - before
            self.note(max(0.0, took - BEAT_SECONDS), spent / took)
            pace.note(spent / took)
            changed()


class Occupied:
    """The time in which this thread had something to do: it was on a processor, or waited for one. A system that does
    not say so (`schedstat` of Linux) says the first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def seconds(self) -> float:
        try:
            on, waited = self._path.read_text().split()[:2]
        except (OSError, ValueError):
            return time.thread_time()
        return (int(on) + int(waited)) / 1e9
