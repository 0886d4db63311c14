"""Following the log.

Theory of operation
-------------------
Following uses no consumer: the stream republishes stored messages to core NATS. A process has one subscription, which
receives every aggregate's events with their stream sequence. Sequences are contiguous, so a lost message is noticed at
the next one (or within `IDLE_SECONDS`) and read from the log. Each listener has a bounded buffer; a slow listener loses
its buffer, not its offset, and goes on by reading the log. The listener that takes an event fetches its body from the
object store, so that big bodies do not delay the others. As the process receives all events, it mostly knows without
reading whether an aggregate has changed (`unchanged_until`; the proof is in `core.log.repository`).

Rejected: a consumer per follower (server 2.15 allows 1 000 per stream); a subscription per thread (the process receives
the events anyway for its projections).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import structlog

from core.bus.connection import Bus
from core.errors import Unavailable
from core.events import Aggregate, Record
from core.log.reader import Reader

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

log = structlog.get_logger("sika.log")

IDLE_SECONDS = 5.0
"""Interval in which a process that receives nothing checks that it has not missed the last message."""
LOOK_SECONDS = 60.0
"""Interval in which a busy process checks, too: the stream may have got more replicas."""
BODY_SECONDS = 1.0
"""Pause of a listener that could not fetch a body."""
BUFFERED = 4096
"""Records a listener may lag behind before its buffer is dropped."""
BUFFERED_BYTES = 16 << 20
"""The same in bytes. Listeners share the records."""
SETTLING_TURNS = 8
"""Turns of the event loop for which a look at an aggregate waits for live events to be handled."""


class Feed(Reader):
    """Hears every event as it is stored, and hands it to the listeners in order."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self.position = 0
        """Stream sequence up to which every listener has been served."""
        self._listeners: dict[Aggregate | None, set[Listener]] = {}
        self._active = False
        self._live: Subscription | None = None
        self._handled = 0
        """Live events that were handled, or dropped and healed since."""
        self._handling = 0
        self._missing = 0
        """Sequence of the last event that must have been sent, received or not."""
        self._connection = 0
        """The connection (`Bus.reconnects`) under which the log was read up to its end."""
        self._positioned = asyncio.Event()
        """Set once `position` is valid, so that live events can be put in order."""

    async def start(self) -> None:
        """Subscribes to the live events. Call once, before any `follow`."""
        connection = self.bus.reconnects
        self._live = await self.bus.subscribe(self.bus.names.all_live, self._on_live)
        await self.bus.nc.flush()
        self.position = self._last_from = await self.last()
        self._last.clear()
        self._connection = connection
        self._positioned.set()

    async def watch(self) -> None:
        """Reads lost events that no later event has revealed, until cancelled."""
        reconnected, clock = asyncio.Event(), asyncio.get_running_loop().time
        looked = clock()
        with self.bus.on_reconnect(reconnected.set):
            while True:
                self._active = False
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_SECONDS):
                        await reconnected.wait()
                if self._active and not reconnected.is_set() and clock() < looked + LOOK_SECONDS:
                    continue
                looked = clock()
                reconnected.clear()
                try:
                    await self._heal_all()
                except Unavailable as error:
                    log.warning("log out of reach", error=str(error))

    @contextmanager
    def listen(self, aggregate: Aggregate | None, *, bodies: bool = True) -> Iterator[Listener]:
        """Yields a buffer that gets every event of an aggregate (None: of all) from `position` on. Without `bodies`,
        those in the object store are not fetched.
        """
        listener = Listener(self.whole if bodies else None)
        listeners = self._listeners.setdefault(aggregate, set())
        listeners.add(listener)
        try:
            yield listener
        finally:
            listeners.discard(listener)
            if not listeners and self._listeners.get(aggregate) is listeners:
                del self._listeners[aggregate]

    async def follow(self, aggregate: Aggregate, *, after: int = 0) -> AsyncIterator[Record]:
        """Yields the aggregate's events after a sequence, complete and in order, for ever. Never skips, however slow
        the reader.
        """
        with self.listen(aggregate) as listener:
            behind = True
            while True:
                if behind:
                    async for record in self.read(aggregate, after=after):
                        after = record.seq
                        yield record
                records, behind = await listener.take()
                for record in records:
                    if record.seq > after:
                        after = record.seq
                        yield record

    async def unchanged_until(self, aggregate: Aggregate, after: int) -> int | None:
        """Returns a sequence of the stream, not before `after`, up to which the aggregate has no event after `after`.
        Nor has it any such event that was acknowledged before the call. Returns None if it has one, or if only a read
        can tell. Costs an echo; on a replicated stream, a request. Raises `Unavailable`.
        """
        until, connection = max(self.position, after), self.bus.reconnects
        try:
            if self.bus.replicas > 1:
                return until if await self.first_after(aggregate, after) is None else None
            if not self._whole():
                return None
            await self.bus.echo()
            await self._settled()
        except Unavailable:
            if self.bus.reconnects == connection:
                raise  # a read would wait as long
            return None
        return max(self.position, after) if self._complete() and self._is_last(aggregate, after) else None

    def unchanged_here(self, aggregate: Aggregate, after: int, upto: int) -> int | None:
        """Returns the heard position, if it is not before `upto`, and if the aggregate has no event between `after` and
        there. None if it has one, or if only a request can tell.
        """
        heard = self.position >= upto and self._whole()
        return self.position if heard and self._is_last(aggregate, after) else None

    def _is_last(self, aggregate: Aggregate, after: int) -> bool:
        """True if no event of the aggregate after `after` was heard, as far as that is remembered."""
        return self._last.get(aggregate, after if after >= self._last_from else after + 1) <= after

    async def _settled(self) -> None:
        """Gives the handler of live events its turns, as far as events have arrived: that costs less than a read."""
        for _ in range(SETTLING_TURNS):
            if self._complete():
                return
            await asyncio.sleep(0)

    def _complete(self) -> bool:
        """True if all live events that have arrived were handled, and none is missing."""
        handled = self._live is not None and self._live.delivered == self._handled
        return handled and self._whole()

    def _whole(self) -> bool:
        """True if the live events are heard, and none that was sent before the last one is missing."""
        whole = self._connection == self.bus.reconnects and self._missing <= self.position
        return whole and self._positioned.is_set()

    async def _on_live(self, msg: Msg) -> None:
        self._handling = 1
        try:
            await self._receive(msg)
        finally:
            self._handling = 0
            self._handled += 1

    async def _receive(self, msg: Msg) -> None:
        seq = _sequence(msg)
        await self._positioned.wait()
        if seq is None:
            self.refused.note("a live message that the log has not sent")
            return
        if seq > self.position + 1:
            before, self._missing = self._missing, max(self._missing, seq - 1)
            try:
                if seq > await self.last():
                    self._missing = before
                    self.refused.note("a live message that the log has not sent")
                    return
                await self._heal(seq - 1)
            except Unavailable as error:
                log.warning("gap not healed yet", upto=seq - 1, error=str(error))
                return
        if seq == self.position + 1:
            self._deliver(self._record(msg))
            self.position = seq
        self._active = True

    async def _heal_all(self) -> None:
        """Reads the events that were not received up to the stream's end. Raises `Unavailable`."""
        connection, dropped = self.bus.reconnects, 0
        if self._live is not None:
            dropped = self._live.delivered - self._handled - self._handling - self._live.pending_msgs
        await self._heal(await self.last())
        self._connection = connection
        self._handled += dropped

    async def _heal(self, upto: int) -> None:
        """Reads the events that were not received. On a replicated stream the leader returns them one by one: gaps are
        rare, lagging replicas are not.
        """
        if upto <= self.position:
            return
        log.debug("healing", after=self.position, upto=upto)
        if self.bus.replicas > 1:
            await self._heal_from_leader(upto)
        else:
            async for record in self.between(self.position, upto, bodies=False):
                if record.seq > self.position:
                    self._deliver(record)
                    self.position = record.seq
        if self.position < upto:  # erased before they were received
            self.position = upto
            for listener in self._listeners.get(None, ()):
                listener.miss()

    async def _heal_from_leader(self, upto: int) -> None:
        while self.position < upto:
            stored = await self._from_leader({"seq": self.position + 1, "next_by_subj": self.bus.names.all_log})
            if stored is None or stored.seq > upto:
                return
            record = self._stored(stored.seq, stored.subject, stored.data, stored.header)
            if record.seq > self.position:
                self._deliver(record)
                self.position = record.seq

    def _deliver(self, record: Record) -> None:
        aggregate = record.aggregate
        self._note(aggregate, record.seq)
        if record.chain:
            self._chained(aggregate, record.seq, record.chain)
        for listener in self._listeners.get(aggregate, ()):
            listener.put(record)
        for listener in self._listeners.get(None, ()):
            listener.put(record)


