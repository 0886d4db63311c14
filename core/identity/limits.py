"""How much a user may ask for: requests in a minute, runs at a time, tokens in a day.

Runs at a time are exact, whoever asks wherever: admissions are facts of an aggregate of the user's, decided under the
log's guard. Each one states all runs that are admitted and not known to have ended, so the last one says it all. Runs
are not taken off when they end but when their place is wanted: no run waits for bookkeeping. Tokens are those in the
user's ledger (`core.thread.ledger`), and a run that was admitted uses what it uses. Requests are counted per process:
behind N replicas a user may have N times as many.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import structlog

from core.config import settings
from core.errors import SikaError, Unavailable
from core.events import Aggregate, Event, Record
from core.identity.errors import TooMany
from core.identity.principal import Principal
from core.ids import now, stamp
from core.log.repository import Repository
from core.log.store import EventLog
from core.thread.ledger import Ledgers
from core.thread.threads import Threads

log = structlog.get_logger("sika.identity")

KIND = "quota"
MINUTE = 60.0
RETRY_SECONDS = 5.0
"""What is told to who has too many runs: nobody knows when one ends."""
REQUESTED_WITHIN = timedelta(seconds=30)
"""An admission whose run is not in the log after this was never used: its server died, or nobody knows."""
KEPT = 50
"""Admissions of a user until the older ones, which say nothing any more, are purged."""
USERS = 10_000
"""Users whose requests of the last minute are remembered."""


class Admission(msgspec.Struct, frozen=True):
    thread: str
    run: str
    at: str


class RunAdmitted(Event, frozen=True):
    """A run of the user's may be asked for; `open` are all that may be, this one last."""

    open: list[Admission]


class RunRefused(Event, frozen=True):
    """A run that was admitted was not to be had for another reason; `open` are the others."""

    open: list[Admission]


class Admitted(msgspec.Struct, frozen=True):
    open: tuple[Admission, ...] = ()
    count: int = 0
    """Of the facts read so far."""


def fold(records: Iterable[Record], start: Admitted) -> Admitted:
    """Pure and total."""
    for record in records:
        if isinstance(record.event, RunAdmitted | RunRefused):
            start = Admitted(tuple(record.event.open), start.count + 1)
    return start


class Limits:
    """`clock` (seconds) is for tests."""

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
        self._requests: OrderedDict[str, deque[float]] = OrderedDict()

    def admit_request(self, principal: Principal) -> None:
        """Count a request. Raises `TooMany`."""
        most = self._config().requests_per_minute
        if most is None or self._exempt(principal):
            return
        clock = self._clock()
        times = self._requests.setdefault(principal.user, deque())
        self._requests.move_to_end(principal.user)
        if len(self._requests) > USERS:
            self._requests.popitem(last=False)
        while times and times[0] <= clock - MINUTE:
            times.popleft()
        if len(times) >= most:
            text = f"More than {most} requests in a minute (limits.requests_per_minute)"
            raise TooMany("too_many_requests", text, times[0] + MINUTE - clock)
        times.append(clock)

    async def admit_run(
        self, principal: Principal, thread_id: str, run_id: str, *, replaces: bool = False, actor: str = "http"
    ) -> None:
        """Whether the user may have this run, too; call it right before the run is asked for. `replaces`: the run
        cancels those of its thread, so they do not count. Raises `TooMany`.
        """
        limits = self._config()
        if self._exempt(principal):
            return
        if limits.tokens_per_day is not None:
            await self._within_budget(principal.user, limits.tokens_per_day)
        if limits.max_concurrent_runs is not None:
            wanted = Admission(thread_id, run_id, now())
            await self._take_place(principal.user, wanted, limits.max_concurrent_runs, replaces, actor)

    @asynccontextmanager
    async def admitted(
        self, principal: Principal, thread_id: str, run_id: str, *, replaces: bool = False, actor: str = "http"
    ) -> AsyncIterator[None]:
        """As `admit_run`, for a block that asks for the run: if the run is refused, its place is free again at once."""
        await self.admit_run(principal, thread_id, run_id, replaces=replaces, actor=actor)
        try:
            yield
        except Unavailable:
            raise  # perhaps it is in the log all the same
        except SikaError:
            await self._give_back(principal.user, run_id, actor)
            raise

    async def _give_back(self, user: str, run_id: str, actor: str) -> None:
        def decide(state: Admitted) -> Sequence[Event]:
            others = [one for one in state.open if one.run != run_id]
            return [RunRefused(open=others)] if len(others) < len(state.open) else []

        try:
            await self._admitted.decide(user, decide, actor=actor)
        except SikaError as error:
            log.info("place of a refused run not given back yet", error=str(error))

    async def _within_budget(self, user: str, most: int) -> None:
        moment = datetime.now(UTC)
        used = await self._ledgers.used(user, stamp(moment)[:10])
        if sum(tokens.total for tokens in used.values()) >= most:
            today = moment.replace(hour=0, minute=0, second=0, microsecond=0)
            text = f"The runs of today used {most} tokens or more (limits.tokens_per_day); the day ends at 0:00 UTC"
            raise TooMany("token_budget", text, (today + timedelta(days=1) - moment).total_seconds())

    async def _take_place(self, user: str, wanted: Admission, most: int, replaces: bool, actor: str) -> None:
        ended: set[str] = set()

        def decide(state: Admitted) -> Sequence[Event]:
            open_ = [one for one in state.open if one.run not in ended]
            counted = [one for one in open_ if not (replaces and one.thread == wanted.thread)]
            if len(counted) >= most:
                text = f"{most} runs at a time are allowed (limits.max_concurrent_runs)"
                raise TooMany("too_many_runs", text, RETRY_SECONDS)
            return [RunAdmitted(open=[*open_, wanted])]

        try:
            state, _ = await self._admitted.decide(user, decide, actor=actor)
        except TooMany:
            before = await self._admitted.load(user)
            ended |= {one.run for one in before.open if await self._over(one)}
            state, _ = await self._admitted.decide(user, decide, actor=actor)
        if state.count % KEPT == 0:
            await self._forget(user)

    async def _over(self, admitted: Admission) -> bool:
        """Whether a run has ended, or was never asked for."""
        state = await self._threads.load(admitted.thread)
        if (run := state.runs.get(admitted.run)) is not None:
            return not run.open
        return state.erased or datetime.fromisoformat(admitted.at) + REQUESTED_WITHIN < datetime.now(UTC)

    async def _forget(self, user: str) -> None:
        try:
            await self._log.purge(Aggregate(KIND, user))
        except SikaError as error:  # it only takes room
            log.info("old admissions not purged", error=str(error))

    def _exempt(self, principal: Principal) -> bool:
        return principal.role == "admin" and self._config().exempt_admins
