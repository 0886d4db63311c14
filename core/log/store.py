"""The log: one writer and one reader for each process.

Theory of operation
-------------------
Reading is `core.log.reader`, following `core.log.feed`; here is the append. It is guarded: it names the sequence it
expects to be the aggregate's last. The server stores it or answers with a conflict, so the guard is the lock and the
fence. One event is a plain publish (0.2-0.4 ms with fsync). Several are an atomic batch (about 2.8 ms on one node), for
the rare decision that is really several facts. Two pitfalls:

* A conflict has two codes: 10071 (with the actual sequence) and 10164 (on replicated streams, while another write is
  in flight).
* A lost acknowledgement is ambiguous, and a retry answers differently on one node (conflict) and on three
  (duplicate). So after a timeout or a conflict the *leader* is asked for the first message after the expected
  sequence. If it has our event id, the append succeeded. If there is none, the same bytes are sent again (the guard
  makes that safe). If it has another id, it is a true conflict.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from core.bus.connection import Bus, decoded_reply
from core.bus.errors import WRONG_LAST_SEQUENCE, ApiError, BusUnavailable
from core.bus.streams import purge
from core.config.redaction import redactor
from core.errors import Conflict, Invalid, SikaError, Unavailable
from core.events import Aggregate, Event, Record, decode, encode, written
from core.ids import now, uuid7
from core.log.blobs import sha256_of
from core.log.chain import CHAIN, START, link
from core.log.erasure import Eraser
from core.log.feed import Feed
from core.log.reader import LABELS
from core.log.turns import Turns
from core.nesting import FACT_LEVELS, too_deep
from core.traces import TRACEPARENT

UNDECIDED = frozenset({10201, 10176, 10158, 10008})
"""Errors that leave the outcome open: an id of the batch is there already; the server that had the beginning of the
batch is lost; an earlier message waits for a majority; the server is not ready. The leader is asked, and if it has no
message, all are sent again.
"""
INLINE_BYTES = 64 * 1024
"""Bigger bodies go to the object store, the event holds the reference (claim check). The server's limit is 1 MiB."""
APPEND_SECONDS = 30.0
"""Timeout of an append whose outcome is open: then it raises `Unavailable`."""


class EventLog(Feed):
    """The only writer and the only reader of the log. One per process."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self._eraser = Eraser(bus, self._blobs)
        self.redact: Callable[[bytes], bytes] = redactor.event
        """Redacts secrets in an encoded event before it is stored."""
        self.turns = Turns()
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
        records = [Record(0, self._bounded(body)) for body in bodies]
        claims = [await self._claim(aggregate, record, deadline) for record in records]
        messages = [(r.id, r.type, claim or r.raw) for r, claim in zip(records, claims, strict=True)]
        extra = {LABELS: ",".join(sorted(labels))} if labels else {}
        last = await self._store(aggregate, messages, expected, extra, deadline)
        self._note(aggregate, last)
        return last

    def _readable(self, event: Event, fields: Mapping[str, Any]) -> Record:
        """Returns an event as it will be read: encoded, and decoded again."""
        try:
            raw = self._bounded(encode(event, written(event, id=uuid7(), at=now(), **fields)))
            record = Record(0, raw)
            record.decoded(decode(record.head, raw))
        except (TypeError, ValueError, RecursionError, Invalid) as error:  # the first two: of values without JSON
            raise Invalid(f"{type(event).__name__} does not fit its own schema: {error}") from error
        return record

    def _bounded(self, body: bytes) -> bytes:
        """Returns an encoded event without secrets. Raises `Invalid` if not every Python could read it again."""
        if too_deep(body, FACT_LEVELS):
            raise Invalid(f"nested too deeply, more than {FACT_LEVELS} levels")
        return self.redact(body)

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
                    kind = Invalid if isinstance(error, Invalid) else BusUnavailable
                    raise kind(f"the log refuses to store: {error}") from error
                problem: SikaError = error
            except Unavailable as error:
                problem = error
            try:
                stored = await self.first_after(aggregate, expected)
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
                raise BusUnavailable(
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
                decoded_reply(reply)
        return await self.bus.store(subject, body, headers | ({"Nats-Batch-Commit": "1"} if size > 1 else {}))

    async def _chain(self, aggregate: Aggregate, expected: int) -> str:
        """Returns the hash of an aggregate's event `expected`. Costs a request if this process has not met it."""
        seq, chain = self._chains.get(aggregate, (0, START))
        if seq == expected:
            return chain
        stored = await self._from_leader({"last_by_subj": self.bus.names.log(aggregate)}) if expected else None
        return (stored.header(CHAIN) if stored and stored.seq == expected else None) or START

    # ── erase ───────────────────────────────────────────────────────────────────────────────────────────────────────

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

    async def erase_uploads(self, aggregate: Aggregate) -> None:
        """Erases bodies of an aggregate that no event names: of uploads that were interrupted. Raises `Unavailable`."""
        await self._blobs.erase_rest(aggregate)

    async def erase_records(self, records: AsyncIterator[Record], seconds: float = math.inf) -> bool:
        """Erases single events of aggregates as `erase` does. Non-guarantee: the last one of an aggregate must not be
        among them, else its next writer conflicts."""
        return await self._eraser.erase(records, seconds)


def _hashes(before: str, messages: Sequence[tuple[str, str, bytes]]) -> list[str]:
    """Returns the hashes of messages in the chain of their aggregate."""
    return list(accumulate((body for _, _, body in messages), link, initial=before))[1:]
