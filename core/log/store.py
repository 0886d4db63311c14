"""The log: append, read, follow.

Theory of operation
-------------------
An aggregate is a literal subject of the JetStream stream. There are three operations.

*Append* is guarded: it names the sequence it expects to be the aggregate's last. The server stores it or answers with
a conflict, so the guard is the lock and the fence. One event is a plain publish (0.2-0.4 ms with fsync). Several are
an atomic batch (about 2.8 ms on one node), for the rare decision that is really several facts. Two pitfalls:

* A conflict has two codes: 10071 (with the actual sequence) and 10164 (on replicated streams, while another write is
  in flight).
* A lost acknowledgement is ambiguous, and a retry answers differently on one node (conflict) and on three
  (duplicate). So after a timeout or a conflict the *leader* is asked for the first message after the expected
  sequence. If it has our event id, the append succeeded. If there is none, the same bytes are sent again (the guard
  makes that safe). If it has another id, it is a true conflict.

*Read* is batched direct get on the literal subject: no consumer. On a replicated stream any replica may answer, so
the tip is first read from the leader. The read goes on until the tip is reached; after `READ_SECONDS` it fails.

*Follow* uses no consumer either: the stream republishes stored messages to core NATS. A process has one subscription,
which receives every aggregate's events with their stream sequence. Sequences are contiguous, so a lost message is
noticed at the next one (or within `IDLE_SECONDS`) and read from the log. Each listener has a bounded buffer; a slow
listener loses its buffer, not its offset, and goes on by reading the log. The listener that takes an event fetches its
body from the object store, so that big bodies do not delay the others. As the process receives all events, it mostly
knows without reading whether an aggregate has changed (`unchanged_until`; the proof is in `core.log.repository`).

Rejected: wildcard subjects per event type (100 times slower to read, and wildcard guards are unsound on replicated
streams); a consumer per follower (server 2.15 allows 1 000 per stream); a subscription per thread (the process
receives the events anyway for its projections).
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from core.bus.connection import WRONG_LAST_SEQUENCE, ApiError, Bus, checked
from core.bus.streams import Stored, direct_get, find, purge
from core.config.redaction import redactor
from core.errors import Conflict, Invalid, Unavailable
from core.events import Aggregate, Event, Opaque, Record, decode, encode, unreadable, written
from core.ids import now, uuid7
from core.lifecycle import TEMPORARY, USED_TOOLS, WEBHOOK
from core.log.blobs import Blobs, sha256_of
from core.log.chain import CHAIN, START, link
from core.log.erasure import Eraser
from core.traces import TRACEPARENT

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

log = structlog.get_logger("sika.log")

LABELS = "Sika-Labels"
"""Header: the labels of an event when it was appended (`core.lifecycle.labels`), joined by commas."""
AUDIENCE = "Sika-Audience"
_LABEL_OF = {"webhooks": WEBHOOK, "janitor": TEMPORARY, "workspace": USED_TOOLS}
"""Instead of labels, older logs name actors in the header `AUDIENCE`."""
UNDECIDED = frozenset({10201, 10176, 10158, 10008})
"""Errors that leave the outcome open: an id of the batch is there already; the server that had the beginning of the
batch is lost; an earlier message waits for a majority; the server is not ready. The leader is asked, and if it has no
message, all are sent again.
"""
INLINE_BYTES = 64 * 1024
"""Bigger bodies go to the object store, the event holds the reference (claim check). The server's limit is 1 MiB."""
APPEND_SECONDS = 30.0
"""Timeout of an append whose outcome is open: then it raises `Unavailable`."""
READ_SECONDS = 30.0
"""Timeout of a read that waits for a replica to catch up with the leader."""
PAGE = 256
"""Messages per batched direct get; the server allows 1 024."""
IDLE_SECONDS = 5.0
"""Interval in which a process that receives nothing checks that it has not missed the last message."""
BODY_SECONDS = 1.0
"""Pause of a listener that could not fetch a body."""
BUFFERED = 4096
"""Records a listener may lag behind before its buffer is dropped."""
SETTLING_TURNS = 8
"""Turns of the event loop for which a look at an aggregate waits for live events to be handled."""
HEARD = 20_000
"""Aggregates whose last event is remembered."""


