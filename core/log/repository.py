"""Aggregates of one kind: folded, kept in memory, and decided on.

Theory of operation
-------------------
The state of an aggregate is its events, folded. `load` returns it with everything that was acknowledged to anybody
before the call, `decide` appends to it.

*The heard position.* The process hears every event of the stream (`core.log.feed`), so it knows of a kept aggregate
whether anything has changed, and need not read to find out: reading old aggregates is dear, as the server unpacks the
block in which their last event lies (7-15 ms). A kept state says up to which sequence of the *stream* it is complete
(`checked`): no event of the aggregate lies between its own last one and there. `EventLog.unchanged_until` moves that
on to the heard position, or says that it cannot. Then the log is read, from `checked` on: at the stream's end, where
that is cheap. Why this is sound:

* One server. It republishes an event before it acknowledges it, and sends a connection everything in order. So a
  message to ourselves and back (`Bus.echo`) arrives after all events that were acknowledged before it was sent. They
  have been heard if the subscription has nothing left to handle, and no gap is being healed.
* Replicas. A live event may reach this process after the acknowledgement has reached its writer. So the leader is
  asked, for the first event after `checked`: it has all that was ever acknowledged.
* Own appends, and all that this process has read of an aggregate, count as heard although the feed may be behind.
* Gaps. The sequence of the stream has none, so a lost event is noticed at the next one. Until it is healed nothing is
  known to be unchanged. The last event before a silence can only be lost with the connection, or in a full buffer:
  then more events were delivered than handled.
* Reconnects. From the loss of the connection until the log was read up to its end, nothing is known to be unchanged.
* Start. Nothing is known of what came before the position at which the process began to listen.
* Memory. The last events of `HEARD` aggregates are remembered. Of one that was forgotten it is only known that nothing
  came after the newest that was forgotten.

* At a moment. Who needs no more than what was settled when something else was (a run, when it was asked for) says up to
  which sequence. If that is before the heard position, not even an echo is needed.

*One load.* Whoever comes while an aggregate is being loaded waits for that, then shares the next look with all others
who waited: that look begins after they came, so it misses nothing, and with what the first has read it is short. What
was folded of a load that is cancelled or fails is kept, as old as it is: the next load goes on from there.

*One rule for decisions.* A decision is first tried on what is in memory, as old as it may be. If it appends, the log's
guard refuses what is outdated. If it raises, or has nothing to append, that only counts on a current state: it is
tried again. So a decision may be called several times, must not do anything but decide, and needs no other property.

*Turns.* Decisions of one process on an aggregate are made one after the other (`core.log.turns`), so they only meet
writers of other processes. Those are met by the guard, and by pauses that grow.

*Snapshots.* An aggregate of which nothing is in memory is read from its snapshot on (`core.log.snapshots`), if there is
one. What is kept is offered to be written as the next one.

Rejected: folding the live events into the cached states (bodies would be fetched, and everything decoded, for states
that nobody looks at again); a bounded staleness for reads (a client that writes at one replica and reads at another
would see the past).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from core.cache import ByteCache
from core.errors import Conflict, SikaError, Unavailable
from core.events import Aggregate, Event, Record
from core.log.snapshots import Form, Snapshot, Snapshots
from core.log.store import EventLog

S = TypeVar("S")
DECIDE_TRIES = 50
BACK_OFF_SECONDS = 0.05
"""Longest pause after a conflict."""
CACHE_BYTES = 16 << 20
"""Bytes of events whose aggregates are kept folded, for each kind."""
ABSENT_BYTES, ABSENT_SHARE = 512, 16
"""Weight of an aggregate without events, and the part of `cache_bytes` that such aggregates may take besides."""
SLICE_RECORDS = 128
SLICE_BYTES = 128 * 1024
"""Records are folded in slices of at most these sizes (about 2 ms), with the event loop's turn in between."""

Fold = Callable[[Iterable[Record], S], S]
"""The state after these records, beginning at a state that must not be changed: pure and total."""
Decision = Callable[[S], Sequence[Event]]
"""The events to append to a state, none if there is nothing to do. Refuses by raising a `SikaError`."""


class Folded(NamedTuple, Generic[S]):
    """A state as of the aggregate's event `seq`, made of `size` bytes of events."""

    seq: int
    state: S
    size: int
    checked: int
    """The aggregate has no other events up to this sequence of the stream."""
    last: str = ""
    """Id of the event `seq`, if it is known."""


