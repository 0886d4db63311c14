"""The pace of what streams: how long pieces of text are gathered, so that a busy event loop is left time.

The governor of the process (`core.runtime.governor`) says how busy the loop's thread is. A thread with little to do
hands on every piece as it comes; the busier it is, the longer a step waits for more: each piece costs as much as
several do together. The first piece of a text is never waited for, and what is put together stays the same, byte for
byte.
"""

from __future__ import annotations

LEISURE = 0.1
"""The part of the time in which the thread has something to do, up to which nothing is gathered."""
STRAIN = 0.3
"""The part from which on it is gathered the longest."""
LONGEST_SECONDS = 0.4
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
        strain = (self._busy - LEISURE) / (STRAIN - LEISURE)
        self.seconds = LONGEST_SECONDS * min(max(strain, 0.0), 1.0)


pace = Pace()
"""The pace of this process."""