class EventLog:
    """The only writer and the only reader of the log. One per process."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.position = 0
        """Stream sequence up to which every listener has been served."""
        self._stream = bus.names.stream("log")
        self._listeners: dict[Aggregate | None, set[Listener]] = {}
        self._blobs = Blobs(bus)
        self._eraser = Eraser(bus, self._blobs)
        self._active = False
        self._live: Subscription | None = None
        self._handled = 0
        """Live events that were handled, or dropped and healed since."""
        self._handling = 0
        self._missing = 0
        """Sequence of the last event that must have been sent, received or not."""
        self._connection = 0
        """The connection (`Bus.reconnects`) under which the log was read up to its end."""
        self._last: OrderedDict[Aggregate, int] = OrderedDict()
        """Last sequences of the aggregates with the newest events, the newest last."""
        self._chains: OrderedDict[Aggregate, tuple[int, str]] = OrderedDict()
        """Last sequences and hashes of aggregates (`core.log.chain`), those that were used last at the end."""
        self._last_from = 0
        """No event after this sequence is known of any other aggregate."""
        self._positioned = asyncio.Event()
        """Set once `position` is valid, so that live events can be put in order."""
        self.redact: Callable[[bytes], bytes] = redactor.event
        """Redacts secrets in an encoded event before it is stored."""
        self.refused_at: float | None = None
        """Time of the last append that was not stored, if none was stored since."""

    # ── append ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def append(
        self,
        aggregate: Aggregate,
        events: Sequence[Event],
        *,
        expected: int,
        actor: str,
        run: str | None = None,
        cause: str | None = None,
        labels: Collection[str] = (),
        traceparent: str | None = None,
    ) -> list[Record]:
        """Appends all or nothing, if `expected` (0: no event yet) is the aggregate's last sequence. Returns the records
        as stored.

        Actors select by `labels` (`Actor.only`). `traceparent` becomes a header for other clients of the bus; the
        server's own readers find the trace in the log. Raises `Invalid` if an event does not fit its own schema
        (nothing is stored then). Raises `Conflict` if another writer was first. Raises `Unavailable` if the log did not
        answer for 30 s: the outcome is unknown then, so read before deciding again.
        """
        deadline = asyncio.get_running_loop().time() + APPEND_SECONDS
        fields = {"kind": aggregate.kind, "aggregate_id": aggregate.id, "actor": actor, "run": run, "cause": cause}
        records = [self._readable(event, fields) for event in events]
        claims = [await self._claim(aggregate, record, deadline) for record in records]
        messages = [
            (record.id, record.type, claim or record.raw) for record, claim in zip(records, claims, strict=True)
        ]
        extra = {LABELS: ",".join(sorted(labels))} if labels else {}
        if traceparent:
            extra[TRACEPARENT] = traceparent
        try:
            last = await self._store(aggregate, messages, expected, extra, deadline)
        except Conflict:
            await self._blobs.erase(aggregate, [sha256_of(r.raw) for r, c in zip(records, claims, strict=True) if c])
            raise
        for number, record in enumerate(reversed(records)):
            record.seq = last - number
        self._note(aggregate, last)
        return records

    async def restore(
        self, aggregate: Aggregate, bodies: Sequence[bytes], *, expected: int, labels: Collection[str] = ()
    ) -> int:
        """Appends events as they were stored elsewhere, with their ids and times, all or nothing. Secrets in force are
        redacted. Returns the last sequence. Raises like `append`.
        """
        deadline = asyncio.get_running_loop().time() + APPEND_SECONDS
        records = [Record(0, self.redact(body)) for body in bodies]
        claims = [await self._claim(aggregate, record, deadline) for record in records]
        messages = [(r.id, r.type, claim or r.raw) for r, claim in zip(records, claims, strict=True)]
        extra = {LABELS: ",".join(sorted(labels))} if labels else {}
        last = await self._store(aggregate, messages, expected, extra, deadline)
        self._note(aggregate, last)
        return last

    def _readable(self, event: Event, fields: Mapping[str, Any]) -> Record:
        """Returns an event as it will be read: encoded, and decoded again."""
        try:
            raw = self.redact(encode(event, written(event, id=uuid7(), at=now(), **fields)))
            record = Record(0, raw)
            record.decoded(decode(record.head, raw))
        except (TypeError, ValueError, Invalid) as error:  # values without JSON are a TypeError or a ValueError
            raise Invalid(f"{type(event).__name__} does not fit its own schema: {error}") from error
        return record

    async def _claim(self, aggregate: Aggregate, record: Record, deadline: float) -> bytes | None:
        """Returns the reference that is stored instead of a body that is too big; None for other bodies."""
        if len(record.raw) <= INLINE_BYTES:
            return None
        blob = await self._blobs.put(aggregate, record.raw, deadline)
        return msgspec.json.encode(msgspec.structs.replace(record.head, blob=blob))

    async def _store(
        self,
        aggregate: Aggregate,
        messages: Sequence[tuple[str, str, bytes]],
        expected: int,
        extra: Mapping[str, str],
        deadline: float,
    ) -> int:
        """Sends until the outcome is known; returns the sequence of the last message."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while True:
            try:
                hashes = _hashes(await self._chain(aggregate, expected), messages)
                last = await self._publish(aggregate, messages, expected, extra, hashes)
                self.refused_at = None
                self._chained(aggregate, last, hashes[-1])
                return last
            except ApiError as error:
                if error.err_code not in WRONG_LAST_SEQUENCE | UNDECIDED:
                    raise Unavailable(f"the log refuses to store: {error}") from error
                problem: Unavailable = error
            except Unavailable as error:
                problem = error
            try:
                stored = await self._first_after(aggregate, expected)
                if stored and stored.id == messages[0][0]:
                    return stored.seq + len(messages) - 1  # its hash is read when it is needed
                if stored:
                    self._note(aggregate, stored.seq)
                    raise Conflict(str(aggregate), expected)
                refused = isinstance(problem, ApiError) and problem.err_code in WRONG_LAST_SEQUENCE
                if refused and await self.tip(aggregate) < expected:
                    raise Conflict(str(aggregate), expected)
            except Unavailable as error:
                problem = error
            self.refused_at = loop.time()
            if loop.time() + pause > deadline:
                raise Unavailable(
                    f"{aggregate}: unknown whether it was stored: {problem} "
                    "(if this goes on, the disk of the nats-server may be full)"
                ) from problem
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2 or 0.05)

    async def _publish(
        self,
        aggregate: Aggregate,
        messages: Sequence[tuple[str, str, bytes]],
        expected: int,
        extra: Mapping[str, str],
        hashes: Sequence[str],
    ) -> int:
        """Stores one message plainly, several as an atomic batch (ADR-50). Only the first message of a batch may carry
        the expectation; the commit is acknowledged for all.
        """
        subject, size = self.bus.names.log(aggregate), len(messages)
        batch = uuid7() if size > 1 else ""
        for number, (identity, name, body) in enumerate(messages, 1):
            headers = {"Nats-Msg-Id": identity, "Sika-Type": name, CHAIN: hashes[number - 1], **extra}
            if number == 1:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
            if size > 1:
                headers |= {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number == size:
                break
            if number > 1:
                await self.bus.publish(subject, body, headers)
            elif (reply := await self.bus.ask(subject, body, headers)).data:
                checked(reply)
        return await self.bus.store(subject, body, headers | ({"Nats-Batch-Commit": "1"} if size > 1 else {}))

    async def _chain(self, aggregate: Aggregate, expected: int) -> str:
        """Returns the hash of an aggregate's event `expected`. Costs a request if this process has not met it."""
        seq, chain = self._chains.get(aggregate, (0, START))
        if seq == expected:
            return chain
        stored = await self._from_leader({"last_by_subj": self.bus.names.log(aggregate)}) if expected else None
        return (stored.header(CHAIN) if stored and stored.seq == expected else None) or START

    def _chained(self, aggregate: Aggregate, seq: int, chain: str) -> None:
        """Remembers the hash of an aggregate's last event."""
        self._chains.pop(aggregate, None)
        self._chains[aggregate] = seq, chain
        if len(self._chains) > HEARD:
            self._chains.popitem(last=False)

    # ── read ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def tip(self, aggregate: Aggregate) -> int:
        """Returns the aggregate's last sequence, from the stream's leader; 0 if it has no events."""
        stored = await self._from_leader({"last_by_subj": self.bus.names.log(aggregate)})
        return stored.seq if stored else 0

    async def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncIterator[Record]:
        """Yields the aggregate's events after a sequence (up to `upto`), oldest first, complete as of the call. Without
        `bodies`, big ones are not fetched. Raises `Unavailable` if some cannot be read.
        """
        async for record in self._heads(aggregate, after, upto):
            self._note(aggregate, record.seq)
            if record.chain:  # a writer has mostly read what it appends to
                self._chained(aggregate, record.seq, record.chain)
            yield await self.whole(record) if bodies else record

    async def _heads(self, aggregate: Aggregate, after: int, upto: int | None = None) -> AsyncIterator[Record]:
        """Like `read`, without the bodies in the object store."""
        if upto is not None and upto <= after:
            return
        subject = self.bus.names.log(aggregate)
        tip = await self.tip(aggregate) if self.bus.replicas > 1 else None
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        while True:
            page, more = await self._page(subject, after + 1, None if upto is None else min(PAGE, upto - after))
            for record in page:
                if upto is not None and record.seq > upto:
                    return
                yield record
                after = record.seq
            if after == upto:
                return
            if more and page:
                continue
            if tip is None or after >= tip:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"{aggregate}: a replica is behind its leader: at {after} of {tip}")
            await asyncio.sleep(0.02)  # a replica that is behind its leader answered

    async def between(self, after: int, upto: int, *, bodies: bool = True) -> AsyncIterator[Record]:
        """Yields all aggregates' events after a stream sequence, up to `upto`, oldest first. Without `bodies`, those in
        the object store are not fetched. Raises `Unavailable` if some events cannot be read.
        """
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        while after < upto:
            page, more = await self._page(self.bus.names.all_log, after + 1)
            for record in page:
                if record.seq > upto:
                    return
                yield await self.whole(record) if bodies else record
                deadline = asyncio.get_running_loop().time() + READ_SECONDS
                after = record.seq
            if more:
                continue
            if self.bus.replicas == 1 or after >= upto:
                return
            stored = await self._from_leader({"seq": after + 1, "next_by_subj": self.bus.names.all_log})
            if stored is None or stored.seq > upto:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"a replica is behind its leader: at {after} of {upto}")
            await asyncio.sleep(0.02)  # a replica that is behind its leader answered

    async def last(self) -> int:
        """Returns the stream's last sequence."""
        return int((await self._info())["state"]["last_seq"])

    async def identity(self) -> str:
        """Returns the creation time of the stream, which tells this log from another one under the same name."""
        return str((await self._info())["created"])

    async def _info(self) -> Any:
        return await self.bus.api(f"STREAM.INFO.{self._stream}")

    async def purge(self, aggregate: Aggregate, *, before: int | None = None) -> None:
        """Deletes an aggregate's events before a sequence (default: all but the last). For counters, whose events carry
        nothing that people wrote: the bytes stay on the disk, and can no longer be erased. May be repeated.
        """
        if first := await self.tip(aggregate) if before is None else before:
            await purge(self.bus, "log", self.bus.names.log(aggregate), before=first)

    async def erase(self, aggregate: Aggregate, *, before: int | None = None, seconds: float = math.inf) -> bool:
        """Overwrites an aggregate's events before a sequence (default: all but the last, the tombstone) on the disk,
        and deletes them. Returns False if `seconds` passed before the end: call again. Append what makes the events
        obsolete first. See `core.log.erasure`. Raises `Unavailable`.
        """
        last = await self.tip(aggregate) if before is None else before
        done = await self._eraser.erase(self.read(aggregate, upto=max(0, last - 1), bodies=False), seconds)
        if done and before is None:
            await self._blobs.erase_rest(aggregate)
        return done

    async def erase_records(self, records: AsyncIterator[Record], seconds: float = math.inf) -> bool:
        """Erases single events of aggregates as `erase` does. Non-guarantee: the last one of an aggregate must not be
        among them, else its next writer conflicts."""
        return await self._eraser.erase(records, seconds)

    async def _page(self, subject: str, start: int, limit: int | None = None) -> tuple[list[Record], bool]:
        """Returns up to `limit` (default: PAGE) records of a subject (or filter) from a sequence on, and whether there
        are more.
        """
        messages, more = await direct_get(self.bus, "log", subject, start, limit or PAGE)
        return [self._record(msg) for msg in messages], more

    async def _first_after(self, aggregate: Aggregate, seq: int) -> Record | None:
        """Returns the aggregate's first event after a sequence, from the stream's leader."""
        stored = await self._from_leader({"seq": seq + 1, "next_by_subj": self.bus.names.log(aggregate)})
        return Record(stored.seq, stored.data) if stored else None

    async def _from_leader(self, request: Mapping[str, Any]) -> Stored | None:
        return await find(self.bus, "log", request)

    def _record(self, msg: Msg) -> Record:
        """Returns the record of a message, as the stream republished it or as direct get returned it."""
        headers = msg.headers
        assert headers
        return self._stored(int(headers["Nats-Sequence"]), headers["Nats-Subject"], msg.data, headers.get)

    def _stored(self, seq: int, subject: str, data: bytes, header: Callable[[str], str | None]) -> Record:
        """Returns the record of a message; a placeholder if it is no event, so that it stops no reader."""
        try:
            return Record(seq, data, labels=_labels(header), chain=header(CHAIN))
        except Invalid as error:
            log.error("not an event", seq=seq, subject=subject, error=str(error))
            return unreadable(seq, data, self.bus.names.aggregate(subject), str(error))

    async def whole(self, record: Record) -> Record:
        """Returns a record with its body in place of the reference to it. If the body is lost or damaged, the event is
        `Opaque`, with the problem.
        """
        if record.head.blob is None:
            return record
        try:
            return Record(record.seq, await self.body(record), labels=record.labels, chain=record.chain)
        except Invalid as error:
            log.error("an event without its body", seq=record.seq, error=str(error))
            return Record(record.seq, record.raw, record.head, Opaque(record.type, str(error)), record.labels)

    async def body(self, record: Record) -> bytes:
        """Returns the body of a record that lies in the object store. Raises `Invalid` if it is lost or damaged."""
        return await self._blobs.get(record)

    # ── follow ──────────────────────────────────────────────────────────────────────────────────────────────────────

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
        reconnected = asyncio.Event()
        with self.bus.on_reconnect(reconnected.set):
            while True:
                self._active = False
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_SECONDS):
                        await reconnected.wait()
                if self._active and not reconnected.is_set():
                    continue
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
                return until if await self._first_after(aggregate, after) is None else None
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

    def _note(self, aggregate: Aggregate, seq: int) -> None:
        """Remembers an aggregate's last event. An event older than the evicted entries proves nothing."""
        if seq <= self._last_from and aggregate not in self._last:
            return
        self._last[aggregate] = max(seq, self._last.pop(aggregate, 0))
        if len(self._last) > HEARD:
            self._last_from = max(self._last_from, self._last.popitem(last=False)[1])

    async def _on_live(self, msg: Msg) -> None:
        self._handling = 1
        try:
            await self._receive(msg)
        finally:
            self._handling = 0
            self._handled += 1

    async def _receive(self, msg: Msg) -> None:
        assert msg.headers
        seq = int(msg.headers["Nats-Sequence"])
        await self._positioned.wait()
        self._missing = max(self._missing, seq - 1)
        if seq > self.position + 1:
            try:
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


