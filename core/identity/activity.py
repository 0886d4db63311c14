"""Activity of accounts: sign-ins, uses of keys and refusals, as facts that people and operators can look up.

Each account has a list of its own; attempts for addresses without an account share one. A list is bounded: older events
are purged. What repeats within an hour, as refusals of a program in a loop, is recorded once by each process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import msgspec
import structlog
from cachetools import LRUCache

from core.errors import SikaError
from core.events import Aggregate, Event, Record
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase

log = structlog.get_logger("sika.identity")

KIND = "activity"
UNKNOWN = "unknown"
"""Id of the list of attempts for addresses without an account."""
LISTED = 200
"""Entries that a list keeps; twice as many events lie in the log at most."""
MOST_SEEN = 10_000
"""Limit of the entries of which a process remembers when they were last recorded."""


class SessionOpened(Event, frozen=True):
    """Somebody signed in to the account. `method`: `password`, `registration`, or the name of an identity provider."""

    phrase = Phrase("Signed in", "已登录", "by {method} from {ip}", "{method}，来自 {ip}")
    method: str
    ip: str


class SessionRefused(Event, frozen=True):
    """A sign-in to the account failed, for this reason (an error code)."""

    phrase = Phrase("Sign-in refused", "登录被拒绝", "{reason} from {ip}", "{reason}，来自 {ip}")
    reason: str
    ip: str


class KeyUsed(Event, frozen=True):
    """An API key of the account was used, for the first time in an hour from this address."""

    phrase = Phrase("API key used", "API 密钥已使用", "{key} from {ip}", "{key}，来自 {ip}")
    key: str
    ip: str


class AccessRefused(Event, frozen=True):
    """A request of the account was not permitted. `key`: the API key that it showed, empty for a session."""

    phrase = Phrase(
        "Request not permitted",
        "请求未获许可",
        "{operation}: {code} from {ip}",
        "{operation}：{code}，来自 {ip}",
    )
    operation: str
    """Method and path of the route, as `PUT /mcp/config`."""
    code: str
    ip: str
    key: str = ""


Entry = SessionOpened | SessionRefused | KeyUsed | AccessRefused


class Listed(msgspec.Struct, frozen=True):
    """An entry with its time, ISO 8601."""

    at: str
    entry: Entry


class Activity(msgspec.Struct, frozen=True):
    """The latest entries of an account, oldest first."""

    entries: tuple[Listed, ...] = ()
    seqs: tuple[int, ...] = ()
    """Sequences of all events that were not purged."""


def fold(records: Iterable[Record], start: Activity) -> Activity:
    """Returns the entries after these records. Pure and total."""
    entries, seqs = list(start.entries), list(start.seqs)
    for record in records:
        if isinstance(record.event, Entry):
            entries.append(Listed(record.at, record.event))
        seqs.append(record.seq)
    return Activity(tuple(entries[-LISTED:]), tuple(seqs[-2 * LISTED :]))


class Activities:
    """The lists of an installation. One per process. `clock` is for tests."""

    def __init__(self, log: EventLog, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._lists = Repository(log, KIND, fold, Activity())
        self._clock = clock
        self._seen: LRUCache[tuple[str, Entry], str] = LRUCache(MOST_SEEN)
        """The hour in which an entry was last recorded."""

    async def of(self, user: str) -> Sequence[Listed]:
        """Returns the latest entries of an account, newest first. Raises `Unavailable`."""
        return tuple(reversed((await self._lists.load(user)).entries))

    async def note(self, user: str, entry: Entry) -> None:
        """Records an entry, unless the same one was recorded in this hour. Its failure stays here: it must not refuse
        the request that it is about.
        """
        hour = self._clock().strftime("%Y-%m-%dT%H")
        if not isinstance(entry, SessionOpened) and self._seen.get((user, entry)) == hour:
            return
        self._seen[user, entry] = hour
        try:
            state, _ = await self._lists.decide(user, lambda _: [entry], actor="http")
            if len(state.seqs) >= 2 * LISTED:
                await self._lists.log.purge(Aggregate(KIND, user), before=state.seqs[LISTED])
        except SikaError as error:
            log.warning("activity not recorded", user=user, error=str(error))
