"""The usage of a day, by user and in total: exact, whichever process counts.

A user's ledger is one aggregate: of each of its days, each run with all that it has used so far, and each title,
judgement, suggestion and reading for the memory by the id of its event. Saying the same again
changes nothing, so a run may be posted any number of times: before each model call, and before its end. The ledger of
everybody has the users' sums in place of runs. Days are in UTC, and a run counts for the day on which it was asked for.

A ledger has the last `DAYS` days that were begun in it, so that a clock that is ahead takes nothing from the day that
it is in truth. A day that is over by the clock of its poster does not begin: a run of long ago ends no day.

A post states one entry, and every `KEPT`-th all of them: what lies before that one is purged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog

from core.errors import SikaError
from core.events import Aggregate, Event, Record
from core.ids import now
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase
from core.thread.state import Run, ThreadState
from core.thread.usage import Tokens, by_model, together

log = structlog.get_logger("sika.ledger")

KIND, KIND_OF_ALL = "ledger", "ledgers"
EVERYBODY = "everybody"
ACTOR = "ledger"
KEPT = 100
DAYS = 2

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

    phrase = Phrase(
        "Tokens counted",
        "词元已计数",
        "{day}: {used:count} brought up to date",
        "{day}：更新 {used:count} 项",
    )
    day: str
    used: dict[str, dict[str, Counts]]


class Day(msgspec.Struct, frozen=True):
    """The entries of a day, and their sum. Do not change them."""

    entries: Mapping[str, Used] = {}
    total: Used = {}


class Ledger(msgspec.Struct, frozen=True):
    """The last days, in the order in which they were begun. Do not change them."""

    days: Mapping[str, Day] = {}
    count: int = 0
    """Posts folded so far."""

    def on(self, day: str) -> Used:
        """Returns what all entries used on a day: nothing unless it is one of the last."""
        return self.day(day).total

    def day(self, day: str) -> Day:
        return self.days.get(day) or Day()


class Today(msgspec.Struct, frozen=True):
    """The usage of today: of one user, and of all."""

    user: Used = {}
    everybody: Used = {}


def fold(records: Iterable[Record], start: Ledger) -> Ledger:
    """Pure and total."""
    days, count = dict(start.days), start.count
    thawed: dict[str, tuple[dict[str, Used], dict[str, Tokens]]] = {}
    for record in records:
        event = record.event
        if not isinstance(event, TokensSpent):
            continue
        count += 1
        if event.day not in thawed:
            before = days.setdefault(event.day, Day())
            thawed[event.day] = dict(before.entries), dict(before.total)
            while len(days) > DAYS:
                over = next(iter(days))
                del days[over]
                thawed.pop(over, None)
        entries, total = thawed[event.day]
        for key, counts in event.used.items():
            used = {model: Tokens(*msgspec.structs.astuple(spent)) for model, spent in counts.items()}
            _add(total, used, instead=entries.get(key, {}))
            entries[key] = used
    return Ledger({**days, **{day: Day(*parts) for day, parts in thawed.items()}}, count)


def _add(total: dict[str, Tokens], used: Used, *, instead: Used) -> None:
    for model, tokens in used.items():
        sums = zip(total.get(model, Tokens()), tokens, instead.get(model, Tokens()), strict=True)
        total[model] = Tokens(*(sum_ + new - old for sum_, new, old in sums))


def posted(ledger: Ledger, day: str, key: str, used: Used, today: str) -> list[Event]:
    """Returns the events that bring an entry up to date: none if it is, or if its day is over and not one of the last.
    Entries only grow.
    """
    entries = ledger.day(day).entries
    known = entries.get(key, {})
    grown = {model: known.get(model, Tokens()).at_least(used.get(model, Tokens())) for model in {**known, **used}}
    if grown == known or (day not in ledger.days and day < today):
        return []
    if not _is_whole(ledger):
        return [_spent(day, {key: grown})]
    stated = {name: part.entries for name, part in ledger.days.items()} | {day: {**entries, key: grown}}
    return [_spent(name, stated[name]) for name in list(stated)[-DAYS:]]


def _spent(day: str, entries: Mapping[str, Used]) -> TokensSpent:
    return TokensSpent(day=day, used={key: _counts(used) for key, used in entries.items()})


class Ledgers:
    """One per process."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._users = Repository(log, KIND, fold, Ledger())
        self._all = Repository(log, KIND_OF_ALL, fold, Ledger())

    async def used(self, user: str, day: str) -> Used:
        """Returns what a user's runs used on a day, if it is one of the last on which they used anything."""
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
            everyone = await self._post(self._all, EVERYBODY, day, user, mine.on(day))
        today = now()[:10]
        return Today(mine.on(today), everyone.on(today))

    async def _post(self, ledgers: Repository[Ledger], identity: str, day: str, key: str, used: Used) -> Ledger:
        whole = False

        def decide(ledger: Ledger) -> Sequence[Event]:
            nonlocal whole
            whole = _is_whole(ledger)
            return posted(ledger, day, key, used, now()[:10])

        ledger, records = await ledgers.decide(identity, decide, actor=ACTOR)
        if whole and records:
            await self._forget(Aggregate(ledgers.kind, identity), records[0].seq)
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
