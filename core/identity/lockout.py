"""Lockout against password guessing: after `FAILURES` failures, sign-ins are locked for a time, on every replica.

Failures are events of an aggregate of their own, per address and per named account (whether it exists or not). A lock
makes the events before it obsolete, and they are purged: an aggregate has no more than five events.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import structlog

from core.errors import SikaError
from core.events import Aggregate, Event, Record
from core.identity.errors import TooMany
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase

log = structlog.get_logger("sika.identity")

KIND = "lockout"
FAILURES = 5
LOCKED = timedelta(seconds=300)
"""Duration of a lock, and the time for which a failure counts. Both from the contract."""


class SigninFailed(Event, frozen=True):
    """A password was wrong; in an address's registrations: another account was requested."""

    phrase = Phrase("Sign-in failed", "登录失败")


class SigninLocked(Event, frozen=True):
    """Too many failures: no password is checked until then."""

    phrase = Phrase("Sign-in locked", "登录已锁定", "until {until}", "直到 {until}")
    until: str


class SigninSucceeded(Event, frozen=True):
    """The failures before do not count any more."""

    phrase = Phrase("Sign-in succeeded", "登录成功")


class Tries(msgspec.Struct, frozen=True):
    """The times of recent failures, and the end of the lock."""

    failed: tuple[datetime, ...] = ()
    until: datetime | None = None


def fold(records: Iterable[Record], start: Tries) -> Tries:
    """Returns the attempts after these records. Pure and total."""
    for record in records:
        match record.event:
            case SigninFailed():
                start = Tries((*start.failed, datetime.fromisoformat(record.at))[-FAILURES:], start.until)
            case SigninLocked(until=until):
                start = Tries((), datetime.fromisoformat(until))
            case SigninSucceeded():
                start = Tries((), start.until)
    return start


class Lockout:
    """The locks of addresses and accounts. `clock` is for tests."""

    def __init__(self, log: EventLog, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._tries = Repository(log, KIND, fold, Tries())
        self._clock = clock

    async def check(self, *names: str) -> None:
        """Raises `TooMany` if any of these is locked. Call it before a password is checked, and again before the
        response: attempts may be concurrent.
        """
        for name in names:
            self._unlocked(await self._tries.load(name))

    async def failed(self, *names: str) -> None:
        """Counts a failure; the last allowed one locks. Raises `TooMany` if another attempt locked meanwhile."""
        for name in names:
            _, records = await self._tries.decide(name, self._failed, actor="http")
            if any(isinstance(record.event, SigninLocked) for record in records):
                log.warning("sign-in locked", name=name)
                await self._forget(name)

    async def succeeded(self, *names: str) -> None:
        for name in names:
            _, records = await self._tries.decide(name, lambda t: [SigninSucceeded()] if t.failed else [], actor="http")
            if records:
                await self._forget(name)

    def _failed(self, tries: Tries) -> Sequence[Event]:
        now = self._unlocked(tries)
        recent = [at for at in tries.failed if at > now - LOCKED]
        return [SigninLocked(until=(now + LOCKED).isoformat())] if len(recent) + 1 >= FAILURES else [SigninFailed()]

    def _unlocked(self, tries: Tries) -> datetime:
        """Returns the current time. Raises `TooMany` if it is locked then."""
        now = self._clock()
        if tries.until is not None and tries.until > now:
            left = (tries.until - now).total_seconds()
            raise TooMany("too_many_attempts", "Too many failed attempts; try again later", left)
        return now

    async def _forget(self, name: str) -> None:
        try:
            await self._tries.log.purge(Aggregate(KIND, name))
        except SikaError as error:  # harmless: they only take space
            log.info("old failures not purged", error=str(error))


def of_address(ip: str) -> str:
    """Returns the name of an address."""
    return _name("ip", network(ip))


def of_registration(ip: str) -> str:
    """Returns the name of an address from which accounts are registered."""
    return _name("registration", network(ip))


def network(ip: str) -> str:
    """Returns the network of a person: the IPv4 address, or the /64 of the IPv6 address."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return ip
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False).network_address)
    return str(address)


def of_account(email: str) -> str:
    return _name("account", email)


def _name(what: str, value: str) -> str:
    return f"{what}-{hashlib.sha256(value.encode(errors='replace')).hexdigest()[:32]}"
