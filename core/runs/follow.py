"""Following a thread live: its facts in order, previews of its runs, and beats in between.

Theory of operation
-------------------
A follower listens before anything else happens, so whatever is appended afterwards reaches it. Facts come from the
log's live feed, previews from the bus; both go through one bounded buffer, in the order in which they arrive. If the
buffer overflows (a slow reader), all of it is dropped, and the facts are read from the log. Previews are not read
again: the finished message says what they would have said.

A run whose previews are to be followed although it is at work already has some that are kept; these come first. Of a
run that is still to begin they come when it has begun: its worker may have been faster than the follower. A reader
that misses previews in between asks for the stored ones again (`recall`). So nobody but this file and `previews` knows
how previews are transported.

Items come in batches: what is ready goes to a client in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from core.errors import Unavailable
from core.events import Aggregate, Record, thread
from core.log.reader import Read
from core.log.store import EventLog
from core.runs.previews import Preview, Progress, Pump, RunPreview, decoded, stored

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

READ_BATCH = 50
"""Facts in a batch that is read from the log."""


class Stopping(Unavailable):
    """The process goes down; the stream can be resumed elsewhere."""


class Beat:
    """A sign of life for clients, at a steady rate. `ahead`: runs that start before the thread's, if it waits."""

    def __init__(self, ahead: int | None = None) -> None:
        self.ahead = ahead


BEAT: Final = Beat()
Item = Record | RunPreview | Beat
Batch = list[Item]


class Speaker(Protocol):
    """A run, or a subagent's, whose previews are followed."""

    @property
    def id(self) -> str: ...

    @property
    def status(self) -> str: ...


Audible = Callable[[], Iterable[Speaker]]
"""The runs whose previews are followed; asked before each wait."""


class _Wake:
    """Ends a wait, and is nothing more."""


_WAKE: Final = _Wake()


class _Moved(_Wake):
    """A run that was at work here goes on elsewhere."""

    def __init__(self, run: str) -> None:
        self.run = run


class _Heard:
    """A run whose previews are received, once for all that follow it."""

    def __init__(self, here: bool) -> None:
        self.here = here
        """It is at work in this process."""
        self.subscription: Subscription | None = None
        self.inboxes: set[_Inbox] = set()

    def put(self, item: RunPreview | _Moved) -> None:
        """Puts the same object into all buffers."""
        for inbox in self.inboxes:
            inbox.put(item)


class _Inbox(Protocol):
    """The log's buffer; here it carries previews and beats, too."""

    def put(self, record: Any) -> None: ...

    async def take(self) -> tuple[list[Any], bool]: ...


class Follower:
    """Follows one thread. For one reader."""

    def __init__(self, followers: Followers, thread_id: str, inbox: _Inbox) -> None:
        self._followers = followers
        self._log = followers.log
        self.thread = thread(thread_id)
        self._inbox = inbox
        self._seq = 0
        self._heard: set[str] = set()
        self._missed: dict[str, None] = {}
        """Runs whose stored previews come next."""
        self._waiting: set[str] = set()
        """Runs that had not begun when they were first followed."""

    def put(self, item: Beat | _Wake) -> None:
        self._inbox.put(item)

    def wake(self) -> None:
        """Have a batch come soon, even if it is empty."""
        self.put(_WAKE)

    def recall(self, run_id: str) -> None:
        """Have the stored previews of a run come next."""
        self._missed[run_id] = None
        self.wake()

    async def hear(self, run_id: str) -> None:
        """Follow the previews of a run from now on, so that none is missed if it is requested afterwards."""
        if run_id not in self._heard:
            await self._followers.hear(run_id, self._inbox)
            self._heard.add(run_id)

    async def past(self, seq: int) -> AsyncGenerator[Batch]:
        """Everything after a fact up to now, as the log has it. Raises `Unavailable`."""
        self._seq = seq
        batch: Batch = []
        async for record in self._followers.read(self.thread, after=seq):
            self._seq = record.seq
            batch.append(record)
            if len(batch) == READ_BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    async def since(self, seq: int | None, audible: Audible = tuple, *, heard: bool = False) -> AsyncGenerator[Batch]:
        """Everything after a fact (None: after what was yielded last), for ever. `heard`: the follower was there before
        the fact was read or appended, so the log need not be read.

        Raises `Stopping`; `Unavailable` if the log is out of reach.
        """
        self._seq, behind = self._seq if seq is None else seq, not heard
        while True:
            if behind:
                async for batch in self.past(self._seq):
                    yield batch
            await self._attend(audible())
            if self._missed:
                async for batch in self._recalled():
                    yield batch
            if self._followers.stopping:
                raise Stopping("the server is stopping")
            items, behind = await self._inbox.take()
            yield [item for item in items if self._is_new(item)]

    async def close(self) -> None:
        """Follow no previews any more."""
        await self._attend(())

    def _is_new(self, item: Any) -> bool:
        if isinstance(item, Record):
            if item.seq <= self._seq:
                return False
            self._seq = item.seq
        if isinstance(item, _Moved) and item.run in self._heard:
            self._missed[item.run] = None
        return not isinstance(item, _Wake) and (not isinstance(item, RunPreview) or item.run in self._heard)

    async def _attend(self, runs: Iterable[Speaker]) -> None:
        """Follow the previews of these runs and of no others."""
        followed = {run.id: run for run in runs}
        for run_id in self._heard - followed.keys():
            self._missed.pop(run_id, None)
            self._waiting.discard(run_id)
            self._heard.discard(run_id)
            await self._followers.leave(run_id, self._inbox)
        for run_id, run in followed.items():
            if run_id in self._heard:
                await self._followers.tune(run_id)
            else:
                await self.hear(run_id)
                self._waiting.add(run_id)
            if run_id in self._waiting and run.status == "running":
                self._waiting.discard(run_id)
                self._missed[run_id] = None

    async def _recalled(self) -> AsyncIterator[Batch]:
        while self._missed:
            run_id = next(iter(self._missed))
            del self._missed[run_id]
            await self._followers.stored()
            yield [RunPreview(run_id, preview, True) for preview in await stored(self._log.bus, run_id)]


