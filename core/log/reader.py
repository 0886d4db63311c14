"""Reading the log.

Theory of operation
-------------------
An aggregate is a literal subject of the JetStream stream. It is read by batched direct get on that subject: no
consumer. On a replicated stream any replica may answer, so the tip is first read from the leader. The read goes on
until the tip is reached; after `READ_SECONDS` it fails.

Rejected: wildcard subjects per event type (100 times slower to read, and wildcard guards are unsound on replicated
streams).
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog
from cachetools import LRUCache

from core.bus.connection import Bus
from core.bus.errors import BusUnavailable
from core.bus.streams import Stored, direct_get, find
from core.errors import Invalid
from core.events import UNREADABLE, Aggregate, Opaque, Record, malformed, unreadable
from core.lifecycle import TEMPORARY, USED_TOOLS, WEBHOOK
from core.log.blobs import Blobs
from core.log.chain import CHAIN
from core.log.notices import Notices

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = structlog.get_logger("sika.log")

LABELS = "Sika-Labels"
"""Header: the labels of an event when it was appended (`core.lifecycle.labels`), joined by commas."""
AUDIENCE = "Sika-Audience"
_LABEL_OF = {"webhooks": WEBHOOK, "janitor": TEMPORARY, "workspace": USED_TOOLS}
"""Instead of labels, older logs name actors in the header `AUDIENCE`."""
READ_SECONDS = 30.0
"""Timeout of a read that waits for a replica to catch up with the leader."""
PAGE = 256
"""Messages per batched direct get; the server allows 1 024."""
HEARD = 20_000
"""Aggregates whose last event is remembered."""


ReadAll = Callable[[Aggregate], Awaitable[Sequence[Record]]]
"""Reads all records of an aggregate."""
Hold = Callable[[Record], None]
"""Called with each event that is held. Raises an error of the caller's if they become too many."""


