"""The log: append, read, follow.

Theory of operation
-------------------
One aggregate is one literal subject of one JetStream stream. Three operations are all there is.

*Append* is guarded: it names the sequence it expects to be the aggregate's last. The server stores it or answers with
a conflict, so the guard is the lock and the fence. One event is a plain publish (0.2-0.4 ms with fsync); several are
an atomic batch (about 2.8 ms on one node), for the rare decision that is really several facts. Two things are easy to
get wrong and are owned here:

* A conflict has two codes: 10071 (with the actual sequence) and 10164 (on replicated streams, while another write is
  in flight).
* A lost acknowledgement is ambiguous, and a retry answers differently on one node (conflict) and on three
  (duplicate). So after a time-out or a conflict the *leader* is asked for the first message after the expected
  sequence: if it has our event id, the append succeeded; if there is none, the same bytes are sent again (the guard
  makes that safe); if it is somebody else's, it is a true conflict.

*Read* is batched direct get on the literal subject: no consumer. On a replicated stream any replica may answer, so
the tip is first read from the leader and the read goes on until it is reached (or `READ_SECONDS` have passed: then
it is refused).

*Follow* uses no consumer either: the stream republishes what it stores to core NATS. One subscription per process
hears every aggregate's events with their stream sequence, which is contiguous, so a lost message is noticed at the
next one (or within `IDLE_SECONDS`) and read from the log. Each listener has a bounded buffer; one that is too slow
loses its buffer, not its place: it goes on by reading the log. A body that lies in the object store is fetched by the
listener that takes the event, so that one listener's big bodies hold up nobody else. As the process hears everything,
it mostly knows without reading whether an aggregate has changed (`unchanged_until`; the proof is in
`core.log.repository`).

Rejected: wildcard subjects per event type (100 times slower to read, and wildcard guards are unsound on replicated
streams); a consumer per follower (server 2.15 allows 1 000 per stream); a subscription per thread (the process hears
the events anyway for its projections).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.errors import NotFoundError
from nats.js.object_store import ObjectStore

from core.bus.connection import ASK_SECONDS, MESSAGE_NOT_FOUND, ApiError, Bus
from core.cache import ByteCache
from core.config.redaction import redactor
from core.errors import Conflict, Invalid, Unavailable
from core.events import Aggregate, Blob, Event, Opaque, Record, decode, encode, unreadable, written
from core.ids import now, uuid7
from core.lifecycle import TEMPORARY, USED_TOOLS, WEBHOOK
from core.traces import TRACEPARENT

log = structlog.get_logger("sika.log")

LABELS = "Sika-Labels"
"""Header: what was true when an event was appended (`core.lifecycle.labels`), joined by commas."""
AUDIENCE = "Sika-Audience"
_LABEL_OF = {"webhooks": WEBHOOK, "janitor": TEMPORARY, "workspace": USED_TOOLS}
"""Instead of labels, older logs name actors in the header `AUDIENCE`."""
WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
SEND_AGAIN = frozenset({10201, 10176, 10158, 10008})
"""Answers that leave open what became of it: an id of the batch is there already; the server that had the beginning of
the batch is gone; what was sent before waits for a majority; the server is not ready. The leader is asked, and if
nothing is there, all is sent again.
"""
INLINE_BYTES = 64 * 1024
"""Bigger bodies go to the object store, the event holds the reference (claim check). The server's limit is 1 MiB."""
APPEND_SECONDS = 30.0
"""How long an append keeps asking what became of it before it gives up as `Unavailable`."""
READ_SECONDS = 30.0
"""How long a read waits for a replica to catch up with what the leader has."""
CACHED_BYTES = 32 << 20
"""Of bodies from the object store that are kept in memory."""
PAGE = 256
"""Messages per batched direct get; the server allows 1 024."""
IDLE_SECONDS = 5.0
"""How often a silent process checks that it has not missed the last message."""
BODY_SECONDS = 1.0
"""Pause of a listener that could not fetch a body."""
BUFFERED = 4096
"""Records a listener may lag behind before its buffer is dropped."""
HEARD = 20_000
"""Aggregates whose last event is remembered."""