class Followers:
    """All followers of a process: their heartbeat, and their end."""

    def __init__(
        self,
        log: EventLog,
        read: Read | None = None,
        ahead: Callable[[Aggregate], int | None] = lambda _: None,
        pump: Pump | None = None,
    ) -> None:
        self.log = log
        self.read = read or log.read
        """Reads what followers have missed."""
        self._ahead = ahead
        self._pump = pump
        """Hands over the previews of runs at work in this process; None where there are none."""
        self.stopping = False
        self._all: set[Follower] = set()
        self._heard: dict[str, _Heard] = {}
        self._subscribing = asyncio.Lock()
        if pump is not None:
            pump.join(self)

    def __len__(self) -> int:
        return len(self._all)

    @asynccontextmanager
    async def follow(self, thread_id: str) -> AsyncIterator[Follower]:
        """Follow a thread, which need not exist yet, from now on."""
        with self.log.listen(thread(thread_id)) as inbox:
            follower = Follower(self, thread_id, inbox)
            self._all.add(follower)
            try:
                yield follower
            finally:
                self._all.discard(follower)
                await follower.close()

    async def hear(self, run_id: str, inbox: _Inbox) -> None:
        """Have the previews of a run put into a buffer, too. All buffers get the same objects."""
        heard = self._heard.get(run_id)
        if heard is None:
            heard = self._heard[run_id] = _Heard(self._pump is not None and self._pump.works_on(run_id))
        heard.inboxes.add(inbox)
        try:
            await self.tune(run_id)
        except BaseException:
            await self.leave(run_id, inbox)
            raise

    async def tune(self, run_id: str) -> None:
        """Has the previews of a run that is heard come by NATS, unless it is at work in this process."""
        heard = self._heard.get(run_id)
        if heard is None or heard.here == (heard.subscription is None):
            return
        async with self._subscribing:
            if heard.here:
                await _unsubscribe(heard)
            elif heard.subscription is None and self._heard.get(run_id) is heard:
                bus = self.log.bus
                heard.subscription = await bus.subscribe(bus.names.tok(run_id), partial(_receive, run_id, heard))

    async def leave(self, run_id: str, inbox: _Inbox) -> None:
        """Put no more previews of a run into a buffer."""
        heard = self._heard[run_id]
        heard.inboxes.discard(inbox)
        if not heard.inboxes:
            del self._heard[run_id]
            async with self._subscribing:
                await _unsubscribe(heard)

    def hand(self, run: str, preview: Preview | Progress) -> None:
        """Takes a preview of a run at work here (`core.runs.previews.Audience`)."""
        if heard := self._heard.get(run):
            heard.put(RunPreview(run, preview))

    def moved(self, run: str, here: bool) -> None:
        """A run is at work here from now on, or goes on elsewhere."""
        if heard := self._heard.get(run):
            heard.here = here
            if not here:
                heard.put(_Moved(run))

    async def stored(self) -> None:
        """Returns when NATS keeps the previews of this process that waited for it."""
        if self._pump is not None:
            await self._pump.send(stored=True)

    async def beat(self, seconds: Callable[[], float]) -> None:
        """Runs for as long as the process: one heart for all, steady, as clients measure it."""
        while True:
            await asyncio.sleep(seconds())
            for follower in self._all:
                ahead = self._ahead(follower.thread)
                follower.put(BEAT if ahead is None else Beat(ahead))

    def stop(self) -> None:
        """End them all with `Stopping`."""
        self.stopping = True
        for follower in self._all:
            follower.wake()


async def _receive(run_id: str, heard: _Heard, msg: Msg) -> None:
    """Takes a preview from NATS. One of a run that is at work here was handed over."""
    if not heard.here and (preview := decoded(msg.data)):
        heard.put(RunPreview(run_id, preview))


async def _unsubscribe(heard: _Heard) -> None:
    import nats.errors

    subscription, heard.subscription = heard.subscription, None
    if subscription is not None:
        with suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()