class Read(Protocol):
    """Reads an aggregate, as `Reader.read` does."""

    def __call__(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncGenerator[Record]: ...


class Reader:
    """Reads the log, and remembers the last events that it has met."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._stream = bus.names.stream("log")
        self._blobs = Blobs(bus)
        self.refused = Notices(math.inf)
        """The messages of the log that this process has met and that are no events."""
        self._last: OrderedDict[Aggregate, int] = OrderedDict()
        """Last sequences of the aggregates with the newest events, the newest last."""
        self._last_from = 0
        """No event after this sequence is known of any other aggregate."""
        self._chains: LRUCache[Aggregate, tuple[int, str]] = LRUCache(HEARD)
        """Last sequences and hashes of aggregates (`core.log.chain`)."""

    async def tip(self, aggregate: Aggregate) -> int:
        """Returns the aggregate's last sequence, from the stream's leader; 0 if it has no events."""
        stored = await self._from_leader({"last_by_subj": self.bus.names.log(aggregate)})
        return stored.seq if stored else 0

    async def newest(self, aggregate: Aggregate) -> Record | None:
        """Returns the aggregate's last event, from the stream's leader, without its body if that is in the object
        store. None if it has no events. Raises `Unavailable`.
        """
        stored = await self._from_leader({"last_by_subj": self.bus.names.log(aggregate)})
        return self._stored(stored.seq, stored.subject, stored.data, stored.header) if stored else None

    async def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncGenerator[Record]:
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
            if page:  # its reader may have taken its time
                deadline = asyncio.get_running_loop().time() + READ_SECONDS
            if after == upto:
                return
            if more and page:
                continue
            if tip is None or after >= tip:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise BusUnavailable(f"{aggregate}: a replica is behind its leader: at {after} of {tip}")
            await asyncio.sleep(0.02)  # a replica that is behind its leader answered

    async def back(self, aggregate: Aggregate, *, before: int = 0, bodies: bool = True) -> AsyncGenerator[Record]:
        """Yields the aggregate's events before a sequence (0: from the end), newest first. Reads in windows of the
        stream, which grow where the aggregate has few events in them. Raises `Unavailable` if some cannot be read.
        """
        tip, first = await self.tip(aggregate), await self.first(aggregate)
        high, span = min(before or tip + 1, tip + 1), PAGE // 2
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        while first is not None and high > first.seq:
            low = max(first.seq, high - span)
            page, more = await self._page(self.bus.names.log(aggregate), low)
            if page and page[-1].seq >= min(high, tip):  # the window is complete
                for record in reversed([record for record in page if record.seq < high]):
                    yield await self.whole(record) if bodies else record
                high, span = low, 2 * span if len(page) < PAGE // 2 else span
                deadline = asyncio.get_running_loop().time() + READ_SECONDS
            elif more and high - low > 1:
                span = (high - low) // 2
            elif asyncio.get_running_loop().time() > deadline:
                raise BusUnavailable(f"{aggregate}: a replica is behind its leader, or events are being erased")
            else:
                await asyncio.sleep(0.02)  # a replica that is behind its leader answered
                tip = await self.tip(aggregate)

    async def between(self, after: int, upto: int, *, bodies: bool = True) -> AsyncGenerator[Record]:
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
                raise BusUnavailable(f"a replica is behind its leader: at {after} of {upto}")
            await asyncio.sleep(0.02)  # a replica that is behind its leader answered

    async def first(self, aggregate: Aggregate) -> Record | None:
        """Returns the aggregate's first event that is not erased, without its body if that is in the object store. None
        if it has no events. Raises `Unavailable`.
        """
        return await self.first_after(aggregate, 0)

    async def last(self) -> int:
        """Returns the stream's last sequence."""
        return int((await self._info())["state"]["last_seq"])

    async def identity(self) -> str:
        """Returns the creation time of the stream, which tells this log from another one under the same name."""
        return str((await self._info())["created"])

    async def _info(self) -> Any:
        info = await self.bus.api(f"STREAM.INFO.{self._stream}")
        self.bus.replicas = info["config"]["num_replicas"]
        return info

    async def _page(self, subject: str, start: int, limit: int | None = None) -> tuple[list[Record], bool]:
        """Returns up to `limit` (default: PAGE) records of a subject (or filter) from a sequence on, and whether there
        are more.
        """
        messages, more = await direct_get(self.bus, "log", subject, start, limit or PAGE)
        return [self._record(msg) for msg in messages], more

    async def first_after(self, aggregate: Aggregate, seq: int) -> Record | None:
        """Returns the aggregate's first event after a sequence, from the stream's leader."""
        stored = await self._from_leader({"seq": seq + 1, "next_by_subj": self.bus.names.log(aggregate)})
        return self._stored(stored.seq, stored.subject, stored.data, stored.header) if stored else None

    async def _from_leader(self, request: Mapping[str, Any]) -> Stored | None:
        return await find(self.bus, "log", request)

    def _record(self, msg: Msg) -> Record:
        """Returns the record of a message, as the stream republished it or as direct get returned it."""
        headers = msg.headers
        assert headers
        return self._stored(int(headers["Nats-Sequence"]), headers["Nats-Subject"], msg.data, headers.get)

    def _stored(self, seq: int, subject: str, data: bytes, header: Callable[[str], str | None]) -> Record:
        """Returns the record of a message; a placeholder if it is no event, or not one of its subject's aggregate: it
        folds as nothing, stops no reader, and is named among the `refused`.
        """
        aggregate = self.bus.names.logged(subject)
        try:
            record = Record(seq, data, labels=_labels(header), chain=header(CHAIN))
            problem = malformed(record.head)
            if problem is None and record.aggregate == aggregate:
                return record
            problem = problem or f"the event is of {record.aggregate}, the subject of {aggregate}"
        except Invalid as error:
            problem = str(error)
        log.error("not an event", seq=seq, subject=subject, error=problem)
        self.refused.note(f"message {seq} of the log is no event; `sika dlq list` says why")
        return unreadable(seq, data, aggregate or Aggregate(UNREADABLE, str(seq)), problem)

    async def whole(self, record: Record) -> Record:
        """Returns a record with its body in place of the reference to it. If the body is lost or damaged, the event is
        `Opaque`, with the problem.
        """
        if record.head.blob is None:
            return record
        try:
            return self._completed(record, await self.body(record))
        except Invalid as error:
            log.error("an event without its body", seq=record.seq, error=str(error))
            self.refused.note(f"message {record.seq} of the log has lost its body")
            return Record(record.seq, record.raw, record.head, Opaque(record.type, str(error)), record.labels)

    def _completed(self, record: Record, body: bytes) -> Record:
        """Returns a record with its body. Raises `Invalid` if that is of another event."""
        whole = Record(record.seq, body, labels=record.labels, chain=record.chain)
        if msgspec.structs.replace(record.head, blob=None) != whole.head:
            raise Invalid(f"event {record.id}: the body in the object store is of another event")
        return whole

    async def body(self, record: Record) -> bytes:
        """Returns the body of a record that lies in the object store. Raises `Invalid` if it is lost or damaged."""
        return await self._blobs.get(record)

    # ── what was met ────────────────────────────────────────────────────────────────────────────────────────────────

    def _note(self, aggregate: Aggregate, seq: int) -> None:
        """Remembers an aggregate's last event. An event older than the evicted entries proves nothing."""
        if seq <= self._last_from and aggregate not in self._last:
            return
        self._last[aggregate] = max(seq, self._last.pop(aggregate, 0))
        if len(self._last) > HEARD:
            self._last_from = max(self._last_from, self._last.popitem(last=False)[1])

    def _chained(self, aggregate: Aggregate, seq: int, chain: str) -> None:
        """Remembers the hash of an aggregate's last event."""
        self._chains[aggregate] = seq, chain


def _labels(header: Callable[[str], str | None]) -> frozenset[str]:
    """Returns the labels of a stored event."""
    if labels := header(LABELS):
        return frozenset(labels.split(","))
    audience = (header(AUDIENCE) or "").split(",")
    return frozenset(_LABEL_OF[name] for name in audience if name in _LABEL_OF)