class EventLog:
    """The only writer and the only reader of the log. One per process."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.position = 0
        """Stream sequence up to which every listener has been served."""
        self._stream = bus.names.stream("log")
        self._ears: dict[Aggregate | None, set[Ear]] = {}
        self._blobs = _Blobs(bus)
        self._heard = False
        self._live: Subscription | None = None
        self._handled = 0
        """Live events that were handled, or dropped and healed since."""
        self._handling = 0
        self._missing = 0
        """Sequence of the last event that must have been sent, heard or not."""
        self._connection = 0
        """The connection (`Bus.reconnects`) under which the log was read up to its end."""
        self._last: OrderedDict[Aggregate, int] = OrderedDict()
        """Sequence of the last event that is known of an aggregate, the newest last."""
        self._last_from = 0
        """Of an aggregate that is not among them no event after this is known."""
        self._placed = asyncio.Event()
        """The position is known: what comes live can be put in its place."""
        self.redact: Callable[[bytes], bytes] = redactor.event
        """Takes secrets out of an encoded event before it is stored, and is what everybody gets to see."""
        self.refused_at: float | None = None
        """When an append was not stored, if none was since."""

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
        """Append all or nothing, if `expected` (0: no event yet) is the aggregate's last sequence. `labels`: what is
        true of it, for actors that select by it (`Actor.only`). `traceparent`: the trace it is part of, as a header for
        others on the bus; our own readers find it in the log.

        Returns the records as stored. Raises `Invalid` if an event does not fit its own schema (nothing is stored
        then); `Conflict` if somebody else was first; `Unavailable` if the log did not answer for 30 s (then nobody
        can say whether it was stored: read before deciding again).
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
            await self._blobs.delete(aggregate, [_sha256(r.raw) for r, c in zip(records, claims, strict=True) if c])
            raise
        for number, record in enumerate(reversed(records)):
            record.seq = last - number
        self._note(aggregate, last)
        return records

    def _readable(self, event: Event, fields: Mapping[str, Any]) -> Record:
        """An event as it will be read: encoded, and decoded again."""
        try:
            raw = self.redact(encode(event, written(event, id=uuid7(), at=now(), **fields)))
            record = Record(0, raw)
            record.decoded(decode(record.head, raw))
        except (TypeError, ValueError, Invalid) as error:  # what JSON cannot say is a TypeError or a ValueError
            raise Invalid(f"{type(event).__name__} does not fit its own schema: {error}") from error
        return record

    async def _claim(self, aggregate: Aggregate, record: Record, deadline: float) -> bytes | None:
        """What is stored instead of a body that is too big; None if it is not."""
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
        """Send until it is known what became of it; the sequence of the last message."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while True:
            try:
                last = await (self._publish if len(messages) == 1 else self._publish_batch)(
                    aggregate, messages, expected, extra
                )
                self.refused_at = None
                return last
            except ApiError as error:
                if error.code not in WRONG_LAST_SEQUENCE | SEND_AGAIN:
                    raise Unavailable(f"the log refuses to store: {error}") from error
                problem: Exception = error
            except Unavailable as error:
                problem = error
            try:
                found = await self._first_after(aggregate, expected)
                if found and found.id == messages[0][0]:
                    return found.seq + len(messages) - 1
                if found:
                    self._note(aggregate, found.seq)
                    raise Conflict(str(aggregate), expected)
                refused = isinstance(problem, ApiError) and problem.code in WRONG_LAST_SEQUENCE
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
    ) -> int:
        [(identity, name, body)] = messages
        headers = {
            "Nats-Msg-Id": identity,
            "Nats-Expected-Last-Subject-Sequence": str(expected),
            "Sika-Type": name,
            **extra,
        }
        return _acknowledged(await self.bus.ask(self.bus.names.log(aggregate), body, headers))

    async def _publish_batch(
        self,
        aggregate: Aggregate,
        messages: Sequence[tuple[str, str, bytes]],
        expected: int,
        extra: Mapping[str, str],
    ) -> int:
        """ADR-50. The expectation may only be on the first message of a subject; the commit is answered for all."""
        subject, batch = self.bus.names.log(aggregate), uuid7()
        for number, (identity, name, body) in enumerate(messages, 1):
            headers = {
                "Nats-Msg-Id": identity,
                "Nats-Batch-Id": batch,
                "Nats-Batch-Sequence": str(number),
                "Sika-Type": name,
                **extra,
            }
            if number == 1:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
                opened = await self.bus.ask(subject, body, headers)
                if opened.data:
                    _acknowledged(opened)
            elif number < len(messages):
                await self.bus.publish(subject, body, headers)
        headers["Nats-Batch-Commit"] = "1"
        return _acknowledged(await self.bus.ask(subject, body, headers))

    # ── read ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def tip(self, aggregate: Aggregate) -> int:
        """The aggregate's last sequence, from the stream's leader; 0 if it has no events."""
        stored = await self._from_leader({"last_by_subj": self.bus.names.log(aggregate)})
        return stored.seq if stored else 0

    async def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncIterator[Record]:
        """The aggregate's events after a sequence (and up to one), oldest first, complete as of the call. Without
        `bodies`, big ones stay where they lie. Raises `Unavailable` if the events cannot be had in full.
        """
        async for record in self._heads(aggregate, after, upto):
            self._note(aggregate, record.seq)
            yield await self.whole(record) if bodies else record

    async def _heads(self, aggregate: Aggregate, after: int, upto: int | None = None) -> AsyncIterator[Record]:
        """Like `read`, but leaves bodies where they lie."""
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
        """All aggregates' events after a stream sequence, up to one, oldest first. Without `bodies`, big ones stay
        where they lie. Raises `Unavailable` if the events cannot be had in full.
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
        """The stream's last sequence."""
        return int((await self._info())["state"]["last_seq"])

    async def identity(self) -> str:
        """Tells this log from another one under the same name: when the stream was made."""
        return str((await self._info())["created"])

    async def _info(self) -> Any:
        try:
            return await self.bus.api(f"STREAM.INFO.{self._stream}")
        except ApiError as error:
            raise Unavailable(str(error)) from error

    async def purge(self, aggregate: Aggregate, *, before: int | None = None) -> None:
        """Forget an aggregate's events before a sequence (default: all but the last, the tombstone), and their bodies:
        these first, so that a purge that was cut short finds them again. Repeating it is fine.
        """
        first = await self.tip(aggregate) if before is None else before
        if not first:
            return
        blobs: dict[bool, set[str]] = {True: set(), False: set()}
        async for record in self._heads(aggregate, 0):
            if record.head.blob is not None:
                blobs[record.seq < first].add(record.head.blob.sha256)
        await self._blobs.delete(aggregate, blobs[True] - blobs[False])
        try:
            await self.bus.api(f"STREAM.PURGE.{self._stream}", {"filter": self.bus.names.log(aggregate), "seq": first})
        except ApiError as error:
            raise Unavailable(str(error)) from error

    async def _page(self, subject: str, start: int, most: int | None = None) -> tuple[list[Record], bool]:
        """Up to `most` (default: PAGE) records of a subject (or filter) from a sequence, and whether there are more."""
        request = msgspec.json.encode({"seq": start, "batch": most or PAGE, "next_by_subj": subject})
        found: list[Msg] = []
        async with self.bus.ask_many(f"$JS.API.DIRECT.GET.{self._stream}", request) as replies:
            while True:
                try:
                    async with asyncio.timeout(ASK_SECONDS):
                        msg = await replies.get()
                except TimeoutError as error:
                    raise self.bus.unavailable("the log does not answer") from error
                status = msg.headers.get("Status") if msg.headers else None
                if status is None:
                    found.append(msg)
                    continue
                if status == "503":
                    raise self.bus.unavailable("the log is not available")
                pending = int((msg.headers or {}).get("Nats-Num-Pending", "0"))
                return [self._record(m) for m in found], status == "204" and pending > 0

    async def _first_after(self, aggregate: Aggregate, seq: int) -> Record | None:
        """The aggregate's first event after a sequence, from the stream's leader."""
        stored = await self._from_leader({"seq": seq + 1, "next_by_subj": self.bus.names.log(aggregate)})
        return Record(stored.seq, stored.data) if stored else None

    async def _from_leader(self, request: Mapping[str, Any]) -> _Stored | None:
        """One message, as the stream's leader has it; None if there is no such message."""
        try:
            reply = await self.bus.api(f"STREAM.MSG.GET.{self._stream}", request)
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise Unavailable(str(error)) from error
        return msgspec.convert(reply["message"], _Stored, strict=False)

    def _record(self, msg: Msg) -> Record:
        """The record of a message, as the stream republished it or as direct get returned it."""
        headers = msg.headers
        assert headers
        return self._stored(int(headers["Nats-Sequence"]), headers["Nats-Subject"], msg.data, _labels(headers))

    def _stored(self, seq: int, subject: str, data: bytes, labels: frozenset[str]) -> Record:
        """What cannot be read as an event must not stop everybody else."""
        try:
            return Record(seq, data, labels=labels)
        except Invalid as error:
            log.error("not an event", seq=seq, subject=subject, error=str(error))
            return unreadable(seq, data, self.bus.names.aggregate(subject), str(error))

    async def whole(self, record: Record) -> Record:
        """A record with its body in place of the reference to it. If the body is lost or damaged, the record says so:
        its event is `Opaque`, with the problem.
        """
        if record.head.blob is None:
            return record
        try:
            return Record(record.seq, await self._blobs.get(record), labels=record.labels)
        except Invalid as error:
            log.error("an event without its body", seq=record.seq, error=str(error))
            return Record(record.seq, record.raw, record.head, Opaque(record.type, str(error)), record.labels)

    # ── follow ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Begin to listen. Call once, before any `follow`."""
        connection = self.bus.reconnects
        self._live = await self.bus.subscribe(self.bus.names.all_live, self._on_live)
        await self.bus.nc.flush()
        self.position = self._last_from = await self.last()
        self._last.clear()
        self._connection = connection
        self._placed.set()

    async def watch(self) -> None:
        """Runs for as long as the process: finds what was lost when nothing came after it."""
        reconnected = asyncio.Event()
        with self.bus.on_reconnect(reconnected.set):
            while True:
                self._heard = False
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_SECONDS):
                        await reconnected.wait()
                if self._heard and not reconnected.is_set():
                    continue
                reconnected.clear()
                try:
                    await self._heal_all()
                except Unavailable as error:
                    log.warning("log out of reach", error=str(error))

    @contextmanager
    def listen(self, aggregate: Aggregate | None, *, bodies: bool = True) -> Iterator[Ear]:
        """A buffer that gets every event of an aggregate (None: of all) from `position` on. Without `bodies`, big ones
        stay where they lie.
        """
        ear = Ear(self.whole if bodies else None)
        ears = self._ears.setdefault(aggregate, set())
        ears.add(ear)
        try:
            yield ear
        finally:
            ears.discard(ear)
            if not ears and self._ears.get(aggregate) is ears:
                del self._ears[aggregate]

    async def follow(self, aggregate: Aggregate, *, after: int = 0) -> AsyncIterator[Record]:
        """The aggregate's events after a sequence, complete and in order, for ever. Never skips, however slow the
        reader.
        """
        with self.listen(aggregate) as ear:
            behind = True
            while True:
                if behind:
                    async for record in self.read(aggregate, after=after):
                        after = record.seq
                        yield record
                records, behind = await ear.take()
                for record in records:
                    if record.seq > after:
                        after = record.seq
                        yield record

    async def unchanged_until(self, aggregate: Aggregate, after: int) -> int | None:
        """Returns a sequence of the stream, not before `after`, up to which the aggregate has no event after `after`;
        nor has it any that was acknowledged before the call. None if it has one, or if that cannot be told without
        reading. Costs a message to ourselves; on a replicated stream, a request. Raises `Unavailable`.
        """
        until, connection = max(self.position, after), self.bus.reconnects
        try:
            if self.bus.replicas > 1:
                return until if await self._first_after(aggregate, after) is None else None
            if not self._hears_all():
                return None
            await self.bus.echo()
        except Unavailable:
            if self.bus.reconnects == connection:
                raise  # a read would wait as long
            return None
        last = self._last.get(aggregate, after if after >= self._last_from else after + 1)
        return max(self.position, after) if self._hears_all() and last <= after else None

    def _hears_all(self) -> bool:
        """Whether everything that has arrived was handled, and nothing is known to be missing."""
        handled = self._live is not None and self._live.delivered == self._handled
        whole = self._connection == self.bus.reconnects and self._missing <= self.position
        return handled and whole and self._placed.is_set()

    def _note(self, aggregate: Aggregate, seq: int) -> None:
        """Remember an event of an aggregate. One that is older than what was forgotten tells nothing."""
        if seq <= self._last_from and aggregate not in self._last:
            return
        self._last[aggregate] = max(seq, self._last.pop(aggregate, 0))
        if len(self._last) > HEARD:
            self._last_from = max(self._last_from, self._last.popitem(last=False)[1])

    async def _on_live(self, msg: Msg) -> None:
        self._handling = 1
        try:
            await self._hear(msg)
        finally:
            self._handling = 0
            self._handled += 1

    async def _hear(self, msg: Msg) -> None:
        assert msg.headers
        seq = int(msg.headers["Nats-Sequence"])
        await self._placed.wait()
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
        self._heard = True

    async def _heal_all(self) -> None:
        """Read what was not heard up to the stream's end. Raises `Unavailable`."""
        connection, dropped = self.bus.reconnects, 0
        if self._live is not None:
            dropped = self._live.delivered - self._handled - self._handling - self._live.pending_msgs
        await self._heal(await self.last())
        self._connection = connection
        self._handled += dropped

    async def _heal(self, upto: int) -> None:
        """Read what was not heard. On a replicated stream the leader is asked, one by one: gaps are rare, lagging
        replicas are not.
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
        self.position = max(self.position, upto)

    async def _heal_from_leader(self, upto: int) -> None:
        while self.position < upto:
            stored = await self._from_leader({"seq": self.position + 1, "next_by_subj": self.bus.names.all_log})
            if stored is None or stored.seq > upto:
                return
            record = self._stored(stored.seq, stored.subject, stored.data, stored.labels)
            if record.seq > self.position:
                self._deliver(record)
                self.position = record.seq

    def _deliver(self, record: Record) -> None:
        aggregate = record.aggregate
        self._note(aggregate, record.seq)
        for ear in self._ears.get(aggregate, ()):
            ear.put(record)
        for ear in self._ears.get(None, ()):
            ear.put(record)


class Ear:
    """A listener's bounded buffer. Overflow drops the buffer, and `take` says so. Who follows a thread may `put` other
    things between its records, such as previews.
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

    async def take(self) -> tuple[list[Record], bool]:
        """What came since the last call (waiting for something), and whether something was dropped: then read the
        log.
        """
        await self._ready.wait()
        return await self.drain()

    async def drain(self) -> tuple[list[Record], bool]:
        """Like `take`, without waiting. If a body cannot be fetched now, that is as if something had been dropped."""
        records, lost = list(self._records), self._lost
        self._records.clear()
        self._lost = False
        self._ready.clear()
        if lost or self._whole is None:
            return ([], True) if lost else (records, False)
        try:
            return [await self._whole(one) if isinstance(one, Record) else one for one in records], False
        except Unavailable as error:
            log.warning("bodies out of reach", error=str(error))
            await asyncio.sleep(BODY_SECONDS)
            return [], True


