"""Bound of the messages of a person that are taken at once: others wait, and nobody else's messages for them.

Theory of operation
-------------------
`AT_ONCE` messages of a person are taken at once, each further one `SECONDS` after the one before (the generic cell
rate algorithm). The time of a message beyond them is fixed when it is first looked at, and its conversation is woken
then by a timer of the bus. So a flood costs others no more than its rate, whatever a message brings about: runs,
previews, calls of the account. The messages are in the log; a process that begins anew forgets the times, and takes a
message when its timer fires.

Rejected: turns of people among the wake-ups that wait. The bus hands out one wake-up of a queue at a time, so there is
nothing to choose from; and what was taken at full speed loads the process for as long as the runs last.
"""

from __future__ import annotations

import time
from collections.abc import Callable

AT_ONCE = 10
SECONDS = 0.25
MOST = 1_000
"""People, and messages that wait, from which on those are forgotten that matter no more."""
LATE_SECONDS = 60.0
"""Time for which a message is remembered that may be taken: it need not be there any more."""


class Allowance:
    """The allowances of people."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}
        """The time of each person's next message, were none taken at once."""
        self._times: dict[str, float] = {}
        """The times of messages that wait."""

    def wait(self, person: str, message: str) -> float:
        """Returns the seconds until a message is to be taken; 0.0 if it is taken now."""
        now = self._clock()
        at = self._times.pop(message, None)
        if at is None:
            begin = max(now, self._next.get(person, now))
            self._next[person] = begin + SECONDS
            at = begin - (AT_ONCE - 1) * SECONDS
        if at <= now:
            self._forget(now)
            return 0.0
        self._times[message] = at
        return at - now

    def _forget(self, now: float) -> None:
        if len(self._next) > MOST:
            self._next = {person: at for person, at in self._next.items() if at > now}
        if len(self._times) > MOST:
            self._times = {message: at for message, at in self._times.items() if at > now - LATE_SECONDS}
