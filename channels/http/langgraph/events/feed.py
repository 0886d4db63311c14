"""One client's subscriptions to one thread, live: facts from the log and previews from the bus, through tapes.

Theory of operation
-------------------
There is one live tape per connection, which is at the newest fact that was heard. A new subscription has the past told
by a tape of its own, from `since` (or the thread's beginning) to where the live tape is, then what is known of the
message that is being made; from there on the live tape tells it what comes. All of a connection's subscriptions share
the live tape, and an event that several want is sent once.

Two things of the past are not told. Runs that were rolled back never happened. Of a long past only the last
`SNAPSHOTS` values and checkpoints are sent to a client without `since`: each contains all messages, and every one of
them is superseded.

A subscription to nothing but `lifecycle` and `input`, without `since`, asks how the thread stands: the Python client
keeps one to learn when its run is over, and takes the end of any run for that. So it is told from the oldest run that
is open, or from the one that waits for an answer. If there is neither, the last run is told, but only when no other has
been asked for within `RECALL_SECONDS`: perhaps it is the client's own and was over before the client could listen;
more often the client is just about to start one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from channels.http.langgraph.events.filters import Filter
from channels.http.langgraph.events.tape import Tape, milliseconds
from channels.http.langgraph.events.wire import Namespace, Slot, Told, place
from channels.http.langgraph.stream import PAUSE_EVERY, Stopped
from channels.http.langgraph.stream import stored as stored
from channels.http.live import BEAT, STOP, Ear, Live
from core.events import Record, thread
from core.ownership import owned_or_absent
from core.previews import Preview, Progress, decode
from core.state import Run, ThreadState, fold

log = structlog.get_logger("sika.http")

SNAPSHOTS = 100
"""Values and checkpoints of the past that a client without `since` gets."""
RECALL_SECONDS = 1.0

RECALL = b"recall"

Item = Told | bytes
"""An event, or `BEAT`."""


class _Overheard(NamedTuple):
    """A preview."""

    run_id: str
    raw: bytes


class Feed:
    """See above. Not for two tasks at once."""

    def __init__(self, live: Live, thread_id: str, user: str, ear: Ear) -> None:
        self._live = live
        self._thread = thread_id
        self._user = user
        self._ear = ear
        self._filters: dict[str, Filter] = {}
        self._tape = Tape(ThreadState(), self._wants)
        self._tuned: dict[str, Subscription] = {}
        self._fetched = ""
        self._recalled: dict[str, Sequence[Record]] = {}
        """By subscription: the facts up to the last run's end, if it is still open whether they are told."""

    @staticmethod
    @asynccontextmanager
    async def open(live: Live, thread_id: str, user: str) -> AsyncIterator[Feed]:
        """There need not be such a thread yet."""
        async with live.hearing(thread_id, "") as ear:
            feed = Feed(live, thread_id, user, ear)
            try:
                yield feed
            finally:
                for run_id in list(feed._tuned):
                    await feed._tune_out(run_id)

    @property
    def ended(self) -> bool:
        """Whether the thread is gone."""
        return self._tape.state.erased

    def position(self) -> int:
        """The number up to which everything was told."""
        return place(self._tape.seq, Slot.ENDED)

    async def add(self, name: str, wanted: Filter) -> AsyncIterator[Item]:
        """Subscribe: what the others have not heard yet, then what the new one has missed.

        Raises `NotFound` (also `tell` does) if the thread is somebody else's.
        """
        records = [record async for record in self._live.services.log.read(thread(self._thread))]
        if self._filters:
            for record in records:
                if record.seq > self._tape.seq:
                    for told in self._fact(record):
                        yield told
        else:
            state, clock = await asyncio.to_thread(_folded, records)
            self._tape = Tape(state, self._wants, clock=clock)
            self._check()
        self._filters[name] = wanted
        others = {key: one for key, one in self._filters.items() if key != name}
        async for told in self._caught_up(others):
            yield told
        async for told in self._past(records, wanted):
            yield told
        for told in self._tape.unfinished():
            if wanted.wants(told.channel, told.namespace):
                yield told
        if wanted.present and not _waiting(self._tape.state) and self._tape.state.runs:
            self._recalled[name] = records
            asyncio.get_running_loop().call_later(RECALL_SECONDS, self._ear.put, RECALL)

    def drop(self, name: str) -> bool:
        """Unsubscribe; whether there was such a subscription."""
        self._recalled.pop(name, None)
        return self._filters.pop(name, None) is not None

    async def take(self) -> tuple[list[Any], bool]:
        """Wait for something to tell."""
        return await self._ear.take()

    async def tell(self, items: Sequence[Any], lost: bool) -> AsyncIterator[Item]:
        """What was taken, told. Raises `Stopped` when the process goes down."""
        if lost:
            if self._live.stopping:
                raise Stopped
            count = 0
            async for record in self._live.services.log.read(thread(self._thread), after=self._tape.seq):
                for told in self._fact(record):
                    yield told
                count += 1
                if count % PAUSE_EVERY == 0:
                    await asyncio.sleep(0)
        for item in [RECALL] if lost else items:
            if isinstance(item, Record):
                if item.seq > self._tape.seq:
                    for told in self._fact(item):
                        yield told
            elif item is RECALL:
                async for told in self._recall():
                    yield told
            elif item is BEAT:
                yield BEAT
            elif item is STOP:
                raise Stopped
            elif isinstance(item, _Overheard) and item.run_id in self._tuned:
                preview = _decoded(item.raw)
                for told in self._tape.preview(item.run_id, preview) if preview else ():
                    yield told
        async for told in self._caught_up(self._filters):
            yield told

    def _fact(self, record: Record) -> list[Told]:
        told = self._tape.fact(record)
        self._check()
        return told

    def _check(self) -> None:
        owned_or_absent(self._tape.state, self._thread, self._user)

    # ── the past ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _past(self, records: Sequence[Record], wanted: Filter) -> AsyncIterator[Told]:
        now = self._tape.state
        after, snapshots_from = -1, 0
        if wanted.present:
            after = place(_since(now)) - 1
        elif wanted.since is not None and wanted.since <= self.position():
            after = wanted.since
        elif len(now.commits) > SNAPSHOTS:
            snapshots_from = now.commits[-SNAPSHOTS].seq
        async for told in self._replayed(records, wanted, after, snapshots_from):
            yield told

    async def _recall(self) -> AsyncIterator[Told]:
        """Tell of the last run after all, unless another one was asked for."""
        recalled, self._recalled = self._recalled, {}
        for name, records in recalled.items():
            last = next(reversed(self._tape.state.runs.values()), None)
            if last is not None and last.requested_seq <= records[-1].seq:
                async for told in self._replayed(records, self._filters[name], place(last.requested_seq)):
                    yield told

    async def _replayed(
        self, records: Sequence[Record], wanted: Filter, after: int, snapshots_from: int = 0
    ) -> AsyncIterator[Told]:
        """What the facts tell after a number."""
        first = next((i for i, record in enumerate(records) if place(record.seq, Slot.ENDED) > after), len(records))
        state, clock = await asyncio.to_thread(_folded, records[:first])
        tape = Tape(
            state,
            wanted.wants,
            after=after,
            clock=clock,
            gone=self._tape.state.undone,
            snapshots_from=snapshots_from,
        )
        for count, record in enumerate(records[first:], 1):
            for told in tape.fact(record):
                yield told
            if count % PAUSE_EVERY == 0:
                await asyncio.sleep(0)

    # ── previews ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _caught_up(self, heard_by: Mapping[str, Filter]) -> AsyncIterator[Told]:
        """Listen to the run that is open, and fetch previews that were missed."""
        wanted = any(one.channels & {"messages", "tools"} for one in self._filters.values())
        run = _first_open(self._tape.state) if wanted else None
        for run_id in list(self._tuned):
            if run is None or run.id != run_id:
                await self._tune_out(run_id)
        if run is None:
            return
        late = False
        if run.id not in self._tuned:
            self._tuned[run.id] = await self._tune_in(run.id)
            late = run.status == "running"
        missed = self._tape.behind
        if late or (missed is not None and missed != self._fetched):
            self._fetched = missed or ""
            self._tape.behind = None
            for preview in await stored(self._live, run.id):
                for told in self._tape.preview(run.id, preview) if isinstance(preview, Preview) else ():
                    if any(one.wants(told.channel, told.namespace) for one in heard_by.values()):
                        yield told

    async def _tune_in(self, run_id: str) -> Subscription:
        async def on_preview(msg: Msg) -> None:
            self._ear.put(_Overheard(run_id, msg.data))

        bus = self._live.services.bus
        return await bus.subscribe(bus.names.tok(run_id), on_preview)

    async def _tune_out(self, run_id: str) -> None:
        with suppress(nats.errors.Error, OSError):
            await self._tuned.pop(run_id).unsubscribe()

    def _wants(self, channel: str, namespace: Namespace) -> bool:
        return any(one.wants(channel, namespace) for one in self._filters.values())


def _waiting(state: ThreadState) -> bool:
    """Whether a run is open, or waits for an answer."""
    return state.paused is not None or _first_open(state) is not None


def _since(state: ThreadState) -> int:
    """The fact from which on it is told how a thread stands."""
    runs = list(state.runs.values())
    if state.paused is not None:
        runs = [run for run in runs if run.status == "success"][-1:]
    else:
        runs = [run for run in runs if run.open]
    return min((run.requested_seq for run in runs), default=state.seq + 1)


def _folded(records: Sequence[Record]) -> tuple[ThreadState, int]:
    """The state after these records and the time then. For a thread of its own: a long log takes a while."""
    clock = 0
    for record in records:
        clock = milliseconds(record, clock)
    return fold(records), clock


def _first_open(state: ThreadState) -> Run | None:
    """The run that is being worked on, or else the one that is next."""
    return state.active or next(iter(state.queued), None)


def _decoded(raw: bytes) -> Preview | Progress | None:
    try:
        return decode(raw)
    except msgspec.DecodeError as error:
        log.debug("not a preview", error=str(error))
        return None
