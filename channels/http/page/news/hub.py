"""Who hears which news: one reader of the log for all streams of a process.

Theory of operation
-------------------
The reader listens to the whole log, and looks at the types of facts only, until one may be news. It then finds the
owner of the thread (in memory, or in the thread's first event), and makes the news once for all streams of that owner
and of administrators who follow everybody. So a stream costs a queue, and nothing is asked of anybody in intervals.

A stream's position is a sequence of the log. One that resumes is read what lies between, if that is not too much;
otherwise, and if its client reads too slowly, it learns that there is a gap. Its client then fetches its lists again:
news never are the only place where something stands.

Guarantees: news of one thread come in the order of the log, and none is left out without a gap. Non-guarantee: titles
are those of the moment at which the news are made, which may be later than the fact.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec
import structlog
from aiohttp import web
from cachetools import LRUCache

from channels.http.page.news.frames import TYPES, WITH_TITLE, News, news_of, owner_in
from channels.http.server.live import Live
from core.errors import NotFound, Unavailable
from core.events import Aggregate, Record, ThreadErased
from core.files.workspace import KIND as FILES
from core.log.kinds import KIND
from core.runs.follow import Stopping

log = structlog.get_logger("sika.http")

MOST_MISSED = 10_000
"""Events of the log that are read for a stream that resumes; about half a second."""
MOST_WAITING_BYTES = 1 << 20
"""Limit of the news that wait for a client that does not read; then they are dropped, and it learns of a gap."""
KINDS = (KIND, FILES)
"""Kinds of aggregates that are about a thread and have its id."""
OWNERS = 20_000
"""Threads whose owner is remembered."""
RETRY_SECONDS = 1.0


class ThreadNews(NamedTuple):
    """The news of one fact about a thread of `user`, each with its type and its data as JSON."""

    seq: int
    user: str
    news: Sequence[tuple[str, bytes]]

    @property
    def size(self) -> int:
        return sum(len(data) for _, data in self.news)


class Subscription:
    """The queue of one stream. `user`: whose threads; None: everybody's."""

    def __init__(self, user: str | None, hub: Hub) -> None:
        self.user = user
        self._hub = hub
        self._waiting: list[ThreadNews] = []
        self._size = 0
        self._gap = False
        self._ready = asyncio.Event()

    def put(self, news: ThreadNews) -> None:
        if self._size + news.size > MOST_WAITING_BYTES:
            self.miss()
        self._waiting.append(news)
        self._size += news.size
        self._ready.set()

    def miss(self) -> None:
        """Drops what waits: the client has to look for itself."""
        self._waiting, self._size = [], 0
        self._gap = True
        self._ready.set()

    def wake(self) -> None:
        self._ready.set()

    async def take(self, seconds: float) -> tuple[list[ThreadNews], bool]:
        """Returns the news since the last call, and whether some before them were dropped; none if nothing came within
        so many seconds. Raises `Stopping`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self._hub.stopping else seconds):
                await self._ready.wait()
        if self._hub.stopping:
            raise Stopping("the server is stopping")
        self._ready.clear()
        news, gap = self._waiting, self._gap
        self._waiting, self._size, self._gap = [], 0, False
        return news, gap


class Hub:
    """One per application."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._log = live.services.log
        self._subscriptions: dict[str | None, set[Subscription]] = {}
        """By user; None: those of everybody's threads."""
        self._owners: LRUCache[str, str] = LRUCache(OWNERS)
        self._running: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self.seq = 0
        """Up to here every stream has got the news."""

    @property
    def stopping(self) -> bool:
        return self._live.stopping

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """For `Application.cleanup_ctx`."""
        self._live.on_stop.append(self._wake_all)
        yield
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _wake_all(self) -> None:
        for subscription in self._all():
            subscription.wake()

    def _all(self) -> list[Subscription]:
        return [subscription for some in self._subscriptions.values() for subscription in some]

    @contextmanager
    def subscribed(self, user: str | None) -> Iterator[Subscription]:
        subscription = Subscription(user, self)
        some = self._subscriptions.setdefault(user, set())
        some.add(subscription)
        try:
            yield subscription
        finally:
            some.discard(subscription)
            if not some and self._subscriptions.get(user) is some:
                del self._subscriptions[user]

    async def position(self) -> int:
        """Returns the sequence up to which news have been sent, once they are. The reader begins with the first stream,
        and does not end before the process.
        """
        if self._running is None:
            self._running = asyncio.create_task(self._keep_reading(), name="news")
        await self._started.wait()
        return self.seq

    async def missed(self, user: str | None, after: int, upto: int) -> list[ThreadNews] | None:
        """Returns the news between two positions; None if there is too much between them. Raises `Unavailable`."""
        if upto - after > MOST_MISSED or after < 0:
            return None
        missed: list[ThreadNews] = []
        async for record in self._live.reading.between(after, upto):
            if (news := await self._news_of(record, {user})) is not None:
                missed.append(news)
        return missed

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep_reading(self) -> None:
        while True:
            try:
                await self._read()
            except Unavailable as error:
                log.warning("news wait for the log", error=str(error))
            except Exception:
                log.exception("news failed, and begin again")
            for subscription in self._all():
                subscription.miss()
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> None:
        with self._log.listen(None, bodies=False) as listener:
            self.seq = self._log.position
            self._started.set()
            while True:
                records, lost = await listener.take()
                if lost:
                    await self._catch_up()
                for record in records:
                    if record.seq > self.seq:
                        await self._publish(record)

    async def _catch_up(self) -> None:
        """Reads what the listener has dropped, or has all streams miss it."""
        upto = self._log.position
        if upto - self.seq > MOST_MISSED:
            for subscription in self._all():
                subscription.miss()
        else:
            async for record in self._log.between(self.seq, upto, bodies=False):
                await self._publish(record)
        self.seq = max(self.seq, upto)

    async def _publish(self, record: Record) -> None:
        news = await self._news_of(record, self._subscriptions.keys())
        self.seq = record.seq
        if news is not None:
            for subscription in (*self._subscriptions.get(None, ()), *self._subscriptions.get(news.user, ())):
                subscription.put(news)

    async def _news_of(self, record: Record, users: Set[str | None]) -> ThreadNews | None:
        """Returns the news of a fact, if some of these users may hear them."""
        if not users or record.head.kind not in KINDS or record.type not in TYPES:
            return None
        record = await self._log.whole(record)
        thread, user = record.aggregate.id, await self._owner(record)
        if user is None or users.isdisjoint((None, user)) or not (news := news_of(record)):
            return None
        about = {"thread_id": thread, "seq": record.seq, "at": record.at}
        if any(kind in WITH_TITLE for kind, _ in news):
            title = {"title": await self._title(user, thread)}
            news = [News(kind, fields | title if kind in WITH_TITLE else fields) for kind, fields in news]
        return ThreadNews(record.seq, user, [(kind, msgspec.json.encode(about | fields)) for kind, fields in news])

    async def _title(self, user: str, thread: str) -> str | None:
        """Returns the title that a thread has now; None if it has none, or is gone."""
        with suppress(NotFound):
            title = (await self._live.services.commands.state(user, thread)).values.get("title")
            return title if isinstance(title, str) else None
        return None

    async def _owner(self, record: Record) -> str | None:
        """Returns the owner of a fact's thread. Of one whose events are erased, the user who deleted it."""
        thread, event = record.aggregate.id, record.event
        user = owner_in(record) or self._owners.get(thread)
        if user is None and (first := await self._log.first(Aggregate(KIND, thread))) is not None:
            first = await self._log.whole(first)
            user = owner_in(first) or (first.event.by if isinstance(first.event, ThreadErased) else None)
        if user is not None:
            self._owners[thread] = user
        if isinstance(event, ThreadErased):
            self._owners.pop(thread, None)
        return user


HUB: web.AppKey[Hub] = web.AppKey("news", Hub)