class Repository(Generic[S]):
    """Aggregates of one kind. `empty` is the state before the first event; `weigh` tells the bytes that a state counts
    for in the cache (default: those of its events). With a `form` and a `directory`, they have snapshots there.
    """

    def __init__(
        self,
        log: EventLog,
        kind: str,
        fold: Fold[S],
        empty: S,
        *,
        cache_bytes: int = CACHE_BYTES,
        weigh: Callable[[S], int] | None = None,
        form: Form[S] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.log = log
        self.kind = kind
        self._fold = fold
        self._nothing = Folded(0, empty, 0, 0)
        self._weigh = weigh
        self.snapshots = Snapshots(log, directory, kind, form) if form and directory else None
        self._cached: ByteCache[str, Folded[S]] = ByteCache(cache_bytes)
        self._absent: ByteCache[str, Folded[S]] = ByteCache(cache_bytes // ABSENT_SHARE)
        """Aggregates without events, up to which sequence: looking for those that are not there evicts no other."""
        self._loading: dict[str, asyncio.Future[Folded[S]]] = {}

    # ── load ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def load(self, identity: str, *, at_least: int | None = None) -> S:
        """Returns the state as of now, or (cheaper) as of any moment not before sequence `at_least`.

        Raises `Unavailable`.
        """
        if at_least is not None and (known := self._in_memory(identity, at_least)) is not None:
            return known.state
        return (await self._load(identity)).state

    def _in_memory(self, identity: str, at_least: int) -> Folded[S] | None:
        """Returns what is in memory, if it is as of a moment not before `at_least`. Costs no request."""
        known = self._newest(identity)
        if not known.checked:
            return None
        heard = self.log.unchanged_here(Aggregate(self.kind, identity), known.checked, at_least)
        if heard is not None:
            return self._keep(identity, known._replace(checked=heard))
        return known if known.seq >= at_least else None

    async def folded(self, identity: str) -> Folded[S]:
        """Returns the state as of now, with the sequence of its last event. Raises `Unavailable`."""
        return await self._load(identity)

    def cached(self, identity: str) -> S | None:
        """Returns the state as it was when it was last looked at here, if it is in memory."""
        cached = self._cached.get(identity)
        return None if cached is None else cached.state

    def forget(self, identity: str) -> None:
        """Keeps nothing of the aggregate in memory."""
        self._cached.drop(identity)

    async def drop(self, identity: str) -> None:
        """Forgets what was made of an aggregate's events: in memory and in a snapshot. Raises `Unavailable`."""
        self.forget(identity)
        if self.snapshots is not None:
            await self.snapshots.remove(identity)

    async def erase(self, identity: str, *, before: int | None = None, seconds: float = math.inf) -> bool:
        """Erases events as `EventLog.erase` does, and drops what was made of them: before, as who sees that they are
        gone must not be shown it, and after, as it may have been made again. Returns False if there are more.
        """
        self.forget(identity)
        done = await self.log.erase(Aggregate(self.kind, identity), before=before, seconds=seconds)
        await self.drop(identity)
        return done

    async def _load(self, identity: str, known: Folded[S] | None = None) -> Folded[S]:
        earlier = None
        if (loading := self._loading.get(identity)) is not None:
            earlier = await _result(loading)  # it began before this call, so it may miss something
        while (loading := self._loading.get(identity)) is not None:
            if (folded := await _result(loading)) is not None:
                return folded
        loading = self._loading[identity] = asyncio.get_running_loop().create_future()
        try:
            folded = await self._refresh(identity, self._newest(identity, known, earlier))
            loading.set_result(folded)
            return folded
        except SikaError as error:
            loading.set_exception(error)
            loading.exception()  # taken: nobody may be waiting
            raise
        finally:
            del self._loading[identity]
            loading.cancel()

    async def _refresh(self, identity: str, known: Folded[S]) -> Folded[S]:
        """Returns what is known if it is current, else folds what has come after it."""
        aggregate = Aggregate(self.kind, identity)
        until = await self.log.unchanged_until(aggregate, known.checked) if known.checked else None
        if until is not None:
            return self._keep(identity, known._replace(checked=until))
        position, fold = self.log.position, None
        known, following = await self._beginning(aggregate, known)
        try:
            async for records in _slices(following):
                fold = fold or self._folding(known.state)
                known = self._folded(records, known, fold(records))
                await asyncio.sleep(0)
        except (asyncio.CancelledError, SikaError):
            self._keep(identity, known)
            raise
        return self._keep(identity, known._replace(checked=max(position, known.checked)))

    async def _beginning(self, aggregate: Aggregate, known: Folded[S]) -> tuple[Folded[S], AsyncIterator[Record]]:
        """Returns a state and the events after it: what is known, or a snapshot whose last event is in the log."""
        if not known.seq and self.snapshots is not None and (there := await self.snapshots.read(aggregate.id)):
            following = self.log.read(aggregate, after=there.seq - 1)
            last = await anext(following, None)
            if last is not None and (last.seq, last.id) == (there.seq, there.last):
                return Folded(there.seq, there.state, there.size, there.seq, there.last), following
            await self.snapshots.discard(aggregate.id)
        return known, self.log.read(aggregate, after=known.checked)

    def _folding(self, state: S) -> Callable[[Sequence[Record]], S]:
        """Returns a function that folds slice after slice and may change the states that it returned before."""

        def fold(records: Sequence[Record]) -> S:
            nonlocal state
            state = self._fold(records, state)
            return state

        return fold

    # ── decide ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def decide(
        self,
        identity: str,
        decision: Decision[S],
        *,
        actor: str,
        run: str | None = None,
        cause: str | None = None,
        known: Folded[S] | None = None,
    ) -> tuple[S, list[Record]]:
        """Appends what `decision` makes of the state; decides again if somebody else was first (see the one rule for
        decisions above). `known`: a state of the caller's, which may be newer than what is kept.

        Returns the state after the append, and what was appended. Raises what the decision raises, and what
        `EventLog.append` does but for `Conflict`.
        """
        async with self.log.turns.turn(Aggregate(self.kind, identity)):
            return await self._decide(identity, decision, actor=actor, run=run, cause=cause, known=known)

    async def _decide(
        self,
        identity: str,
        decision: Decision[S],
        *,
        actor: str,
        run: str | None,
        cause: str | None,
        known: Folded[S] | None,
    ) -> tuple[S, list[Record]]:
        folded, current = self._newest(identity, known), False
        for attempt in range(DECIDE_TRIES):
            try:
                events = decision(folded.state)
                if events:
                    return await self.append(identity, folded, events, actor=actor, run=run, cause=cause)
                if current:
                    return folded.state, []
            except Conflict:
                await back_off(attempt)
            except Unavailable:
                raise
            except SikaError:
                if current:
                    raise
            folded, current = await self._load(identity, folded), True
        raise Unavailable(f"{Aggregate(self.kind, identity)}: too many writers at once")

    async def append(
        self,
        identity: str,
        before: Folded[S],
        events: Sequence[Event],
        *,
        actor: str,
        run: str | None = None,
        cause: str | None = None,
    ) -> tuple[S, list[Record]]:
        """Appends events to a state. Returns the state after them, and the records. Raises `Conflict` if it is not the
        newest, and what `EventLog.append` raises.
        """
        records = await self.log.append(
            Aggregate(self.kind, identity),
            events,
            expected=before.seq,
            actor=actor,
            run=run,
            cause=cause,
            labels=self._labels(identity, before.state, run, events),
            traceparent=self._traceparent(before.state, run, events),
        )
        return self._keep(identity, self._folded(records, before, self._fold(records, before.state))).state, records

    def _labels(self, identity: str, state: S, run: str | None, events: Sequence[Event]) -> frozenset[str]:
        """Returns what is true of the events, by which actors select them (`core.lifecycle`)."""
        return frozenset()

    def _traceparent(self, state: S, run: str | None, events: Sequence[Event]) -> str | None:
        """Returns the trace that the events are part of, if any."""
        return None

    # ── keep ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _newest(self, identity: str, *known: Folded[S] | None) -> Folded[S]:
        """Returns the newest of what is kept and what the callers know."""
        cached = self._cached.get(identity) or self._absent.get(identity) or self._nothing
        states = [cached, *(state for state in known if state is not None)]
        return max(states, key=lambda state: (state.seq, state.checked))

    def _folded(self, records: Sequence[Record], before: Folded[S], state: S) -> Folded[S]:
        """Returns the state after records that directly follow another one."""
        size = before.size + sum(len(record.raw) for record in records) if self._weigh is None else self._weigh(state)
        return Folded(records[-1].seq, state, size, records[-1].seq, records[-1].id)

    def _keep(self, identity: str, folded: Folded[S]) -> Folded[S]:
        """Keeps a state unless a newer one is kept. Returns the newer one."""
        cached = self._cached.get(identity)
        if cached is not None and (cached.seq, cached.checked) > (folded.seq, folded.checked):
            return cached
        if folded.seq:
            self._cached.put(identity, folded, folded.size)
            if self.snapshots is not None and folded.last:
                self.snapshots.offer(identity, Snapshot(folded.seq, folded.last, folded.size, folded.state))
        else:
            self._absent.put(identity, folded, ABSENT_BYTES)
        return folded


async def back_off(attempt: int) -> None:
    """Lets writers of other processes come first, after the second conflict with them: for a random time, so that they
    do not meet again.
    """
    if attempt > 1:
        await asyncio.sleep(random.uniform(0, min(BACK_OFF_SECONDS, 0.001 * 2**attempt)))


async def _slices(records: AsyncIterator[Record]) -> AsyncIterator[list[Record]]:
    slice_, size = list[Record](), 0
    async for record in records:
        slice_.append(record)
        size += len(record.raw)
        if len(slice_) >= SLICE_RECORDS or size >= SLICE_BYTES:
            yield slice_
            slice_, size = [], 0
    if slice_:
        yield slice_


async def _result(loading: asyncio.Future[Folded[S]]) -> Folded[S] | None:
    """Waits for somebody else's load; None if that was cancelled."""
    await asyncio.wait([loading])
    return None if loading.cancelled() else loading.result()
