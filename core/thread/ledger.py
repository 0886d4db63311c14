"""The usage of a day, by user and in total: exact, whichever process counts.

A user's ledger is one aggregate: of the newest day, each run with all that it has used so far, and each title,
judgement, suggestion and reading for the memory by the id of its event. Saying the same again
changes nothing, so a run may be posted any number of times: before each model call, and before its end. The ledger of
everybody has the users' sums in place of runs. Days are in UTC, and a run counts for the day on which it was asked for.
A day that is over is not read any more: its entries are dropped with the first post of the next.

A post states one entry, and every `KEPT`-th all of them: what lies before that one is purged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog

from core.errors import SikaError
from core.events import Aggregate, Event, Record
from core.ids import now
from core.log.repository import Repository
from core.log.store import EventLog
from core.thread.state import Run, ThreadState
from core.thread.usage import Tokens, by_model, together

log = structlog.get_logger("sika.ledger")

KIND, KIND_OF_ALL = "ledger", "ledgers"
EVERYBODY = "everybody"
ACTOR = "ledger"
KEPT = 100

Used = Mapping[str, Tokens]
"""Tokens by model."""


class Counts(msgspec.Struct, frozen=True, omit_defaults=True):
    """`core.thread.usage.Tokens` as the log has them."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    calls: int = 0


class TokensSpent(Event, frozen=True):
    """All that these entries (runs and events, or users) have used of a day (`2026-01-31`), by model."""

    day: str
    used: dict[str, dict[str, Counts]]


class Ledger(msgspec.Struct, frozen=True):
    """The entries of the newest day. Do not change them."""

    day: str = ""
    entries: Mapping[str, Used] = {}
    total: Used = {}
    count: int = 0
    """Posts folded so far."""

    def on(self, day: str) -> Used:
        """Returns what all entries used on a day: nothing unless it is the newest."""
        return self.total if day == self.day else {}


class Today(msgspec.Struct, frozen=True):
    """The usage of today: of one user, and of all."""

    user: Used = {}
    everybody: Used = {}


def fold(records: Iterable[Record], start: Ledger) -> Ledger:
    """Pure and total."""
    day, count, entries, total = start.day, start.count, dict(start.entries), dict(start.total)
    for record in records:
        event = record.event
        if not isinstance(event, TokensSpent):
            continue
        count += 1
        if event.day > day:
            day, entries, total = event.day, {}, {}
        if event.day == day:
            for key, counts in event.used.items():
                used = {model: Tokens(*msgspec.structs.astuple(spent)) for model, spent in counts.items()}
                _add(total, used, instead=entries.get(key, {}))
                entries[key] = used
    return Ledger(day, entries, total, count)


def _add(total: dict[str, Tokens], used: Used, *, instead: Used) -> None:
    for model, tokens in used.items():
        sums = zip(total.get(model, Tokens()), tokens, instead.get(model, Tokens()), strict=True)
        total[model] = Tokens(*(sum_ + new - old for sum_, new, old in sums))


def posted(ledger: Ledger, day: str, key: str, used: Used) -> list[Event]:
    """Returns the event that brings an entry up to date; none if it is, or if the day is over. Entries only grow."""
    entries = ledger.entries if ledger.day == day else {}
    known = entries.get(key, {})
    grown = {model: known.get(model, Tokens()).at_least(used.get(model, Tokens())) for model in {**known, **used}}
    if ledger.day > day or grown == known:
        return []
    stated = {**entries, key: grown} if _is_whole(ledger) else {key: grown}
    return [TokensSpent(day=day, used={name: _counts(used) for name, used in stated.items()})]


class Ledgers:
    """One per process."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._users = Repository(log, KIND, fold, Ledger())
        self._all = Repository(log, KIND_OF_ALL, fold, Ledger())
        self._one_at_a_time = asyncio.Lock()
        """The runs of a process do not race for the ledger of everybody."""

    async def used(self, user: str, day: str) -> Used:
        """Returns what a user's runs used on a day, if it is the newest one that they used anything on."""
        return (await self._users.load(user)).on(day)

    async def post(self, state: ThreadState, run: Run, *, everybody: bool) -> Today:
        """Enters what a run has used so far into its user's ledger, and (`everybody`) the sum into that of all. Returns
        what was used today, to which a run of an earlier day adds all of its own. Raises `Unavailable`.
        """
        day, used = run.created_at[:10], by_model(state, run)
        today = await self.enter(state.user, day, run.id, used, everybody=everybody)
        if day == now()[:10]:
            return today
        return Today(together(today.user, used), together(today.everybody, used))

    async def enter(self, user: str, day: str, key: str, used: Used, *, everybody: bool) -> Today:
        """Like `post`, of anything with a key of its own."""
        mine = await self._post(self._users, user, day, key, used)
        everyone = Ledger()
        if everybody:
            async with self._one_at_a_time:
                everyone = await self._post(self._all, EVERYBODY, mine.day, user, mine.total)
        today = now()[:10]
        return Today(mine.on(today), everyone.on(today))

    async def _post(self, ledgers: Repository[Ledger], identity: str, day: str, key: str, used: Used) -> Ledger:
        whole = False

        def decide(ledger: Ledger) -> Sequence[Event]:
            nonlocal whole
            whole = _is_whole(ledger)
            return posted(ledger, day, key, used)

        ledger, records = await ledgers.decide(identity, decide, actor=ACTOR)
        if whole and records:
            await self._forget(Aggregate(ledgers.kind, identity), records[-1].seq)
        return ledger

    async def _forget(self, aggregate: Aggregate, before: int) -> None:
        try:
            await self._log.purge(aggregate, before=before)
        except SikaError as error:  # it only takes room
            log.info("old posts not purged", ledger=str(aggregate), error=str(error))


def _is_whole(ledger: Ledger) -> bool:
    """Tells if the next post states all entries."""
    return ledger.count % KEPT == KEPT - 1


def _counts(used: Used) -> dict[str, Counts]:
    return {model: Counts(*tokens) for model, tokens in used.items()}