class Listener:
    """A listener's bounded buffer. Overflow drops the buffer, and `take` reports it. Followers of a thread may `put`
    other items between its records, such as previews.
    """

    def __init__(self, whole: Callable[[Record], Awaitable[Record]] | None = None) -> None:
        self._whole = whole
        self._records: deque[Record] = deque()
        self._lost = False
        self._ready = asyncio.Event()

    def put(self, record: Record) -> None:
        if len(self._records) >= BUFFERED:
            self._records.clear()
            self._lost = True
        self._records.append(record)
        self._ready.set()

    def miss(self) -> None:
        """Counts records as dropped that will never come."""
        self._lost = True
        self._ready.set()

    async def take(self) -> tuple[list[Record], bool]:
        """Waits for records and returns those since the last call, and whether some were dropped: then read the log."""
        await self._ready.wait()
        return await self.drain()

    async def drain(self) -> tuple[list[Record], bool]:
        """Like `take`, without waiting. If a body cannot be fetched now, the records count as dropped."""
        records, lost = list(self._records), self._lost
        self._records.clear()
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


def _labels(header: Callable[[str], str | None]) -> frozenset[str]:
    """Returns the labels of a stored event."""
    if labels := header(LABELS):
        return frozenset(labels.split(","))
    audience = (header(AUDIENCE) or "").split(",")
    return frozenset(_LABEL_OF[name] for name in audience if name in _LABEL_OF)


def _hashes(before: str, messages: Sequence[tuple[str, str, bytes]]) -> list[str]:
    """Returns the hashes of messages in the chain of their aggregate."""
    return list(accumulate((body for _, _, body in messages), link, initial=before))[1:]