def _sequence(msg: Msg) -> int | None:
    """Returns the sequence of a live event; None if the stream has not sent it."""
    headers = msg.headers or {}
    number = headers.get("Nats-Sequence", "")
    return int(number) if number.isdecimal() and len(number) < 20 and "Nats-Subject" in headers else None


class Listener:
    """A listener's bounded buffer. Overflow drops the buffer, and `take` reports it. Followers of a thread may `put`
    other items between its records, such as previews.
    """

    def __init__(self, whole: Callable[[Record], Awaitable[Record]] | None = None) -> None:
        self._whole = whole
        self._records: deque[Record] = deque()
        self._size = 0
        self._lost = False
        self._ready = asyncio.Event()

    def put(self, record: Record) -> None:
        if len(self._records) >= BUFFERED or self._size >= BUFFERED_BYTES:
            self._clear()
            self._lost = True
        self._records.append(record)
        self._size += len(record.raw) if isinstance(record, Record) else 0
        self._ready.set()

    def miss(self) -> None:
        """Counts records as dropped that will never come."""
        self._lost = True
        self._ready.set()

    async def ready(self) -> None:
        """Waits for records."""
        await self._ready.wait()

    async def take(self) -> tuple[list[Record], bool]:
        """Waits for records and returns those since the last call, and whether some were dropped: then read the log."""
        await self.ready()
        return await self.drain()

    async def drain(self) -> tuple[list[Record], bool]:
        """Like `take`, without waiting. If a body cannot be fetched now, the records count as dropped."""
        records, lost = list(self._records), self._lost
        self._clear()
        self._lost = False
        self._ready.clear()
        if lost or self._whole is None:
            return ([], True) if lost else (records, False)
        try:
            return [await self._whole(record) if isinstance(record, Record) else record for record in records], False
        except Unavailable as error:
            log.warning("bodies out of reach", error=str(error))
            await asyncio.sleep(BODY_SECONDS)
            return [], True

    def _clear(self) -> None:
        self._records.clear()
        self._size = 0
