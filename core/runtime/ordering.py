"""Ordered actors (`Actor.ordered`): events of one aggregate are handled one after another, over all processes.

Theory of operation
-------------------
An ordered actor has `QUEUES` queues of wake-ups in place of one. An aggregate belongs to one of them, by its hash. The
server hands out one wake-up of a queue at a time (`max_ack_pending`), and the next after its acknowledgement, so
neither a second process nor a redelivery changes the order. Dispatchers send wake-ups in the order of the log, each
after the one before was stored, so a queue is in this order, too.

A wake-up may be sent twice: at a restart, the events since the last kept offset are dispatched again. So each queue has
a cursor, the last event that was handled, and a wake-up at or before it is dropped. The cursor moves before the
acknowledgement, and only from the value that was read: a process that was frozen meanwhile does not move it back.

Rejected: a lock for each aggregate (leases to extend, and a wake-up that waits for a lock holds a slot); one queue
(nothing in parallel); a cursor for each aggregate (grows with all that ever was).
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import structlog

from core.actor import Actor
from core.bus.connection import Bus
from core.bus.errors import WRONG_LAST_SEQUENCE, ApiError
from core.bus.streams import find
from core.events import Aggregate

log = structlog.get_logger("sika.system")

QUEUES = 16
"""Queues of an ordered actor. Another number would mix up the order of the wake-ups that wait at that time."""
MARK = "~"
"""Separates the name of an actor and the number of a queue."""


def queue_of(actor: Actor[Any], aggregate: Aggregate) -> str:
    """Returns the queue of an actor's wake-ups for an aggregate."""
    if not actor.ordered:
        return actor.name
    return f"{actor.name}{MARK}{zlib.crc32(str(aggregate).encode()) % QUEUES}"


def queues(actor: Actor[Any]) -> list[str]:
    """Returns the queues of an actor."""
    return [f"{actor.name}{MARK}{number}" for number in range(QUEUES)] if actor.ordered else [actor.name]


class Cursor:
    """The last event that was handled of a queue, as of `read`."""

    def __init__(self, bus: Bus, queue: str) -> None:
        self._bus = bus
        self._subject = bus.names.place(queue)
        self._stored = 0

    async def read(self) -> int:
        """Returns the event's sequence; 0 if there was none. Raises `Unavailable`."""
        stored = await find(self._bus, "place", {"last_by_subj": self._subject})
        self._stored = stored.seq if stored else 0
        return msgspec.json.decode(stored.data, type=int) if stored else 0

    async def move(self, seq: int) -> None:
        """Moves to an event, unless another process has moved the cursor since it was read. Raises `Unavailable`."""
        expected = {"Nats-Expected-Last-Subject-Sequence": str(self._stored)}
        try:
            await self._bus.store(self._subject, b"%d" % seq, expected)
        except ApiError as error:
            if error.err_code not in WRONG_LAST_SEQUENCE:
                raise
            log.warning("another process has handled the event, too", queue=self._subject, seq=seq)
