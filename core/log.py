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
the tip is first read from the leader and the read goes on until it is reached.

*Follow* uses no consumer either: the stream republishes what it stores to core NATS. One subscription per process
hears every aggregate's events with their stream sequence, which is contiguous, so a lost message is noticed at the
next one (or within `IDLE_SECONDS`) and read from the log. Each listener has a bounded buffer; one that is too slow
loses its buffer, not its place: it goes on by reading the log.

Rejected: wildcard subjects per event type (100 times slower to read, and wildcard guards are unsound on replicated
streams); a consumer per follower (server 2.15 allows 1 000 per stream); a subscription per thread (the process hears
the events anyway for its projections).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError
from nats.js.object_store import ObjectStore

from core.bus import ASK_SECONDS, MESSAGE_NOT_FOUND, ApiError, Bus
from core.errors import Conflict, Invalid, Unavailable
from core.events import Aggregate, Blob, Event, Record, encode, unreadable, written
from core.ids import now, uuid7
from core.traces import TRACEPARENT

log = structlog.get_logger("sika.log")

AUDIENCE = "Sika-Audience"
"""Header: the actors an event was appended for, joined by commas."""
WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
SEND_AGAIN = frozenset({10201, 10176, 10008})
"""Answers that leave open what became of it: an id of the batch is there already; the server that had the beginning of
the batch is gone; the server is not ready. The leader is asked, and if nothing is there, all is sent again.
"""
INLINE_BYTES = 64 * 1024
"""Bigger bodies go to the object store, the event holds the reference (claim check). The server's limit is 1 MiB."""
APPEND_SECONDS = 30.0
"""How long an append keeps asking what became of it before it gives up as `Unavailable`."""
PAGE = 256
"""Messages per batched direct get; the server allows 1 024."""
IDLE_SECONDS = 5.0
"""How often a silent process checks that it has not missed the last message."""
BUFFERED = 4096
"""Records a listener may lag behind before its buffer is dropped."""


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
        audience: Sequence[str] = (),
        traceparent: str | None = None,
    ) -> list[Record]:
        """Append all or nothing, if `expected` (0: no event yet) is the aggregate's last sequence. `audience`: actors
        that need to hear of it, where most events of the type concern nobody (`Actor.summoned`). `traceparent`: the
        trace it is part of, as a header for others on the bus; our own readers find it in the log.

        Returns the records as stored. Raises `Conflict` if somebody else was first; `Unavailable` if the log did not
        answer for 30 s (then nobody can say whether it was stored: read before deciding again).
        """
        bodies, deadline = [], asyncio.get_running_loop().time() + APPEND_SECONDS
        for event in events:
            fields = {"kind": aggregate.kind, "aggregate": aggregate.id, "actor": actor, "at": now()}
            envelope = written(event, id=uuid7(), run=run, cause=cause, **fields)
            body = encode(event, envelope)
            bodies.append((event, envelope, body, await self._claim(aggregate, event, envelope, body, deadline)))
        messages = [(envelope.id, str(event.__struct_config__.tag), wire) for event, envelope, _, wire in bodies]
        extra = {AUDIENCE: ",".join(audience)} if audience else {}
        if traceparent:
            extra[TRACEPARENT] = traceparent
        last = await self._store(aggregate, messages, expected, extra, deadline)
        first = last - len(bodies) + 1
        return [Record(first + n, body, None, event) for n, (event, _, body, _) in enumerate(bodies)]

    async def _claim(self, aggregate: Aggregate, event: Event, envelope: Any, body: bytes, deadline: float) -> bytes:
        if len(body) <= INLINE_BYTES:
            return body
        blob = await self._blobs.put(aggregate, body, deadline)
        head = msgspec.structs.replace(envelope, type=str(event.__struct_config__.tag), blob=blob)
        return msgspec.json.encode(head)

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
                return await (self._publish if len(messages) == 1 else self._publish_batch)(
                    aggregate, messages, expected, extra
                )
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
                    raise Conflict(str(aggregate), expected)
                refused = isinstance(problem, ApiError) and problem.code in WRONG_LAST_SEQUENCE
                if refused and await self.tip(aggregate) < expected:
                    raise Conflict(str(aggregate), expected)
            except Unavailable as error:
                problem = error
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

    async def read(self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None) -> AsyncIterator[Record]:
        """The aggregate's events after a sequence (and up to one), oldest first, complete as of the call."""
        subject = self.bus.names.log(aggregate)
        tip = upto
        if tip is None and self.bus.replicas > 1:
            tip = await self.tip(aggregate)
        while True:
            page, more = await self._page(subject, after + 1)
            for record in page:
                if upto is not None and record.seq > upto:
                    return
                yield record
                after = record.seq
            if more:
                continue
            if tip is None or after >= tip or upto is not None:
                return
            await asyncio.sleep(0.02)  # a replica that is behind its leader answered

    async def between(self, after: int, upto: int) -> AsyncIterator[Record]:
        """All aggregates' events after a stream sequence, up to one, oldest first."""
        while after < upto:
            page, more = await self._page(self.bus.names.all_log, after + 1)
            for record in page:
                if record.seq > upto:
                    return
                yield record
                after = record.seq
            if more:
                continue
            if self.bus.replicas == 1 or after >= upto:
                return
            stored = await self._from_leader({"seq": after + 1, "next_by_subj": self.bus.names.all_log})
            if stored is None or stored.seq > upto:
                return
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
        """Forget an aggregate's events before a sequence (default: all but the last, the tombstone), and their bodies.
        Repeating it is fine.
        """
        first = await self.tip(aggregate) if before is None else before
        if not first:
            return
        kept = [record async for record in self.read(aggregate, after=first - 1)]
        try:
            await self.bus.api(f"STREAM.PURGE.{self._stream}", {"filter": self.bus.names.log(aggregate), "seq": first})
        except ApiError as error:
            raise Unavailable(str(error)) from error
        await self._blobs.delete(aggregate, {hashlib.sha256(record.raw).hexdigest() for record in kept})

    async def _page(self, subject: str, start: int) -> tuple[list[Record], bool]:
        """Up to PAGE records of a subject (or filter) from a sequence, and whether there are more."""
        request = msgspec.json.encode({"seq": start, "batch": PAGE, "next_by_subj": subject})
        found: list[Msg] = []
        async with self.bus.ask_many(f"$JS.API.DIRECT.GET.{self._stream}", request) as replies:
            while True:
                try:
                    async with asyncio.timeout(ASK_SECONDS):
                        msg = await replies.get()
                except TimeoutError as error:
                    raise Unavailable("the log does not answer") from error
                status = msg.headers.get("Status") if msg.headers else None
                if status is None:
                    found.append(msg)
                    continue
                if status == "503":
                    raise Unavailable("the log is not available")
                pending = int((msg.headers or {}).get("Nats-Num-Pending", "0"))
                records = [await self._record(m) for m in found]
                return records, status == "204" and pending > 0

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

    async def _record(self, msg: Msg) -> Record:
        """The record of a message, as the stream republished it or as direct get returned it."""
        headers = msg.headers
        assert headers
        audience = headers.get(AUDIENCE, "")
        return await self._whole(int(headers["Nats-Sequence"]), headers["Nats-Subject"], msg.data, audience)

    async def _whole(self, seq: int, subject: str, data: bytes, audience: str) -> Record:
        """With its body, wherever that lies. What cannot be read as an event must not stop everybody else."""
        try:
            return await self.whole(Record(seq, data, audience=audience))
        except Invalid as error:
            log.error("not an event", seq=seq, subject=subject, error=str(error))
            return unreadable(seq, data, self.bus.names.aggregate(subject))

    async def whole(self, record: Record) -> Record:
        """A record with its body in place of the reference to it. Raises `Invalid` if the body is lost or damaged."""
        if record.head.blob is None:
            return record
        return Record(record.seq, await self._blobs.get(record), audience=record.audience)

    # ── follow ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Begin to listen. Call once, before any `follow`."""
        await self.bus.subscribe(self.bus.names.all_live, self._on_live)
        await self.bus.nc.flush()
        self.position = await self.last()

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
                    await self._heal(await self.last())
                except Unavailable as error:
                    log.warning("log out of reach", error=str(error))

    @contextmanager
    def listen(self, aggregate: Aggregate | None) -> Iterator[Ear]:
        """A buffer that gets every event of an aggregate (None: of all) from `position` on."""
        ear = Ear()
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

    async def _on_live(self, msg: Msg) -> None:
        assert msg.headers
        seq = int(msg.headers["Nats-Sequence"])
        if seq > self.position + 1:
            try:
                await self._heal(seq - 1)
            except Unavailable as error:
                log.warning("gap not healed yet", upto=seq - 1, error=str(error))
                return
        record = await self._record(msg)
        if seq == self.position + 1:
            self._deliver(record)
            self.position = seq
        self._heard = True

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
            async for record in self.between(self.position, upto):
                if record.seq > self.position:
                    self._deliver(record)
                    self.position = record.seq
        self.position = max(self.position, upto)

    async def _heal_from_leader(self, upto: int) -> None:
        while self.position < upto:
            stored = await self._from_leader({"seq": self.position + 1, "next_by_subj": self.bus.names.all_log})
            if stored is None or stored.seq > upto:
                return
            record = await self._whole(stored.seq, stored.subject, stored.data, stored.audience)
            if record.seq > self.position:
                self._deliver(record)
                self.position = record.seq

    def _deliver(self, record: Record) -> None:
        aggregate = Aggregate(record.head.kind, record.head.aggregate)
        for ear in self._ears.get(aggregate, ()):
            ear.put(record)
        for ear in self._ears.get(None, ()):
            ear.put(record)


