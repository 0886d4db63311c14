"""One client's subscriptions to one thread, live: facts from the log and previews from the bus, through tapes.

Theory of operation
-------------------
There is one live tape per connection, which is at the newest fact that was heard. A new subscription gets the past
by a tape of its own, from `since` (or the thread's beginning) to where the live tape is, then what is known of the
message that is being made; from there on the live tape tells it what comes. All of a connection's subscriptions share
the live tape, and an event that several want is sent once.

The past is read in batches, from the start of the newest run that had begun where it is sent from (`rewind`): neither
all of a log nor its beginning is held for a subscription.

Two things of the past are not sent. Runs that were rolled back never happened. Of a long past only the last
`SNAPSHOTS` values and checkpoints are sent to a client without `since`: each contains all messages, and every one of
them is superseded.

A subscription to nothing but `lifecycle` and `input`, without `since`, asks how the thread stands: the Python client
keeps one to learn when its run is over, and takes the end of any run for that. So it is served from the oldest run that
is open, or from the one that waits for an answer. If there is neither, the last run is sent, but only when no other has
been asked for within `RECALL_SECONDS`: perhaps it is the client's own and was over before the client could listen;
more often the client is just about to start one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import islice

from channels.http.protocols.langgraph_events.filters import Filter
from channels.http.protocols.langgraph_events.places import place_of
from channels.http.protocols.langgraph_events.tape import Tape, milliseconds
from channels.http.protocols.langgraph_events.wire import Namespace, Slot, WireEvent, place, whole_upto
from channels.http.server.live import Live
from channels.http.streams.subagent_logs import informed
from core.events import Record, thread
from core.runs.follow import Batch, Beat, Follower, Speaker
from core.runs.previews import Progress, RunPreview
from core.thread.ownership import owned_or_absent
from core.thread.rewind import newest_begun, state_before, state_upto
from core.thread.state import Run, ThreadState

SNAPSHOTS = 100
"""Values and checkpoints of the past that a client without `since` gets."""
RECALL_SECONDS = 1.0
CLOCKED = 8
"""Runs whose times are looked at: a clock that was ahead in one of them must not seem to go back."""

Item = WireEvent | Beat


class Feed:
    """See above. Not for two tasks at once."""

    def __init__(self, live: Live, thread_id: str, user: str, follower: Follower) -> None:
        self._live = live
        self._thread = thread_id
        self._user = user
        self._follower = follower
        self._filters: dict[str, Filter] = {}
        self._tape = Tape(ThreadState(), self._wants)
        self._fetched = ""
        """The message whose stored previews were fetched last."""
        self._recalled: dict[str, int] = {}
        """By subscription: the fact up to which the last run is sent, if that is still open."""
        self._recall_due = False

    @staticmethod
    @asynccontextmanager
    async def open(live: Live, thread_id: str, user: str) -> AsyncIterator[Feed]:
        """There need not be such a thread yet."""
        async with live.follow(thread_id) as follower:
            yield Feed(live, thread_id, user, follower)

    @property
    def ended(self) -> bool:
        """Tells whether the thread is gone."""
        return self._tape.state.erased

    def position(self) -> int:
        """The number up to which everything was sent."""
        return place(self._tape.seq, Slot.ENDED)

    async def add(self, name: str, subscription: Filter) -> AsyncIterator[Item]:
        """Subscribe: what the others have not heard yet, then what the new one has missed.

        Raises `NotFound` (also `tell` does) if the thread is somebody else's.
        """
        if self._filters:
            async for record in self._read(after=self._tape.seq):
                await self._inform(self._tape, record)
                for event in self._fact(record):
                    yield event
        else:
            state = await self._live.services.threads.load(self._thread)
            self._tape = Tape(state, self._wants, clock=milliseconds(state.updated_at, _clock(state)))
            self._check()
        self._filters[name] = subscription
        async for event in self._past(subscription):
            yield event
        for event in self._tape.unfinished():
            if subscription.wants(event.channel, event.namespace):
                yield event
        if subscription.present and not _waiting(self._tape.state) and self._tape.state.runs:
            self._recalled[name] = self._tape.seq
            asyncio.get_running_loop().call_later(RECALL_SECONDS, self._call_due)
        self._follower.wake()

    def drop(self, name: str) -> bool:
        """Unsubscribe; whether there was such a subscription."""
        self._recalled.pop(name, None)
        return self._filters.pop(name, None) is not None

    def batches(self) -> AsyncGenerator[Batch]:
        """Returns the next items to send. Raises `Stopping` when the process goes down."""
        return self._follower.since(self._tape.seq, self._audible, heard=True)

    async def tell(self, batch: Batch) -> AsyncIterator[Item]:
        """Returns the received items as events."""
        for item in batch:
            await self._inform(self._tape, item)
            match item:
                case Record() if item.seq > self._tape.seq:
                    for event in self._fact(item):
                        yield event
                case RunPreview(run_id, preview, stored) if not (stored and isinstance(preview, Progress)):
                    for event in self._tape.preview(run_id, preview):
                        yield event
                case Beat():
                    yield item
        self._fetch_missed()
        if self._recall_due:
            async for event in self._recall():
                yield event

    def _fact(self, record: Record) -> list[WireEvent]:
        events = self._tape.fact(record)
        self._check()
        return events

    def _check(self) -> None:
        owned_or_absent(self._tape.state, self._thread, self._user)

    # ── the past ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, *, after: int, upto: int | None = None) -> AsyncGenerator[Record]:
        return self._live.reading.read(thread(self._thread), after=after, upto=upto)

    async def _past(self, subscription: Filter) -> AsyncIterator[WireEvent]:
        now = self._tape.state
        after, snapshots_from = -1, 0
        since = subscription.since
        if subscription.since_event_id is not None:
            since = place_of(now, subscription.since_event_id)
        if subscription.present:
            after = place(_since(now)) - 1
        elif since is not None and since <= self.position():
            after = since
        elif len(now.commits) > SNAPSHOTS:
            snapshots_from = now.commits[-SNAPSHOTS].seq
        async for event in self._replayed(subscription, after, self._tape.seq, snapshots_from):
            yield event

    async def _recall(self) -> AsyncIterator[WireEvent]:
        """Tell of the last run after all, unless another one was asked for."""
        recalled, self._recalled, self._recall_due = self._recalled, {}, False
        for name, upto in recalled.items():
            last = next(reversed(self._tape.state.runs.values()), None)
            if last is not None and last.requested_seq <= upto:
                async for event in self._replayed(self._filters[name], place(last.requested_seq), upto):
                    yield event

    def _call_due(self) -> None:
        self._recall_due = True
        self._follower.wake()

    async def _replayed(
        self, subscription: Filter, after: int, upto: int, snapshots_from: int = 0
    ) -> AsyncIterator[WireEvent]:
        """Returns the events after a number, of the facts up to one."""
        state = await self._begun_by(whole_upto(after))
        tape = Tape(
            state,
            subscription.wants,
            after=after,
            clock=_clock(state),
            gone=self._tape.state.undone,
            snapshots_from=snapshots_from,
        )
        async for record in self._read(after=state.seq, upto=upto):
            await self._inform(tape, record)
            for event in tape.fact(record):
                yield event
        self._tape.clock = max(self._tape.clock, tape.clock)

    async def _begun_by(self, seq: int) -> ThreadState:
        """The state after a fact, or an earlier one from which the same is sent as from the thread's beginning."""
        if seq <= 0:
            return ThreadState()
        now, read = await self._live.services.threads.load(self._thread), self._live.reading.read
        run = newest_begun(now, seq)
        if run is None or run.started_seq is None:
            return await state_upto(read, self._thread, seq)
        return await state_before(read, self._thread, now, run, run.started_seq - 1)

    # ── previews ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _inform(self, tape: Tape, item: Record | RunPreview | Beat) -> None:
        await informed(self._live, tape)(item)

    def _audible(self) -> Iterable[Speaker]:
        """The run that is open and its subagents, if their previews are subscribed to."""
        has_previews = any(one.channels & {"messages", "tools"} for one in self._filters.values())
        run = _first_open(self._tape.state) if has_previews else None
        return [run, *self._tape.voices()] if run is not None else []

    def _fetch_missed(self) -> None:
        """Have the previews come that a message is missing, once for each message."""
        missed, self._tape.missed = self._tape.missed, None
        if missed is not None and missed != self._fetched:
            self._fetched = missed
            for run in self._audible():
                self._follower.recall(run.id)

    def _wants(self, channel: str, namespace: Namespace) -> bool:
        return any(one.wants(channel, namespace) for one in self._filters.values())


def _waiting(state: ThreadState) -> bool:
    """Tells whether a run is open, or waits for an answer."""
    return state.paused is not None or _first_open(state) is not None


def _since(state: ThreadState) -> int:
    """The fact from which on the state of a thread is sent."""
    successes = (run for run in reversed(state.runs.values()) if run.status == "success")
    runs = state.runs.open() if state.paused is None else islice(successes, 1)
    return min((run.requested_seq for run in runs), default=state.seq + 1)


def _clock(state: ThreadState) -> int:
    """The newest time in a state, as far as its last runs know it."""
    times = [state.created_at, *(run.updated_at for run in islice(state.runs.newest_first(), CLOCKED))]
    return max(milliseconds(at) for at in times)


def _first_open(state: ThreadState) -> Run | None:
    """The run that is being worked on, or else the one that is next."""
    return state.active or next(iter(state.queued), None)
