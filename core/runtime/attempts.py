"""Attempts at wake-ups that may end their process, counted over restarts.

Theory of operation
-------------------
Work that ends its process (memory, a defect of a native library) can count nothing afterwards. So before a second or
later delivery is worked on, its beginning is stored beside the places of actors; what is still marked as begun at the
next delivery has not come to an end, and counts as a death. Handlers that raise, and drains, close the mark. A first
delivery, hence healthy work, writes nothing.

*Who did it.* A process that is killed takes all its work with it, the innocent with the guilty. From the second death
on, a process works on one such wake-up at a time, so only that one is charged, and begins with those that have the
fewest deaths. Innocent work is done in its turn, and its mark removed. It would have to be the one at work at each of
five kills, with nothing else to do.

*What lives long.* Some work waits for most of its life: for the end of a run, or for a platform. Such work is there at
many kills. After `PROVEN_SECONDS` it gives the turn to the next, its earlier deaths count no more (they were those of
others), and one from then on counts little: what ends a process later than that becomes a dead letter all the same,
after ten times as many.

*Runs.* A run counts its own attempts in the log (`Run.stalled`). What ends the process before `run.started` is
recorded is counted here: a death after which the thread has got further is none.

Non-guarantees. A process that is frozen for longer than its lease counts as dead. The count may be lost with NATS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime

import anyio
import msgspec
import structlog

from core.bus.connection import Bus
from core.bus.queue import Wakeup
from core.bus.streams import find, purge
from core.errors import Unavailable

log = structlog.get_logger("sika.system")

DEADLY = 4
"""Deaths after which a wake-up is not tried again. Its first attempt was not counted, so it is the fifth."""
SUSPECT = 2
"""Deaths after which a wake-up is worked on alone."""
TURN_SECONDS = 10.0
"""Time that a wake-up waits for its turn among those before it is given back."""
YIELD_SECONDS = 0.5
"""Time, for each death, for which a wake-up lets others come first."""
PROVEN_SECONDS = 2.0
"""Time after which work that goes on is no longer the one to be suspected."""
LATE = 0.1
"""Weight of a death after that."""
CLOSE_SECONDS = 1.0


class Mark(msgspec.Struct, frozen=True):
    """The stored part of a wake-up. `event` is the id of its event, `tip` the last sequence of its aggregate. `charge`:
    what the death of the process adds: 1 to `deaths`, `LATE` to `late`; 0 while nobody works on it.
    """

    event: str
    deaths: float = 0.0
    charge: float = 0.0
    tip: int = 0
    late: float = 0.0
    """The weight of the deaths after `PROVEN_SECONDS`."""


class Attempts:
    """The attempts of one process."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._started = datetime.now(UTC)
        self.alone = False
        """The server counts deliveries anew at each start of this process: it is alone."""
        self._suspect = asyncio.Lock()

    @asynccontextmanager
    async def begun(self, wakeup: Wakeup, tip: int = 0) -> AsyncIterator[float]:
        """Yields the deaths so far, and marks the wake-up as begun meanwhile. Raises `Unavailable`, also if another
        wake-up that has ended processes is worked on.
        """
        if not self.redelivered(wakeup):
            yield 0.0
            return
        mark = await self._mark(wakeup, tip)
        proven = msgspec.structs.replace(mark, deaths=0.0)
        with ExitStack() as turn:
            if mark.deaths >= SUSPECT:
                await self._wait_for_turn(mark.deaths)
                turn.callback(self._suspect.release)
            await self._store(wakeup, msgspec.structs.replace(mark, charge=1.0))
            proving = asyncio.create_task(self._prove(wakeup, msgspec.structs.replace(proven, charge=LATE), turn))
            try:
                yield mark.deaths + mark.late
            finally:
                is_proven = not proving.cancel()
                with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
                    await self._close(wakeup, proven if is_proven else mark)

    async def _wait_for_turn(self, deaths: float) -> None:
        """Waits for the other wake-ups that have ended processes, those with fewer deaths first. Raises `Unavailable`
        after `TURN_SECONDS`.
        """
        await asyncio.sleep(YIELD_SECONDS * deaths)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._suspect.acquire()
        except TimeoutError as error:
            raise Unavailable("waits for other work that has ended its process before") from error

    async def _prove(self, wakeup: Wakeup, mark: Mark, turn: ExitStack) -> None:
        """Ends the turn of work that goes on for longer, and stores what counts of its deaths."""
        await asyncio.sleep(PROVEN_SECONDS)
        turn.close()
        try:
            await self._store(wakeup, mark)
        except Unavailable as error:
            log.warning("the mark of a wake-up is not changed", actor=wakeup.actor, error=str(error))

    def redelivered(self, wakeup: Wakeup) -> bool:
        """Tells whether somebody may have begun with the wake-up before."""
        return wakeup.delivery > 1 or (self.alone and wakeup.sent < self._started)

    async def forget(self, wakeup: Wakeup) -> None:
        """Removes the mark of a wake-up that became a dead letter."""
        if self.redelivered(wakeup):
            await self._close(wakeup, Mark(wakeup.hint.id))

    async def _mark(self, wakeup: Wakeup, tip: int) -> Mark:
        """Returns the mark of a wake-up on which nobody works, with the deaths so far."""
        stored = await find(self._bus, "place", {"last_by_subj": self._subject(wakeup)})
        try:
            mark = msgspec.json.decode(stored.data, type=Mark) if stored else None
        except msgspec.DecodeError as error:
            log.error("the mark of a wake-up cannot be read", actor=wakeup.actor, error=str(error))
            mark = None
        if mark is None or mark.event != wakeup.hint.id or mark.tip != tip:
            return Mark(wakeup.hint.id, tip=tip)
        if mark.charge == LATE:
            return Mark(mark.event, mark.deaths, tip=tip, late=mark.late + LATE)
        return Mark(mark.event, mark.deaths + mark.charge, tip=tip, late=mark.late)

    async def _close(self, wakeup: Wakeup, mark: Mark) -> None:
        """Removes the mark of what is done, and stores that the other is not being worked on."""
        try:
            if wakeup.acked:
                await purge(self._bus, "place", self._subject(wakeup))
            else:
                await self._store(wakeup, mark)
        except Unavailable as error:
            log.warning("the mark of a wake-up is not closed", actor=wakeup.actor, error=str(error))

    async def _store(self, wakeup: Wakeup, mark: Mark) -> None:
        await self._bus.store(self._subject(wakeup), msgspec.json.encode(mark))

    def _subject(self, wakeup: Wakeup) -> str:
        return self._bus.names.place(f"{wakeup.actor}@{wakeup.seq}")