class _Stored(msgspec.Struct):
    """A message of the stream as `STREAM.MSG.GET` returns it; `data` and `hdrs` are base64 on the wire."""

    seq: int
    subject: str
    data: bytes = b""
    hdrs: bytes = b""

    @property
    def labels(self) -> frozenset[str]:
        return _labels(dict(re.findall(r"^([\w-]+): *(.*?)\r$", self.hdrs.decode(), re.MULTILINE)))


def _labels(headers: Mapping[str, str]) -> frozenset[str]:
    """Returns the labels of a stored event."""
    if labels := headers.get(LABELS):
        return frozenset(labels.split(","))
    audience = headers.get(AUDIENCE, "").split(",")
    return frozenset(_LABEL_OF[name] for name in audience if name in _LABEL_OF)


def _acknowledged(reply: Msg) -> int:
    answer = msgspec.json.decode(reply.data)
    if error := answer.get("error"):
        raise ApiError(error.get("err_code", 0), error.get("description", ""))
    return int(answer["seq"])


class _Blobs:
    """Bodies too big for the log, in JetStream's object store; named by aggregate and hash, so that erasing finds
    them.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._store: ObjectStore | None = None
        self._recent: ByteCache[str, bytes] = ByteCache(CACHED_BYTES)
        self._fetching: dict[str, asyncio.Future[bytes]] = {}
        """Bodies on their way: several listeners want the same ones."""

    async def put(self, aggregate: Aggregate, body: bytes, deadline: float) -> Blob:
        """Store a body, again and again up to a `deadline` of the loop's clock: under its hash that is harmless."""
        blob = Blob(_sha256(body), len(body))
        while True:
            try:
                with _reaching():
                    await (await self._open()).put(_blob_name(aggregate, blob), body)
                return blob
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.2)

    async def get(self, record: Record) -> bytes:
        """A record's body. Raises `Invalid` if it is lost or damaged, `Unavailable`."""
        assert record.head.blob
        name = _blob_name(record.aggregate, record.head.blob)
        body = self._recent.get(name)
        while body is None and (fetching := self._fetching.get(name)):
            await asyncio.wait([fetching])
            body = self._recent.get(name)
        if body is None:
            self._fetching[name] = asyncio.get_running_loop().create_future()
            try:
                body = await self._fetched(name, record)
                self._recent.put(name, body, len(body))
            finally:
                self._fetching.pop(name).cancel()
        return body

    async def _fetched(self, name: str, record: Record) -> bytes:
        assert record.head.blob
        try:
            with _reaching():
                async with asyncio.timeout(READ_SECONDS):
                    body = (await (await self._open()).get(name)).data or b""
        except NotFoundError as error:
            raise Invalid(f"event {record.id}: its body {name} is not in the object store") from error
        if _sha256(body) != record.head.blob.sha256:
            raise Invalid(f"event {record.id}: its body does not match its hash")
        return body

    async def delete(self, aggregate: Aggregate, hashes: Collection[str]) -> None:
        """Those of an aggregate's bodies; what is not there is fine."""
        for sha256 in hashes:
            name = f"{aggregate.kind}.{aggregate.id}.{sha256}"
            self._recent.drop(name)
            with suppress(NotFoundError), _reaching():
                await (await self._open()).delete(name)

    async def _open(self) -> ObjectStore:
        if self._store is None:
            js = self._bus.nc.jetstream()
            try:
                self._store = await js.object_store(self._bus.names.blobs)
            except NotFoundError:
                self._store = await js.create_object_store(self._bus.names.blobs, replicas=self._bus.replicas)
        return self._store


@contextmanager
def _reaching() -> Iterator[None]:
    """nats-py's errors as ours; that something is not there is for the caller."""
    try:
        yield
    except NotFoundError:
        raise
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise Unavailable(f"object store: {str(error) or type(error).__name__}") from error


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _blob_name(aggregate: Aggregate, blob: Blob) -> str:
    return f"{aggregate.kind}.{aggregate.id}.{blob.sha256}"
