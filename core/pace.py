"""The pace of what streams: how long pieces of text are gathered, so that a busy event loop is left time.

The governor of the process (`core.runtime.governor`) says how busy the loop's thread is. A thread with little to do
hands on every piece as it comes; the busier it is, the longer a step waits for more: each piece costs as much as
several do together. The first piece of a text is never waited for, and what is put together stays the same, byte for
byte.
"""

from __future__ import annotations

from itertools import pairwise

STEPS = ((0.1, 0.0), (0.3, 0.4), (0.9, 1.0))
"""Parts of the time in which the thread has something to do, and the seconds for which is gathered then; between two of
them in proportion. Words that come in steps of less than half a second are read as they come; those of a second are the
price of a processor that is full.
"""
LONGEST_SECONDS = STEPS[-1][1]
SMOOTHING = 0.2
"""The weight of a new measurement."""


class Pace:
    """The pace of one process."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """The time for which pieces are gathered."""
        self._busy = 0.0

    def note(self, busy: float) -> None:
        """Takes in the part of a short time in which the thread had something to do."""
        self._busy += SMOOTHING * (busy - self._busy)
        self.seconds = _between(self._busy)


def _between(busy: float) -> float:
    """Returns the seconds that belong to a part of the time."""
    for (low, shorter), (high, longer) in pairwise(STEPS):
        if busy < high:
            return shorter + (longer - shorter) * max(busy - low, 0.0) / (high - low)
    return LONGEST_SECONDS


pace = Pace()
"""The pace of this process."""
