"""The id of a deleted thread is free again when nothing of that thread is left.

Theory of operation
-------------------
What a deleted thread left is erased by several actors, each in its time, and one that is late would erase the things
of a new thread for those of the old one. That everything is done needs no event of its own:

* Whoever works on a thread holds a wake-up, which stays in the queue until the handler has ended, also if its process
  dies. The place of the dispatcher says which wake-ups were sent. If all were, and none is in the queue, nobody is at
  work on the thread.
* Then another tombstone is appended, because of which everything is erased that the last ones at work left. It is
  waited for in the same way.
* The janitor erases events last. If the tombstone is the first event, the erasure has come to its end.

The new thread follows this tombstone directly, by the guard of the log: of several who create it one succeeds, and
whoever dies in between leaves a deleted thread. A wake-up that comes later, from a process that was behind, finds the
new thread (`System._first_of_new`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from core.bus.queue import WorkQueue
from core.errors import Conflict, Unavailable
from core.events import Aggregate, Record, ThreadErased
from core.thread.state import ThreadState
from core.thread.threads import Threads

ERASED_SECONDS = 15.0
"""Time that a creation waits for what a deleted thread left."""
LOOK_SECONDS = 0.05
"""Pause between two looks."""
OTHERS_SECONDS = 0.5
"""Longest pause after a meeting with somebody else who creates the thread."""

Dispatched = Callable[[], int]
"""The sequence of the log up to which the actors of this process were sent their wake-ups."""


@dataclass
class Reuse:
    """The wait for the id of one deleted thread."""

    threads: Threads
    queue: WorkQueue
    dispatched: Dispatched
    thread_id: str
    actor: str
    left: str = "is being erased"
    """What the wait is for."""

    async def freed(self) -> ThreadState:
        """Returns the state of the deleted thread when nothing of it is left; that of a thread which is there by now.
        Raises `Unavailable` after `ERASED_SECONDS`.
        """
        try:
            async with asyncio.timeout(ERASED_SECONDS):
                while True:
                    if (state := await self._freed()) is not None:
                        return state
                    await asyncio.sleep(random.uniform(0, OTHERS_SECONDS))
        except TimeoutError:
            text = f"Thread {self.thread_id} was deleted, and {self.left}; its id is free after that: try again later"
            raise Unavailable(text) from None

    async def _freed(self) -> ThreadState | None:
        """Returns None if somebody else was at it."""
        state = await self.threads.load(self.thread_id)
        if not state.erased:
            return state
        await self._until(lambda: self._at_rest(state.seq))
        try:
            [tombstone] = await self.threads.log.append(
                self._aggregate, [ThreadErased(by=state.user)], expected=state.seq, actor=self.actor
            )
        except Conflict:
            return None
        await self._until(lambda: self._erased(tombstone))
        state = await self.threads.load(self.thread_id)
        return state if state.exists or state.seq == tombstone.seq else None

    @property
    def _aggregate(self) -> Aggregate:
        return self.threads.aggregate(self.thread_id)

    async def _until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        while True:
            if await reached():
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _at_rest(self, upto: int) -> bool:
        """Tells whether nobody is at work because of what the thread had up to an event."""
        if self.dispatched() < upto:
            self.left = "its actors have not been told yet"
            return False
        actors = await self.queue.at_work(self._aggregate)
        self.left = f"still has work of {', '.join(actors)}" if actors else self.left
        return not actors

    async def _erased(self, tombstone: Record) -> bool:
        if not await self._at_rest(tombstone.seq):
            return False
        if await self.queue.letters(self._aggregate):
            self.left = "could not be erased: `sika dlq list` says why"
            return False
        first = await self.threads.log.first(self._aggregate)
        self.left = "its events are not erased yet"
        return first is None or first.seq >= tombstone.seq