class Ear:
    """A listener's bounded buffer. Overflow drops the buffer, and `take` says so."""

    def __init__(self) -> None:
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
        return self.drain()

    def drain(self) -> tuple[list[Record], bool]:
        """Like `take`, without waiting."""
        records, lost = list(self._records), self._lost
        self._records.clear()
        self._lost = False
        self._ready.clear()
        return ([], True) if lost else (records, False)


class _Stored(msgspec.Struct):
    """A message of the stream as `STREAM.MSG.GET` returns it; `data` and `hdrs` are base64 on the wire."""

    seq: int
    subject: str
    data: bytes = b""
    hdrs: bytes = b""

    @property
    def audience(self) -> str:
        found = re.search(rf"^{AUDIENCE}: *(.*?)\r$", self.hdrs.decode(), re.MULTILINE)
        return found[1] if found else ""


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
        self._recent: OrderedDict[str, bytes] = OrderedDict()

    async def put(self, aggregate: Aggregate, body: bytes, deadline: float) -> Blob:
        """Store a body, again and again up to a `deadline` of the loop's clock: under its hash that is harmless."""
        blob = Blob(hashlib.sha256(body).hexdigest(), len(body))
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
        assert record.head.blob
        name = _blob_name(Aggregate(record.head.kind, record.head.aggregate), record.head.blob)
        if name not in self._recent:
            try:
                with _reaching():
                    body = (await (await self._open()).get(name)).data or b""
            except NotFoundError as error:
                raise Invalid(f"event {record.id}: its body {name} is not in the object store") from error
            if hashlib.sha256(body).hexdigest() != record.head.blob.sha256:
                raise Invalid(f"event {record.id}: its body does not match its hash")
            self._recent[name] = body
            while len(self._recent) > 16:
                self._recent.popitem(last=False)
        return self._recent[name]

    async def delete(self, aggregate: Aggregate, but: Collection[str]) -> None:
        """All of an aggregate's, but those with these hashes."""
        prefix = f"{aggregate.kind}.{aggregate.id}."
        with suppress(NotFoundError), _reaching():  # a store without objects has no list
            store = await self._open()
            for info in await store.list():
                if (
                    info.name
                    and info.name.startswith(prefix)
                    and not info.deleted
                    and info.name[len(prefix) :] not in but
                ):
                    await store.delete(info.name)

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
    except (nats.errors.Error, OSError) as error:
        raise Unavailable(f"object store: {str(error) or type(error).__name__}") from error


def _blob_name(aggregate: Aggregate, blob: Blob) -> str:
    return f"{aggregate.kind}.{aggregate.id}.{blob.sha256}"
