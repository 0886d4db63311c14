"""Limits of a user: requests in a minute, concurrent runs, tokens in a day.

The limit of concurrent runs is exact over all replicas: admissions are events of an aggregate of the user's, decided
under the log's guard. The newest event lists all open runs. Ended runs are removed only when a new run needs the slot:
no run waits for bookkeeping. Tokens are those in the user's ledger (`core.runs.ledger`); an admitted run may exceed
the limit. Requests are counted per process: behind N replicas a user may have N times as many.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import structlog
from cachetools import LRUCache

from core.config import settings
from core.errors import SikaError, Unavailable
from core.events import Aggregate, Event, Record
from core.identity.errors import TooMany
from core.identity.principal import Principal
from core.ids import now, stamp
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase
from core.runs.ledger import Ledgers
from core.thread.threads import Threads

log = structlog.get_logger("sika.identity")

KIND = "quota"
MINUTE = 60.0
RETRY_SECONDS = 5.0
"""`Retry-After` of too many runs: their end cannot be foreseen."""
REQUESTED_WITHIN = timedelta(seconds=30)
"""An admission whose run is not in the log after this time was never used, e.g. because its server died."""
KEPT = 50
"""Admissions of a user after which the older ones, which are obsolete, are purged."""
USERS = 10_000
"""Limit of users whose requests of the last minute are remembered."""
ACTOR = "http"
"""The actor of admissions in the log: requests come over HTTP."""


class Admission(msgspec.Struct, frozen=True):
    thread: str
    run: str
    at: str


class RunAdmitted(Event, frozen=True):
    """A run of the user's was admitted; `open` are the open admissions, this one last."""

    phrase = Phrase("Run admitted", "运行已接纳", "{open:count} at a time", "同时 {open:count} 个")
    open: list[Admission]


class RunRefused(Event, frozen=True):
    """An admitted run was refused for another reason; `open` are the other admissions."""

    phrase = Phrase(
        "Run refused",
        "运行被拒绝",
        "its place is free again; {open:count} at a time",
        "名额已释放；同时 {open:count} 个",
    )
    open: list[Admission]


class Admitted(msgspec.Struct, frozen=True):
    open: tuple[Admission, ...] = ()
    count: int = 0
    """Number of the events read so far."""


def fold(records: Iterable[Record], start: Admitted) -> Admitted:
    """Returns the admissions after these records. Pure and total."""
    for record in records:
        if isinstance(record.event, RunAdmitted | RunRefused):
            start = Admitted(tuple(record.event.open), start.count + 1)
    return start


class Limits:
    """The limits of all users. `clock` (seconds) is for tests."""

    def __init__(
        self,
        log: EventLog,
        threads: Threads,
        config: Callable[[], settings.Limits],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._threads = threads
        self._config = config
        self._clock = clock
        self._ledgers = Ledgers(log)
        self._admitted = Repository(log, KIND, fold, Admitted())
        self._requests: LRUCache[str, deque[float]] = LRUCache(USERS)

    def admit_request(self, principal: Principal) -> None:
        """Counts a request. Raises `TooMany`."""
        if not self._exempt(principal):
            self._count(f"user {principal.user}")

    def admit_stranger(self, address: str) -> None:
        """Counts a request of somebody who is not signed in, by where it comes from. Raises `TooMany`."""
        self._count(f"address {address}")

    def _count(self, who: str) -> None:
        limit = self._config().requests_per_minute
        if limit is None:
            return
        clock = self._clock()
        times = self._requests.setdefault(who, deque())
        while times and times[0] <= clock - MINUTE:
            times.popleft()
        if len(times) >= limit:
            text = f"More than {limit} requests in a minute (limits.requests_per_minute)"
            raise TooMany("too_many_requests", text, times[0] + MINUTE - clock)
        times.append(clock)

    async def admit_run(self, principal: Principal, thread_id: str, run_id: str, *, replaces: bool = False) -> None:
        """Admits a run; call it right before the run is requested. `replaces`: the run cancels those of its thread, so
        they do not count. Raises `TooMany`.
        """
        limits = self._config()
        if self._exempt(principal):
            return
        if limits.tokens_per_day is not None:
            await self._within_budget(principal.user, limits.tokens_per_day)
        if limits.max_concurrent_runs is not None:
            admission = Admission(thread_id, run_id, now())
            await self._take_place(principal.user, admission, limits.max_concurrent_runs, replaces)

    @asynccontextmanager
    async def admitted(
        self, principal: Principal, thread_id: str, run_id: str, *, replaces: bool = False
    ) -> AsyncIterator[None]:
        """Like `admit_run`, for a block that requests the run: if the run is refused, its slot is released at once."""
        await self.admit_run(principal, thread_id, run_id, replaces=replaces)
        try:
            yield
        except Unavailable:
            raise  # perhaps it is in the log all the same
        except SikaError:
            await self._release(principal.user, run_id)
            raise

    async def _release(self, user: str, run_id: str) -> None:
        def decide(state: Admitted) -> Sequence[Event]:
            others = [admission for admission in state.open if admission.run != run_id]
            return [RunRefused(open=others)] if len(others) < len(state.open) else []

        try:
            await self._admitted.decide(user, decide, actor=ACTOR)
        except SikaError as error:
            log.info("place of a refused run not given back yet", error=str(error))

    async def _within_budget(self, user: str, limit: int) -> None:
        instant = datetime.now(UTC)
        used = await self._ledgers.used(user, stamp(instant)[:10])
        if sum(tokens.total for tokens in used.values()) >= limit:
            today = instant.replace(hour=0, minute=0, second=0, microsecond=0)
            text = f"The runs of today used {limit} tokens or more (limits.tokens_per_day); the day ends at 0:00 UTC"
            raise TooMany("token_budget", text, (today + timedelta(days=1) - instant).total_seconds())

    async def _take_place(self, user: str, admission: Admission, limit: int, replaces: bool) -> None:
        ended: set[str] = set()

        def decide(state: Admitted) -> Sequence[Event]:
            open_ = [other for other in state.open if other.run not in ended]
            counted = [other for other in open_ if not (replaces and other.thread == admission.thread)]
            if len(counted) >= limit:
                text = f"{limit} runs at a time are allowed (limits.max_concurrent_runs)"
                raise TooMany("too_many_runs", text, RETRY_SECONDS)
            return [RunAdmitted(open=[*open_, admission])]

        try:
            state, _ = await self._admitted.decide(user, decide, actor=ACTOR)
        except TooMany:
            before = await self._admitted.load(user)
            ended |= {other.run for other in before.open if await self._has_ended(other)}
            state, _ = await self._admitted.decide(user, decide, actor=ACTOR)
        if state.count % KEPT == 0:
            await self._forget(user)

    async def _has_ended(self, admitted: Admission) -> bool:
        """True if a run has ended, or was never requested."""
        state = await self._threads.load(admitted.thread)
        if (run := state.runs.get(admitted.run)) is not None:
            return not run.open
        return state.erased or datetime.fromisoformat(admitted.at) + REQUESTED_WITHIN < datetime.now(UTC)

    async def _forget(self, user: str) -> None:
        try:
            await self._log.purge(Aggregate(KIND, user))
        except SikaError as error:  # harmless: they only take space
            log.info("old admissions not purged", error=str(error))

    def _exempt(self, principal: Principal) -> bool:
        return principal.role == "admin" and self._config().exempt_admins
